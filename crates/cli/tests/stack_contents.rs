//! `backtrail stack --args`: values that are one of several, and functions in values, of programs
//! that are known.

use std::collections::BTreeMap;
use std::process::Command;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{available, peers, scratch};

use crate::stack::{LIMIT, parked, stack};
use crate::stack_args::{built_by_rustc, linked, waits_with, with_tables};

/// The part of a value after the address of what it refers to.
fn after_address<'v>(values: &'v BTreeMap<String, String>, name: &str) -> &'v str {
    let value = values.get(name).map_or("...", String::as_str);
    let rest = value.split_once(' ').filter(|(address, _)| address.starts_with("0x"));
    rest.map_or(value, |(_, rest)| rest)
}

/// The number of values that are right; the others may only be lost or incomplete.
fn right(values: &BTreeMap<String, String>, expected: &[(&str, &str)], which: &str) -> usize {
    let is_right = |(name, expected): &&(&str, &str)| {
        let value = after_address(values, name);
        let is_unknown = value.contains("...") || value.starts_with("0x");
        assert!(value == *expected || is_unknown, "{which}: {name}: {value}");
        value == *expected
    };
    let count = expected.iter().filter(is_right).count();
    println!("{which}: {count} right, {values:?}");
    count
}

/// Values by their contents, in a program with this source, for each compiler and the least number
/// of them that are right.
fn contents_of_cpp(source: &str, compilers: &[(&[&str], usize)], expected: &[(&str, &str)]) {
    for (compiler, least) in compilers {
        let folder = scratch();
        let command = [compiler, &["-std=c++17", "-x", "c++"][..]].concat();
        let Some(built) = linked(&folder, &["--args"], &command, source) else {
            continue;
        };
        let running = parked(&built, &[]);
        let values = waits_with(&running, &built);
        running.signal(Signal::KILL);
        let which = compiler.join(" ");
        assert!(right(&values, expected, &which) >= *least, "{which}: {values:?}");
    }
}

#[test]
fn values_of_cpp_that_are_one_of_several() {
    const SOURCE: &str = r#"
#include <optional>
#include <string>
#include <variant>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
struct point { int x, y; };
struct hooks { int (*twice)(int); int (*none)(int); };
using choice = std::variant<int, double, std::string>;
int twice(int n) { return 2 * n; }
__attribute__((noinline)) long waits(const std::optional<std::string> &text, std::optional<int> number, const std::optional<point> &none,
    const std::optional<point> &some, const std::optional<std::optional<bool>> &nested, const choice &chosen, const choice &other, hooks *at, hooks by)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = text->size() + *number + none.has_value() + some->x + nested.has_value() + chosen.index() + other.index() + at->twice(1);
    return sink + by.twice(2) + by.twice(3) + *number;
}
int main(int argc, char **argv)
{
    hooks own { twice, nullptr };
    return waits(std::string("a text"), argc + 3, std::nullopt, point { argc, -2 }, std::optional<bool>(), std::string("chosen"), 2.5, &own, own);
}
"#;
    let expected = [
        ("text", r#"{"a text"}"#),
        ("number", "{4}"),
        ("none", "{}"),
        ("some", "{{x = 1, y = -2}}"),
        ("nested", "{{}}"),
        ("chosen", r#"{[2] = "chosen"}"#),
        ("other", "{[1] = 2.5}"),
    ];
    let compilers: [(&[&str], usize); 3] = [
        (&["g++", "-O0"], 7),
        (&["g++", "-O2"], 6),
        (&["clang++", "-O0", "-fstandalone-debug"], 6),
    ];
    contents_of_cpp(SOURCE, &compilers, &expected);
    // clang's place of `by` may be that of its address.
    for compiler in [["g++", "-O0"]] {
        let folder = scratch();
        let command = [&compiler[..], &["-std=c++17", "-x", "c++"]].concat();
        let Some(built) = linked(&folder, &["--args"], &command, SOURCE) else {
            continue;
        };
        let running = parked(&built, &[]);
        let values = waits_with(&running, &built);
        running.signal(Signal::KILL);
        let by = &values["by"];
        assert!(by.starts_with("{twice = 0x"), "{compiler:?}: {by}");
        assert!(by.ends_with(" <twice(int)>, none = 0x0}"), "{compiler:?}: {by}");
    }
}

/// With link-time optimization, functions and the types of their parameters are in different units.
#[test]
fn types_of_cpp_with_link_time_optimization() {
    const SOURCE: &str = r#"
#include <string_view>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
struct point { int x, y; };
__attribute__((noipa)) long waits(int n, const point &where, std::string_view text, const char *name)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = n + where.x + text.size() + name[0] + text[0];
    return sink;
}
int main(int argc, char **argv)
{
    point where { argc, -2 };
    return waits(argc + 1, where, "a text", "name");
}
"#;
    let folder = scratch();
    let [code, out] = ["one.cc", "one"].map(|name| folder.path().join(name));
    std::fs::write(&code, SOURCE).expect("it can be written");
    let mut compile = Command::new("g++");
    compile.args(["-std=c++17", "-O2", "-flto", "-g", "-w", "-o"]);
    let Some(built) = available(command::run(compile.arg(&out).arg(&code), LIMIT)) else {
        return;
    };
    assert!(built.status.success(), "{}", built.describe());
    let [whole, stripped] = with_tables(&out, &folder);
    let running = parked(&whole, &[]);
    let values = waits_with(&running, &stripped);
    running.signal(Signal::KILL);
    let expected = [("n", "2"), ("text", r#""a text""#), ("name", r#""name""#)];
    assert_eq!(right(&values, &expected, "-flto"), 3, "{values:?}");
    assert!(values["where"].starts_with("0x"), "{values:?}");
}

#[test]
fn containers_of_libcxx() {
    let Some(libcxx) = peers::libcxx() else { return };
    let libcxx: Vec<&str> = libcxx.iter().map(String::as_str).collect();
    const SOURCE: &str = r#"
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
__attribute__((noinline)) long waits(const std::string &small, const std::string &large, const std::string &empty, std::string_view view,
    const std::vector<std::string> &names, const std::vector<int> &numbers, const std::optional<std::string> &some, const std::unique_ptr<int> &owner)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = small.size() + large.size() + empty.size() + view.size() + names.size() + numbers.size() + some->size() + *owner;
    return sink;
}
int main(int argc, char **argv)
{
    std::string small("twenty-two characters!"), large("twenty-three characters"), inner("x\0y", 3);
    return waits(small, large, "", std::string_view(large).substr(7, 5), { inner, large.substr(0, 6) }, { argc, 2 }, inner, std::make_unique<int>(3));
}
"#;
    let expected = [
        ("small", r#""twenty-two characters!""#),
        ("large", r#""twenty-three characters""#),
        ("empty", r#""""#),
        ("view", r#""three""#),
        ("names", r#"{"x\000y", "twenty"}"#),
        ("numbers", "{1, 2}"),
        ("some", r#"{"x\000y"}"#),
    ];
    for (level, least) in [("-O0", 7), ("-O2", 1)] {
        let clang = [&["clang++", level, "-fstandalone-debug"], &libcxx[..]].concat();
        contents_of_cpp(SOURCE, &[(&clang, least)], &expected);
    }
}

#[test]
fn enums_with_data_of_rust() {
    const SOURCE: &str = r#"
use std::hint::black_box;
use std::io::Write;
pub enum Shape { Circle(f64), Rect { w: u32, h: i8 }, Named(String), Unit }
pub enum Login { Password(String), Nobody }
#[repr(u8)]
pub enum Far { Low = 1, Data(u8) = 200 }
pub struct Meters(f32);
fn twice(n: u32) -> u32 { 2 * n }
#[inline(never)]
fn waits(circle: Shape, rect: Shape, named: Shape, unit: Shape, text: Option<&str>, owned: Option<String>, none: Option<String>, boxed: Option<Box<i32>>,
    empty: Option<Box<i32>>, ok: Result<u32, String>, err: Result<u32, String>, nested: Option<Option<bool>>, inner: Option<Option<bool>>,
    letter: Option<char>, login: Login, far: Far, pair: (i32, &str), meters: Meters, by: fn(u32) -> u32) -> usize {
    std::io::stdout().write_all(b"ready\n").unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
        if black_box(false) {
            black_box((&circle, &rect, &named, &unit, &text, &owned, &none, &boxed, &empty));
            black_box((&ok, &err, &nested, &inner, &letter, &login, &far, &pair, &meters, &by));
            return by(2) as usize;
        }
    }
}
fn main() {
    let n = std::env::args().count() as u32;
    let sum = waits(Shape::Circle(2.5), Shape::Rect { w: n, h: -4 }, Shape::Named("n".into()), Shape::Unit, Some("text"), Some("owned".into()), None,
        Some(Box::new(3)), None, Ok(n), Err("bad".into()), Some(None), Some(Some(true)), Some('é'), Login::Password("hidden text".into()),
        Far::Data(7), (n as i32, "two"), Meters(1.5), twice);
    black_box((Login::Nobody, Far::Low));
    std::process::exit(sum as i32);
}
"#;
    let expected = [
        ("circle", "Circle(2.5)"),
        ("rect", "Rect{w = 1, h = -4}"),
        ("named", r#"Named("n")"#),
        ("unit", "Unit"),
        ("text", r#"Some("text")"#),
        ("owned", r#"Some("owned")"#),
        ("none", "None"),
        ("empty", "None"),
        ("ok", "Ok(1)"),
        ("err", r#"Err("bad")"#),
        ("nested", "Some(None)"),
        ("inner", "Some(Some(true))"),
        ("letter", "Some(233 'é')"),
        ("far", "Data(7)"),
        ("pair", r#"(1, "two")"#),
        ("meters", "(1.5)"),
    ];
    for (level, least) in [("0", 16), ("3", 6)] {
        let folder = scratch();
        let Some(built) = built_by_rustc(&folder, level, SOURCE) else {
            return;
        };
        let [whole, stripped] = with_tables(&built, &folder);
        let running = parked(&whole, &[]);
        let values = waits_with(&running, &stripped);
        let stripped = stripped.to_str().expect("a name");
        let secret = stack(&[
            "--args",
            "--hide",
            "*password*",
            "--exe",
            stripped,
            &running.pid().to_string(),
        ]);
        running.signal(Signal::KILL);
        assert!(right(&values, &expected, level) >= least, "{level}: {values:?}");
        assert!(!secret.stdout.contains("hidden text"), "{level}: {}", secret.stdout);
        if level == "0" {
            assert!(secret.stdout.contains("login=Password(<hidden>)"), "{}", secret.stdout);
            assert!(values["login"] == r#"Password("hidden text")"#, "{values:?}");
            assert!(values["by"].ends_with("::twice>"), "{values:?}");
            assert!(values["boxed"].starts_with("Some(0x"), "{values:?}");
        }
    }
}
