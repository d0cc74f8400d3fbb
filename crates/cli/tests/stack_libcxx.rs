//! `backtrail stack --args`: containers of libc++ with nodes and blocks, bits, and shared texts of
//! Rust, in programs that know their arguments.

use backtrail_testkit::command::Signal;
use backtrail_testkit::{peers, scratch};

use crate::stack::parked;
use crate::stack_args::{linked, waits_in_rust, waits_with};
use crate::stack_contents::{contents_of_cpp, right};

#[test]
fn nodes_of_libcxx() {
    let Some(libcxx) = peers::libcxx() else { return };
    let libcxx: Vec<&str> = libcxx.iter().map(String::as_str).collect();
    const SOURCE: &str = r#"
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
struct point { int x, y; };
struct nothing {};
using choice = std::variant<int, double, std::string>;
__attribute__((noinline)) long waits(const std::list<int> &list, const std::list<int> &none, const std::map<int, std::string> &map,
    const std::map<std::string, point> &by_name, const std::map<int, int> &large, const std::map<int, int> &empty, const std::set<std::string> &set,
    const std::unordered_map<std::string, int> &hash, const std::unordered_set<int> &numbers, const std::deque<point> &queue,
    const std::forward_list<int> &forward, const std::vector<bool> &flags, const std::vector<bool> &many, const std::tuple<int, nothing, std::string> &three,
    const choice &chosen, const choice &other, const std::multimap<int, long> &multi, const std::deque<int> &no_queue)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = list.size() + none.size() + map.size() + by_name.size() + large.size() + empty.size() + set.size() + hash.size() + numbers.size();
    return sink + queue.size() + flags.size() + many.size() + chosen.index() + other.index() + multi.size() + no_queue.size();
}
int main(int argc, char **argv)
{
    std::deque<point> queue;
    for (int i = 0; i < 1000; i++)
        queue.push_back({ i, 5 });
    for (int i = 0; i < 997; i++)
        queue.pop_front();
    std::map<int, int> large;
    for (int i = 0; i < 1000; i++)
        large[i * 7 % 1000] = i;
    std::vector<bool> many(100, true);
    many.push_back(false);
    return waits({ argc, 2, 3 }, {}, { { 2, "two" }, { 1, "one" }, { 3, "three" } }, { { "k", { 5, 6 } } }, large, {}, { "b", "a" }, { { "one", 1 } }, { 4 },
                 queue, { 7, 8 }, { true, false, true }, many, { argc, {}, "3rd" }, std::string("chosen"), 2.5, { { 1, 1 }, { 1, 2 } }, {});
}
"#;
    let expected = [
        ("list", "{1, 2, 3}"),
        ("none", "{}"),
        ("map", r#"{[1] = "one", [2] = "two", [3] = "three"}"#),
        ("by_name", r#"{["k"] = {x = 5, y = 6}}"#),
        ("empty", "{}"),
        ("set", r#"{"a", "b"}"#),
        ("hash", r#"{["one"] = 1}"#),
        ("numbers", "{4}"),
        ("queue", "{{x = 997, y = 5}, {x = 998, y = 5}, {x = 999, y = 5}}"),
        ("forward", "{7, 8}"),
        ("flags", "{true, false, true}"),
        ("many", "{true <repeats 100 times>, false}"),
        ("three", r#"{1, {}, "3rd"}"#),
        ("chosen", r#"{[2] = "chosen"}"#),
        ("other", "{[1] = 2.5}"),
        ("multi", "{[1] = 1, [1] = 2}"),
        ("no_queue", "{}"),
    ];
    for (level, least) in [("-O0", 17), ("-O2", 0)] {
        let clang = [&["clang++", level, "-fstandalone-debug"], &libcxx[..]].concat();
        contents_of_cpp(SOURCE, &[(&clang, least)], &expected);
    }
    let folder = scratch();
    let clang = [
        &["clang++", "-O0", "-fstandalone-debug", "-std=c++17", "-x", "c++"],
        &libcxx[..],
    ]
    .concat();
    let Some(built) = linked(&folder, &["--args"], &clang, SOURCE) else {
        return;
    };
    let running = parked(&built, &[]);
    let large = &waits_with(&running, &built)["large"];
    running.signal(Signal::KILL);
    // 7 * 143 is 1001.
    assert!(
        large.contains(" {[0] = 0, [1] = 143, ") && large.ends_with("[15] = 145, ...}"),
        "{large}"
    );
}

/// The words of bits, where they begin and end in the middle of one.
#[test]
fn bits_of_libstdcxx() {
    const SOURCE: &str = r#"
#include <vector>
#include <unistd.h>
volatile long sink;
volatile int go = 1;
__attribute__((noinline)) long waits(const std::vector<bool> &flags, const std::vector<bool> &none, const std::vector<bool> &many, std::vector<bool> copy)
{
    write(1, "ready\n", 6);
    while (go)
        pause();
    sink = flags.size() + none.size() + many.size() + copy.size();
    return sink;
}
int main(int argc, char **argv)
{
    std::vector<bool> many(100, true);
    many.push_back(false);
    many.push_back(argc == 1);
    return waits({ true, false, argc == 1 }, {}, many, { false, true });
}
"#;
    let expected = [
        ("flags", "{true, false, true}"),
        ("none", "{}"),
        ("many", "{true <repeats 100 times>, false, true}"),
        ("copy", "{false, true}"),
    ];
    let compilers: [(&[&str], usize); 3] = [
        (&["g++", "-O0"], 4),
        (&["g++", "-O2"], 3),
        (&["clang++", "-O0", "-fstandalone-debug"], 3),
    ];
    contents_of_cpp(SOURCE, &compilers, &expected);
}

#[test]
fn shared_texts_and_slices_of_rust() {
    const SOURCE: &str = r#"
use std::hint::black_box;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
#[inline(never)]
fn waits(text: Rc<str>, shared: Arc<str>, empty: Arc<str>, at: &Arc<str>, numbers: Rc<[u16]>, names: Arc<[String]>, inside: Vec<Rc<str>>) -> usize {
    std::io::stdout().write_all(b"ready\n").unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
        if black_box(false) {
            return text.len() + shared.len() + empty.len() + at.len() + numbers.len() + names.len() + inside.len();
        }
    }
}
fn main() {
    let n = std::env::args().count() as u16;
    let text: Arc<str> = "other text".into();
    let sum = waits("a text".into(), "shared".into(), "".into(), &text, vec![n, 2, 3].into(), vec!["one".to_owned()].into(), vec!["in".into()]);
    std::process::exit(sum as i32);
}
"#;
    let expected = [
        ("text", r#""a text""#),
        ("shared", r#""shared""#),
        ("empty", r#""""#),
        ("numbers", "{1, 2, 3}"),
        ("names", r#"{"one"}"#),
    ];
    for (level, least) in [("0", 5), ("3", 0)] {
        let Some(values) = waits_in_rust(level, SOURCE) else {
            return;
        };
        assert!(right(&values, &expected, level) >= least, "{level}: {values:?}");
        if level == "0" {
            assert!(values["at"].ends_with(r#" "other text""#), "{values:?}");
            let inside = &values["inside"];
            assert!(inside.starts_with("{0x") && inside.ends_with(r#" "in"}"#), "{values:?}");
        }
    }
}
