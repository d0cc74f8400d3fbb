//! `backtrail stack PID` where stacks are odd: of threads whose first has ended, deeper than what
//! is copied, of contexts, in code without tables.

use crate::stack;

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::{available, debugger, program, scratch};

use stack::{LIMIT, Thread, stack, threads};

/// The program of odd stacks, where it has come to.
fn odd(what: &str) -> Option<Running> {
    let built = available(program::ODD_STACKS.build())?;
    let running = command::start(Command::new(built).arg(what), LIMIT).expect("it was just built");
    assert!(running.wait_for_output("ready"), "{what} is not ready");
    sleep(Duration::from_millis(100));
    Some(running)
}

fn names(thread: &Thread) -> Vec<&str> {
    thread.frames.iter().map(|frame| &frame.function[..]).collect()
}

#[test]
fn threads_of_a_process_whose_first_thread_has_ended() {
    let Some(running) = odd("leader") else { return };
    let pid = running.pid().to_string();
    assert_eq!(
        fs::read(format!("/proc/{pid}/maps")).expect("it is there"),
        b"",
        "the first thread is there"
    );
    let ours = threads(&stack(&[&pid, "--json"]));
    running.signal(Signal::KILL);
    assert_eq!(ours.len(), 2);
    for thread in ours.values() {
        assert_eq!(thread.stop, "end_of_stack", "{thread:?}");
        assert!(names(thread).contains(&"waits"), "{thread:?}");
    }
}

/// What is not copied at the moment of the look is read while the process is held.
#[test]
fn a_stack_deeper_than_its_copy_is_whole() {
    let Some(running) = odd("deep") else { return };
    let told = stack(&[&running.pid().to_string(), "--json"]);
    running.signal(Signal::KILL);
    let ours = threads(&told);
    let deep = ours
        .values()
        .find(|thread| names(thread).contains(&"recurse"))
        .expect("it recurses");
    assert_eq!(deep.stop, "end_of_stack");
    assert_eq!(names(deep).iter().filter(|name| **name == "recurse").count(), 50_001);
    assert_eq!(told.stderr, "");
}

#[test]
fn a_context_ends_where_it_was_started() {
    let Some(running) = odd("context") else { return };
    let ours = threads(&stack(&[&running.pid().to_string(), "--json"]));
    running.signal(Signal::KILL);
    let thread = ours.values().next().expect("a thread");
    let count = thread.frames.len();
    assert_eq!(thread.stop, "end_of_stack", "{thread:?}");
    // On AArch64, the C library's code that it returns to is no frame.
    assert!(names(thread)[count - 2..].contains(&"in_context"), "{thread:?}");
}

/// Whoever makes a fibre's stack puts something where its first function returns to: nothing, or a
/// function that ends the program, which has called nobody.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_fibre_ends_in_its_first_function() {
    for what in ["zero", "aborts", "exits"] {
        for look in &live_and_core(what) {
            let ours = threads(look);
            let thread = ours.values().next().expect("a thread");
            assert_eq!(thread.stop, "end_of_stack", "{what}: {thread:?}");
            assert_eq!(names(thread).last(), Some(&"in_fibre"), "{what}: {thread:?}");
        }
    }
}

/// The stacks of such a program, and of its core.
#[cfg(target_arch = "x86_64")]
fn live_and_core(what: &str) -> Vec<command::Finished> {
    let Some(running) = odd(what) else { return Vec::new() };
    let pid = running.pid().to_string();
    let folder = scratch();
    let core = folder.path().join("core");
    let mut looks = vec![stack(&[&pid, "--json"])];
    if available(debugger::gcore(running.pid(), &core)).is_some() {
        looks.push(stack(&[core.to_str().expect("text"), "--json"]));
    }
    running.signal(Signal::KILL);
    looks
}

/// OCaml 5 runs its own code in the heap, and functions of C on the thread's stack.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_from_one_stack_to_another_are_followed_and_in_cores_too() {
    for (what, outer) in [
        ("elsewhere", ["on_own_stack", "elsewhere", "on_other_stack", "main"]),
        ("by-rbx", ["on_own_stack_by_rbx", "by_rbx", "on_other_stack", "main"]),
    ] {
        is_followed(what, &outer);
    }
}

#[cfg(target_arch = "x86_64")]
fn is_followed(what: &str, expected: &[&str]) {
    for look in &live_and_core(what) {
        let ours = threads(look);
        let thread = ours.values().next().expect("a thread");
        assert_eq!(thread.stop, "end_of_stack", "{thread:?}");
        let names = names(thread);
        let home = names.iter().position(|name| *name == "at_home");
        let outer = home.and_then(|home| names.get(home + 1..home + 5));
        assert_eq!(outer, Some(expected), "{thread:?}");
    }
}

#[test]
fn long_names_are_shortened_in_text_alone() {
    let Some(running) = odd("named") else { return };
    let pid = running.pid().to_string();
    let looks = [&[][..], &["--full-names"], &["--json"]].map(|options| stack(&[&[&pid[..]], options].concat()).stdout);
    running.signal(Signal::KILL);
    let [text, full, json] = looks;
    assert!(text.contains("in a_function_whose_name_is_longer") && text.contains("…") && text.contains("_part39+0x"));
    assert!(
        !text.contains("_part20_") && text.lines().all(|line| line.chars().count() < 400),
        "{text}"
    );
    for whole in [full, json] {
        assert!(
            whole.contains("_part19_part20_part21_") && !whole.contains('…'),
            "{whole}"
        );
    }
}

/// V8's builtins have neither rows nor, in node's own code, frames that tables know.
#[test]
fn code_without_tables_is_left_as_eu_stack_leaves_it_and_in_cores_too() {
    let folder = scratch();
    let script = "function f(n) { let s = 0; for (;;) s += [3, 1, 2].sort((a, b) => a - b)[n % 3] + JSON.stringify([n++]).length; }\n\
                  console.log('ready'); [1].map(() => f(3));";
    let Some(running) = available(command::start(Command::new("node").args(["-e", script]), LIMIT)) else {
        return;
    };
    assert!(running.wait_for_output("ready"));
    let pid = running.pid().to_string();
    let mut whole = 0;
    for look in 0..8 {
        sleep(Duration::from_millis(300));
        running.signal(Signal::STOP);
        sleep(Duration::from_millis(100));
        let ours = threads(&stack(&[&pid, "--json"]));
        let theirs = available(debugger::eu_stack(&[OsStr::new("-p"), OsStr::new(&pid)]));
        for (tid, thread) in &ours {
            if thread.stop != "end_of_stack" {
                // Of some instructions of V8's builtins nobody can say where their frame is; what
                // is not proved is not shown.
                assert!(*tid == running.pid() && thread.stop == "no_call", "{tid}: {thread:?}");
                continue;
            }
            let mut pcs = thread.frames.iter().map(|frame| frame.pc);
            let theirs = theirs
                .as_ref()
                .and_then(|theirs| theirs.get(tid))
                .cloned()
                .unwrap_or_default();
            assert!(
                theirs.iter().all(|&pc| pcs.any(|own| own == pc)),
                "{tid}: {thread:?}\n{theirs:x?}"
            );
            let is_proved = thread.frames.iter().any(|frame| frame.how == "frame_pointer");
            whole += u32::from(*tid == running.pid() && is_proved);
        }
        let core = folder.path().join("core");
        if look == 0 && available(debugger::gcore(running.pid(), &core)).is_some() {
            let from_core = threads(&stack(&[core.to_str().expect("text"), "--json"]));
            for (tid, thread) in &ours {
                let pcs = |thread: &Thread| thread.frames.iter().map(|frame| frame.pc).collect::<Vec<_>>();
                assert_eq!(pcs(&from_core[tid]), pcs(thread), "{tid}");
            }
        }
        running.signal(Signal::CONT);
    }
    running.signal(Signal::KILL);
    assert!(whole > 0, "no stack is whole");
}
