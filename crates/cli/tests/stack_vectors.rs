//! `backtrail stack --args`: arguments in vector registers, which only innermost functions have.

use crate::stack;
use crate::stack_args::{Shown, linked, stack_of, values};

use std::path::PathBuf;
use std::process::Command;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{available, debugger, scratch};

use stack::LIMIT;

/// With an argument, `works` loops; without, it crashes. `moved` is no longer what was passed.
const SOURCE: &str = r#"
#include <unistd.h>
typedef float four __attribute__((vector_size(16)));
struct point { double x, y; };
static volatile int sunk;
volatile int *volatile where;
volatile int go = 1;
__attribute__((noinline)) double works(double wide, float narrow, struct point point, four lanes, int count,
                                       double moved)
{
    moved = moved * 2 + count;
    while (go)
        *where = 1;
    return wide + narrow + point.x * point.y + lanes[3] + count + moved;
}
int main(int argc, char **argv)
{
    struct point point = { argc + 2.0, argc * -4.0 };
    four lanes = { argc, 2, 3, argc };
    where = argc > 1 ? &sunk : 0;
    write(1, "ready\n", 6);
    return works(argc + 0.5, argc * 1.25f, point, lanes, argc + 6, argc) > 0;
}
"#;

/// How the names of vector registers begin.
const VECTOR: &str = if cfg!(target_arch = "aarch64") { "v" } else { "xmm" };

/// The arguments of `works` are those that a program with this number of arguments computes.
fn are_right(what: &str, shown: &Shown, argc: i32) {
    let is = |name: &str, value: String| {
        let found = shown.get(&("works".to_owned(), name.to_owned()));
        assert_eq!(found.map(|(value, _)| value), Some(&value), "{what}: {name}: {shown:?}");
    };
    let place = |name: &str| &shown[&("works".to_owned(), name.to_owned())].1[..];
    let number = f64::from(argc);
    is("wide", (number + 0.5).to_string());
    is("narrow", (number * 1.25).to_string());
    is("point", format!("{{x = {}, y = {}}}", number + 2.0, number * -4.0));
    is("count", (argc + 6).to_string());
    assert!(place("wide").starts_with(VECTOR), "{what}: {shown:?}");
    // clang's debug information does not have it.
    if !what.starts_with("clang") {
        is("moved", (argc * 2 + argc + 6).to_string());
        assert!(place("moved").starts_with(VECTOR), "{what}: {shown:?}");
    }
}

#[test]
fn of_a_process_and_of_cores() {
    for compiler in ["gcc", "clang"] {
        let folder = scratch();
        let Some(built) = linked(&folder, &["--args"], &[compiler, "-O2"], SOURCE) else {
            continue;
        };
        let running = command::start(Command::new(&built).arg("loop"), LIMIT).expect("it was just built");
        assert!(running.wait_for_output("ready"), "it is not ready");
        std::thread::sleep(std::time::Duration::from_millis(200));
        let process = PathBuf::from(running.pid().to_string());
        are_right(compiler, &values(&stack_of(&process, &built)), 2);
        let core = folder.path().join("made");
        if available(debugger::gcore(running.pid(), &core)).is_some() {
            are_right(&format!("{compiler}, gcore"), &values(&stack_of(&core, &built)), 2);
        }
        running.signal(Signal::KILL);
        if let Some(core) = available(debugger::crashed(&folder, &[built.as_os_str()])) {
            are_right(&format!("{compiler}, core"), &values(&stack_of(&core, &built)), 1);
        }
    }
}
