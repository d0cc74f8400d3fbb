//! `backtrail stack --args` in programs of several units that give one name to different types, and
//! with a file that is laid out unlike the one that runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{TempDir, available, debugger, scratch};

use crate::stack::{LIMIT, parked, stack, threads};
use crate::stack_args::{linked, waits_with};
use crate::stack_programs::go_program;

/// What a compiler makes of two units.
fn of_two_units(folder: &TempDir, compiler: &[&str], first: &str, second: &str) -> Option<PathBuf> {
    let other = folder.path().join("two.c");
    fs::write(&other, second).expect("a scratch folder");
    let other = other.to_str().expect("text");
    linked(folder, &["--args"], &[compiler, &[other][..]].concat(), first)
}

/// The arguments of `waits` in this program, which waits there.
fn values_in(built: &Path) -> BTreeMap<String, String> {
    let running = parked(built, &[]);
    let values = waits_with(&running, built);
    running.signal(Signal::KILL);
    values
}

/// gcc only declares a class in units that do not define its first virtual function. There, another
/// class with the same name in another namespace is not its definition.
#[test]
fn a_declared_class_is_not_one_of_its_name_elsewhere() {
    const FIRST: &str = r#"
#include <unistd.h>
volatile int go = 1;
namespace a { struct widget { virtual ~widget(); int x; long z; widget(const widget &); widget(int); }; }
namespace b { struct widget { long y; char c[20]; }; }
struct both { int q; b::widget w; };
__attribute__((noinline)) long waits(a::widget first, b::widget second, a::widget *at, both third)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return first.x + second.y + at->x + third.q;
}
int main()
{
    a::widget first(7);
    b::widget second = { 3, "abc" };
    return waits(first, second, &first, both { 5, second });
}
"#;
    const SECOND: &str = r#"
namespace a {
struct widget { virtual ~widget(); int x; long z; widget(const widget &); widget(int); };
widget::~widget() {}
widget::widget(const widget &other) : x(other.x), z(8) {}
widget::widget(int x) : x(x), z(9) {}
long sum(widget of) { return of.x + of.z; }
}
"#;
    for compiler in [&["g++", "-O0", "-x", "c++"][..], &["clang++", "-O0", "-x", "c++"]] {
        let folder = scratch();
        let Some(built) = of_two_units(&folder, compiler, FIRST, SECOND) else {
            continue;
        };
        let values = values_in(&built);
        let is_right = |value: &String| value.contains("x = 7");
        assert!(values.get("first").is_none_or(is_right), "{compiler:?}: {values:?}");
        if compiler[0] == "g++" {
            assert_eq!(values["second"], r#"{y = 3, c = "abc"}"#);
            assert_eq!(values["third"], r#"{q = 5, w = {y = 3, c = "abc"}}"#);
        }
    }
}

/// Types that units share lead to declarations of what they define differently.
#[test]
fn names_of_types_that_units_define_differently() {
    const FIRST: &str = r#"
#include <unistd.h>
volatile int go = 1;
struct foo { int a, b, c, d; };
typedef struct foo foo_t;
struct bar { int x; struct foo f; long y; };
int two(int n);
__attribute__((noinline)) int waits(foo_t named, struct bar bar, foo_t *at, const foo_t same, foo_t array[2])
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return named.b + bar.x + at->c + same.a + array[1].a;
}
int main()
{
    foo_t f = { 1, 2, 3, 4 };
    struct bar bar = { 5, f, 6 };
    foo_t array[2] = { f, f };
    return waits(f, bar, &f, f, array) + two(3);
}
"#;
    const SECOND: &str = r#"
struct foo { char s[8]; long q; };
typedef struct foo foo_t;
struct bar { int x; struct foo f; long y; };
int other(foo_t f, struct bar bar, foo_t *at) { return f.s[0] + bar.x + at->q; }
int two(int n)
{
    foo_t f = { "abc", n };
    struct bar bar = { 1, f, 2 };
    return other(f, bar, &f);
}
"#;
    for compiler in [&["gcc", "-O0"], &["clang", "-O0"]] {
        let folder = scratch();
        let Some(built) = of_two_units(&folder, compiler, FIRST, SECOND) else {
            continue;
        };
        let values = values_in(&built);
        let foo = "{a = 1, b = 2, c = 3, d = 4}";
        assert_eq!(values["named"], foo, "{compiler:?}");
        assert_eq!(values["bar"], format!("{{x = 5, f = {foo}, y = 6}}"), "{compiler:?}");
        assert_eq!(values["same"], foo, "{compiler:?}");
        for pointer in ["at", "array"] {
            assert!(values[pointer].starts_with("0x"), "{compiler:?}: {values:?}");
        }
    }
}

/// Containers with elements of types that `types add` and the table of arguments describe
/// differently.
#[test]
fn containers_after_types_were_added() {
    const SOURCE: &str = r#"
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
volatile int go = 1;
__attribute__((noinline)) long waits(std::string text, std::map<int, std::string> map, std::optional<std::string> maybe,
    std::optional<int> number, std::map<int, int> numbers, std::chrono::milliseconds time, std::string_view view)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return text.size() + map.size() + maybe->size() + *number + numbers.size() + time.count() + view.size();
}
int main()
{
    return waits("a text", { { 1, "one" }, { 2, "two" } }, "there", 3, { { 1, 2 } }, std::chrono::milliseconds(1500), "view");
}
"#;
    let folder = scratch();
    let compiler = ["g++", "-O0", "-std=c++17", "-x", "c++"];
    let Some(built) = linked(&folder, &["--types"], &compiler, SOURCE) else {
        return;
    };
    let mut add = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let added = command::run(add.args(["sframe", "add", "--args"]).arg(&built), LIMIT);
    assert_eq!(added.expect("the binary is there").code(), 0);
    let values = values_in(&built);
    for (name, expected) in [
        ("text", r#""a text""#),
        ("map", r#"{[1] = "one", [2] = "two"}"#),
        ("maybe", r#"{"there"}"#),
        ("number", "{3}"),
        ("numbers", "{[1] = 2}"),
        ("time", "{__r = 1500}"),
        ("view", r#""view""#),
    ] {
        assert_eq!(values[name], expected, "{values:?}");
    }
}

/// Names and lines of another build are those of other code.
#[test]
fn another_build_of_the_program_that_runs_is_not_used() {
    const SOURCE: &str = r#"
#include <unistd.h>
volatile int go = 1;
int waits(int argument)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    return argument;
}
int main(void) { return waits(5); }
"#;
    let [folder, other] = [scratch(), scratch()];
    let [Some(built), Some(other)] = [(&folder, ""), (&other, "int before(int i) { return i * 3; }\n")]
        .map(|(folder, before)| linked(folder, &["--args"], &["gcc", "-O0"], &format!("{before}{SOURCE}")))
    else {
        return;
    };
    let running = parked(&built, &[]);
    let pid = running.pid().to_string();
    let [with_other, own] =
        [&other, &built].map(|file| stack(&[&pid, "--args", "--exe", file.to_str().expect("text")]));
    running.signal(Signal::KILL);
    assert!(with_other.stderr.contains("build ID"), "{}", with_other.describe());
    assert_eq!(own.stderr, "", "{}", own.describe());
    for finished in [with_other, own] {
        assert!(finished.stdout.contains("(argument=5)"), "{}", finished.describe());
    }
}

/// Go's linker leaves no room for a further segment, so adding tables moves the others in the file.
/// A process or core of the file without tables has them where they were.
#[test]
fn a_file_whose_segments_tables_have_moved() {
    let folder = scratch();
    let Some(built) = available(go_program(&folder, "")) else {
        return;
    };
    let with_tables = folder.path().join("with_tables");
    let mut add = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    add.args(["sframe", "add", "--args"])
        .arg(&built)
        .arg("-o")
        .arg(&with_tables);
    assert_eq!(command::run(&mut add, LIMIT).expect("the binary is there").code(), 0);

    // It waits for input.
    let mut shell = Command::new("sh");
    shell.args(["-c", "mkfifo in && exec \"$0\" 0<>in"]).arg(&built);
    let running = command::start(shell.current_dir(folder.path()), LIMIT).expect("there is a shell");
    assert!(running.wait_at_rest("ready"));
    let pid = running.pid().to_string();
    let core = folder.path().join("core");
    let core = available(debugger::gcore(running.pid(), &core)).map(|()| core);
    let targets = [Some(pid), core.map(|core| core.display().to_string())];
    for target in targets.into_iter().flatten() {
        let frames = |options: &[&str]| {
            let threads = threads(&stack(&[&[&target[..], "--json"], options].concat()));
            let frames = threads.into_values().map(|thread| thread.frames);
            let names = frames.map(|frames| frames.into_iter().map(|frame| frame.function).collect());
            names.collect::<Vec<Vec<String>>>()
        };
        let other = frames(&["--exe", with_tables.to_str().expect("text")]);
        let waits = |names: &Vec<String>| names.iter().any(|name| name == "main.wait");
        assert!(other.iter().any(waits), "{target}: {other:?}");
        let own = frames(&[]);
        let own = own.iter().find(|names| waits(names)).expect("it waits");
        assert!(other.contains(own), "{target}: {other:?}, not {own:?}");
    }
    running.signal(Signal::KILL);
}

/// Go's linker writes a build ID of its own.
#[test]
fn another_build_of_a_go_program_is_not_used() {
    let folders = [scratch(), scratch()];
    let Some(built) = available(go_program(&folders[0], "")) else {
        return;
    };
    let other =
        available(go_program(&folders[1], "-X main.other=1 -buildid=other/build")).expect("the first was built");
    let mut shell = Command::new("sh");
    shell.args(["-c", "mkfifo in && exec \"$0\" 0<>in"]).arg(&built);
    let running = command::start(shell.current_dir(folders[0].path()), LIMIT).expect("there is a shell");
    assert!(running.wait_at_rest("ready"));
    let core = folders[0].path().join("core");
    let made = available(debugger::gcore(running.pid(), &core));
    let pid = running.pid().to_string();
    let other = other.to_str().expect("text");
    let live = stack(&[&pid, "--exe", other]);
    running.signal(Signal::KILL);
    let with_core = made.map(|()| stack(&[core.to_str().expect("text"), "--exe", other]));
    // A newer build at the same path.
    fs::remove_file(&built).expect("it was just built");
    fs::copy(other, &built).expect("a scratch folder");
    if made.is_some() {
        let replaced = stack(&[core.to_str().expect("text")]);
        assert!(
            replaced.stderr.contains("build ID mismatch: "),
            "{}",
            replaced.describe()
        );
        assert!(!replaced.stdout.contains("main."), "{}", replaced.describe());
    }
    for finished in [Some(live), with_core].into_iter().flatten() {
        let is_named = finished.stderr.contains("build ID mismatch: ") && finished.stderr.contains("other/build");
        assert!(is_named, "{}", finished.describe());
        assert!(finished.stdout.contains("main.wait"), "{}", finished.describe());
    }
}
