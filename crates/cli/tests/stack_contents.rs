//! `backtrail stack --args`: values that are one of several, and functions in values, of programs
//! that are known.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{available, peers, scratch};

use crate::stack::{LIMIT, parked, stack};
use crate::stack_args::{built_by_rustc, linked, waits_in_rust, waits_with, with_tables};

/// The part of a value after the address of what it refers to.
fn after_address<'v>(values: &'v BTreeMap<String, String>, name: &str) -> &'v str {
    let value = values.get(name).map_or("...", String::as_str);
    let rest = value.split_once(' ').filter(|(address, _)| address.starts_with("0x"));
    rest.map_or(value, |(_, rest)| rest)
}

/// The number of values that are right; the others may only be lost or incomplete.
pub(crate) fn right(values: &BTreeMap<String, String>, expected: &[(&str, &str)], which: &str) -> usize {
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
pub(crate) fn contents_of_cpp(source: &str, compilers: &[(&[&str], usize)], expected: &[(&str, &str)]) {
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
__attribute__((noinline, noipa)) long waits(const std::optional<std::string> &text, std::optional<int> number, const std::optional<point> &none,
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

#[test]
fn containers_of_structs_and_of_nodes() {
    const SOURCE: &str = r#"
#include <array>
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
struct point { int x, y; };
struct item { std::string name; std::vector<short> sizes; };
struct node { int id; std::vector<node> below; };
struct alignas(32) wide { char c; };
__attribute__((noinline)) long waits(const std::vector<point> &points, const std::array<point, 2> &pair, const std::map<int, std::string> &map,
    const std::map<std::string, point> &by_name, const std::set<std::string> &set, const std::multimap<int, long> &multi, const std::map<char, wide> &aligned,
    const std::map<int, std::map<int, int>> &nested, const std::map<int, int> &large, const std::map<int, int> &empty,
    const std::unordered_map<std::string, int> &hash, const std::unordered_multiset<int> &numbers, const std::deque<point> &queue, const std::list<item> &list,
    const std::list<int> &many, const std::forward_list<int> &forward, const std::pair<int, std::string> &two, const std::tuple<int, std::string, double> &three,
    const std::vector<node> &tree, const std::vector<std::unique_ptr<point>> &owners, const std::vector<std::pair<int, double>> &pairs,
    const std::shared_ptr<point> &shared, const std::vector<point *> &addresses, const std::map<std::string, std::string> &secrets)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return sink + points.size() + list.size();
}
int main(int argc, char **argv)
{
    std::deque<point> queue;
    for (int i = 0; i < 100; i++)
        queue.push_back({ i, 5 });
    for (int i = 0; i < 97; i++)
        queue.pop_front();
    std::vector<std::unique_ptr<point>> owners;
    owners.push_back(std::make_unique<point>(point { 9, 8 }));
    std::map<int, int> large;
    for (int i = 0; i < 1000; i++)
        large[i * 7 % 1000] = i;
    return waits({ { argc, 2 }, { 3, 4 } }, { point { 1, 2 }, { 3, 4 } }, { { 2, "two" }, { 1, "one" }, { 3, "three" } }, { { "k", { 5, 6 } } }, { "b", "a" },
                 { { 1, 1 }, { 1, 2 } }, { { 'x', { 'a' } }, { 'y', { 'b' } } }, { { 1, { { 2, 3 } } } }, large, {}, { { "one", 1 } }, { 4, 4 }, queue,
                 { { "name", { 1, 2 } } }, std::list<int>(40, 7), { 7, 8 }, { argc, "second" }, { argc, "2nd", 1.5 }, { { 1, { { 2, {} } } } }, owners,
                 { { 1, 2.5 } }, std::make_shared<point>(point { 7, 8 }), { nullptr }, { { "my password", "hunter2" }, { "user", "me" } });
}
"#;
    let expected = [
        ("points", "{{x = 1, y = 2}, {x = 3, y = 4}}"),
        ("pair", "{{x = 1, y = 2}, {x = 3, y = 4}}"),
        ("map", r#"{[1] = "one", [2] = "two", [3] = "three"}"#),
        ("by_name", r#"{["k"] = {x = 5, y = 6}}"#),
        ("set", r#"{"a", "b"}"#),
        ("multi", "{[1] = 1, [1] = 2}"),
        ("aligned", "{[120 'x'] = {c = 97 'a'}, [121 'y'] = {c = 98 'b'}}"),
        ("nested", "{[1] = {[2] = 3}}"),
        ("empty", "{}"),
        ("hash", r#"{["one"] = 1}"#),
        ("numbers", "{4, 4}"),
        ("queue", "{{x = 97, y = 5}, {x = 98, y = 5}, {x = 99, y = 5}}"),
        ("list", r#"{{name = "name", sizes = {1, 2}}}"#),
        ("forward", "{7, 8}"),
        ("two", r#"{first = 1, second = "second"}"#),
        ("three", r#"{1, "2nd", 1.5}"#),
        ("tree", "{{id = 1, below = {{...}}}}"),
        ("pairs", "{{first = 1, second = 2.5}}"),
        ("addresses", "{0x0}"),
        ("secrets", r#"{["my password"] = "hunter2", ["user"] = "me"}"#),
    ];
    let compilers: [(&[&str], usize); 4] = [
        (&["g++", "-O0"], 20),
        (&["g++", "-O2"], 17),
        (&["clang++", "-O0", "-fstandalone-debug"], 20),
        (&["clang++", "-O2", "-fstandalone-debug"], 2),
    ];
    contents_of_cpp(SOURCE, &compilers, &expected);

    let folder = scratch();
    let Some(built) = linked(&folder, &["--args"], &["g++", "-O0", "-std=c++17", "-x", "c++"], SOURCE) else {
        return;
    };
    let running = parked(&built, &[]);
    let values = waits_with(&running, &built);
    let hidden = stack(&["--args", "--hide", "*password*", &running.pid().to_string()]).stdout;
    running.signal(Signal::KILL);
    let is = |name: &str, start: &str, end: &str| {
        let value = after_address(&values, name);
        assert!(value.starts_with(start) && value.ends_with(end), "{name}: {value}");
    };
    is("large", "{[0] = 0, [1] = 143, ", "[15] = 145, ...}");
    is("many", "{7 <repeats 17 times>, ...", "}");
    is("owners", "{0x", " {x = 9, y = 8}}");
    is("shared", "0x", " {x = 7, y = 8}");
    assert!(
        hidden.contains(r#"{["my password"] = <hidden>, ["user"] = "me"}"#),
        "{hidden}"
    );
}

/// References to structs are by name, which those of several namespaces share.
#[test]
fn structs_of_one_name() {
    const SOURCE: &str = r#"
#include <map>
#include <memory>
#include <vector>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
namespace a { struct item { int x, y; }; struct both { item first, all[2]; }; }
namespace b { struct item { float f, g; }; struct both { item first, all[2]; }; }
struct one { a::item x[2]; };
struct two { b::item x[2]; };
struct self { int n; std::vector<self> more; self (*call)(self); };
namespace b { struct self { float n; std::vector<self> more; self (*call)(self); }; }
__attribute__((noinline)) long waits(one of_a, two of_b, a::item from_a, b::item from_b, const std::vector<a::item> &all_a, const std::vector<b::item> &all_b,
    a::both both_a, b::both both_b, const std::vector<a::both> &more_a, const std::vector<b::both> &more_b, self cyclic, b::self other, const std::map<int, b::self> &map)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = of_a.x[0].x + of_b.x[1].f + from_a.x + from_b.f + all_a.size() + all_b.size() + both_a.first.x + both_b.first.f;
    return sink + more_a.size() + more_b.size() + cyclic.n + other.n + map.size();
}
int main(int argc, char **argv)
{
    a::both both_a { { 1, 2 }, { { 3, 4 }, { 5, 6 } } };
    b::both both_b { { 1.5, 2.5 }, { { 3.5, 4.5 }, { 5.5, 6.5 } } };
    return waits({ { { 1, 2 } } }, { { { 1.5, 2.5 } } }, { argc, 2 }, { 1.5, 2.5 }, { { 1, 2 } }, { { 1.5, 2.5 } }, both_a, both_b, { both_a }, { both_b },
                 { 5 }, { 5.5 }, { { 1, { 5.5 } } });
}
"#;
    let expected = [
        ("of_a", "{x = {{x = 1, y = 2}, {x = 0, y = 0}}}"),
        ("of_b", "{x = {{f = 1.5, g = 2.5}, {f = 0, g = 0}}}"),
        ("from_a", "{x = 1, y = 2}"),
        ("from_b", "{f = 1.5, g = 2.5}"),
        ("all_a", "{{x = 1, y = 2}}"),
        ("all_b", "{{f = 1.5, g = 2.5}}"),
        (
            "both_a",
            "{first = {x = 1, y = 2}, all = {{x = 3, y = 4}, {x = 5, y = 6}}}",
        ),
        (
            "both_b",
            "{first = {f = 1.5, g = 2.5}, all = {{f = 3.5, g = 4.5}, {f = 5.5, g = 6.5}}}",
        ),
        ("more_a", "{{first = {x = 1, y = 2}, all = {{...}, {...}}}}"),
        ("more_b", "{{first = {f = 1.5, g = 2.5}, all = {{...}, {...}}}}"),
        ("cyclic", "..."),
        ("other", "..."),
        ("map", "{[1] = ...}"),
    ];
    let compilers: [(&[&str], usize); 3] = [
        (&["g++", "-O0"], 13),
        (&["g++", "-O2"], 4),
        (&["clang++", "-O0", "-fstandalone-debug"], 10),
    ];
    contents_of_cpp(SOURCE, &compilers, &expected);
}

#[test]
fn containers_of_structs_in_rust() {
    const SOURCE: &str = r#"
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hint::black_box;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
#[derive(Clone)]
pub struct Point { x: i32, y: i16 }
#[derive(Clone)]
pub struct Node { id: i32, below: Vec<Node> }
pub enum Shape { Circle(f64), Rect { w: u32, h: i8 }, Unit }
pub enum Chain { Link(i32, Box<Chain>), End }
#[inline(never)]
fn waits(list: Vec<Point>, slice: &[Point], boxed: Box<Point>, rc: Rc<Point>, arc: Arc<String>, number: Rc<i32>, map: HashMap<u32, String>, at: &HashMap<String, Point>,
    set: HashSet<i64>, tree: BTreeMap<i32, String>, big: &BTreeMap<i32, i32>, letters: BTreeSet<u8>, queue: VecDeque<Point>, node: Node, shapes: Vec<Shape>, some: Option<Box<Point>>,
    tuples: Vec<(u8, String)>, owned: Box<[Point]>, none: HashMap<u8, u8>, chain: Chain, dynamic: Rc<dyn Fn() -> i32>) -> usize {
    std::io::stdout().write_all(b"ready\n").unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
        if black_box(false) {
            black_box((&list, &slice, &boxed, &rc, &arc, &number, &map, &at, &set, &tree, &big));
            black_box((&letters, &queue, &node, &shapes, &some, &tuples, &owned, &none, &chain, &dynamic));
            return 1;
        }
    }
}
fn main() {
    let n = std::env::args().count() as i32;
    let point = Point { x: n, y: -2 };
    let list = vec![point.clone(), Point { x: 3, y: 4 }];
    let at: HashMap<String, Point> = [("k".to_string(), point.clone())].into();
    let big: BTreeMap<i32, i32> = (0..1000).map(|i| (i, -i)).collect();
    let mut queue: VecDeque<Point> = list.iter().cloned().collect();
    queue.push_front(Point { x: 0, y: 0 });
    let node = Node { id: 1, below: vec![Node { id: 2, below: vec![] }] };
    black_box([&Shape::Unit, &Shape::Rect { w: 1, h: 2 }]);
    let sum = waits(list.clone(), &list, Box::new(point.clone()), Rc::new(point.clone()), Arc::new("text".to_string()), Rc::new(n + 4), [(1, "one".to_string())].into(), &at,
        [-7].into(), [(2, "two".to_string()), (1, "one".to_string())].into(), &big, [3, 1].into(), queue, node, vec![Shape::Circle(2.5), Shape::Rect { w: 1, h: 2 }, Shape::Unit],
        Some(Box::new(point.clone())), vec![(1, "t".to_string())], list.clone().into_boxed_slice(), HashMap::new(), Chain::Link(n, Box::new(Chain::End)), Rc::new(move || n));
    std::process::exit(sum as i32);
}
"#;
    let expected = [
        ("list", "{{x = 1, y = -2}, {x = 3, y = 4}}"),
        ("slice", "{{x = 1, y = -2}, {x = 3, y = 4}}"),
        ("boxed", "{x = 1, y = -2}"),
        ("rc", "{x = 1, y = -2}"),
        ("arc", r#""text""#),
        ("number", "5"),
        ("map", r#"{[1] = "one"}"#),
        ("at", r#"{["k"] = {x = 1, y = -2}}"#),
        ("set", "{-7}"),
        ("tree", r#"{[1] = "one", [2] = "two"}"#),
        ("letters", "{1, 3}"),
        ("queue", "{{x = 0, y = 0}, {x = 1, y = -2}, {x = 3, y = 4}}"),
        ("node", "{id = 1, below = {{id = 2, below = {}}}}"),
        ("shapes", "{Circle(2.5), Rect{w = 1, h = 2}, Unit}"),
        ("tuples", r#"{(1, "t")}"#),
        ("owned", "{{x = 1, y = -2}, {x = 3, y = 4}}"),
        ("none", "{}"),
    ];
    for (level, least) in [("0", 17), ("3", 8)] {
        let Some(values) = waits_in_rust(level, SOURCE) else {
            return;
        };
        assert!(right(&values, &expected, level) >= least, "{level}: {values:?}");
        let is = |name: &str, start: &str, end: &str| {
            let value = after_address(&values, name);
            let is_right = value.starts_with(start) && value.ends_with(end);
            assert!(is_right || level == "3" && value == "...", "{level}: {name}: {value}");
        };
        is("big", "{[0] = 0, [1] = -1, ", "[15] = -15, ...}");
        is("some", "Some(0x", " {x = 1, y = -2})");
        is("chain", "Link(1, 0x", " End)");
        is("dynamic", "{ptr = {pointer = {pointer = 0x", "}");
    }
}

/// A unit with two structs of one name, of which one is inside a function of GNU C.
#[test]
fn structs_of_one_name_in_c() {
    const SOURCE: &str = r#"
#include <unistd.h>
volatile double sink;
volatile int go = 1;
struct item { int x, y; };
struct one { const struct item all[2]; };
union first { struct item part; long number; };
void own(int n)
{
    struct item { float f, g; };
    struct two { const struct item all[2]; };
    union other { struct item part; long number; };
    int waits(struct one ints, struct two floats, union first first, union other other, struct item item)
    {
        write(1, "ready\n", 6);
        while (go)
            pause();
        return ints.all[0].x + floats.all[0].f + first.number + other.number + item.f;
    }
    struct one ints = { { { n, 2 }, { 3, 4 } } };
    struct two floats = { { { 1.5, 2.5 }, { 3.5, 4.5 } } };
    union first first = { { 5, 6 } };
    union other other = { { 5.5, 6.5 } };
    struct item item = { 9.5, 8.5 };
    sink = waits(ints, floats, first, other, item);
}
int main(int argc, char **argv) { own(argc); }
"#;
    let folder = scratch();
    let Some(built) = linked(&folder, &["--args"], &["gcc", "-O0"], SOURCE) else {
        return;
    };
    let running = parked(&built, &[]);
    let values = waits_with(&running, &built);
    running.signal(Signal::KILL);
    let expected = [
        ("ints", "{all = {{x = 1, y = 2}, {x = 3, y = 4}}}"),
        ("floats", "{all = {{f = 1.5, g = 2.5}, {f = 3.5, g = 4.5}}}"),
        ("first", "{part = {x = 5, y = 6}, number = 25769803781}"),
        ("other", "{part = {f = 5.5, g = 6.5}, number = 4670232814668480512}"),
        ("item", "{f = 9.5, g = 8.5}"),
    ];
    assert_eq!(right(&values, &expected, "gcc"), 5, "{values:?}");
}

/// `types add` leaves out what only arguments need, in languages other than C.
#[test]
fn types_that_were_added_before_do_not_hide_arguments() {
    const SOURCE: &str = r#"
#include <string>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
struct place { int x; std::string name; };
__attribute__((noinline)) long waits(const char *text, bool flag, double ratio, const std::string &name, place &at)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return sink = flag + (long)ratio + name.size() + at.x + (long)text;
}
int main(int argc, char **argv)
{
    std::string name("a name");
    place at { 1, name };
    return waits("a text", argc == 1, argc + 0.5, name, at);
}
"#;
    let expected = [
        ("text", r#""a text""#),
        ("flag", "true"),
        ("ratio", "1.5"),
        ("name", r#""a name""#),
    ];
    let backtrail = |arguments: &[&str], file: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        let done = command::run(command.args(arguments).arg(file), LIMIT).expect("the binary is there");
        assert!(done.status.success(), "{}", done.describe());
        done
    };
    for options in [&["--types", "--args"][..], &["--types"]] {
        let folder = scratch();
        let compiler = ["g++", "-O0", "-std=c++17", "-x", "c++"];
        let Some(built) = linked(&folder, options, &compiler, SOURCE) else {
            return;
        };
        if options.len() == 1 {
            backtrail(&["sframe", "add", "--args"], &built);
        }
        let running = parked(&built, &[]);
        let values = waits_with(&running, &built);
        running.signal(Signal::KILL);
        assert_eq!(
            right(&values, &expected, "g++"),
            expected.len(),
            "{options:?}: {values:?}"
        );
        // The types of `types add` are still there.
        let printed = backtrail(&["types", "print"], &built);
        assert!(printed.stdout.contains("struct place {"), "{}", printed.describe());
        let again = backtrail(&["types", "add"], &built);
        let says = again.stderr.contains("the table of arguments is for other types");
        assert!(says, "{}", again.describe());
    }
}
