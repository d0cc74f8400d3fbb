//! `backtrail stack` of code that a program announces to debuggers, beside gdb, which reads the
//! same list; and of lists that are wrong.
#![cfg(target_arch = "x86_64")]

use crate::stack;

use std::ffi::OsStr;

use backtrail_testkit::command::{Running, Signal};
use backtrail_testkit::{available, debugger, program, scratch};

use stack::{Thread, parked, same, stack, threads};

/// The program, which waits in a function that announced code has called.
fn announced(what: &str) -> Option<Running> {
    let built = available(program::ANNOUNCED.build())?;
    Some(parked(&built, &[what]))
}

/// The stack of its thread.
fn thread(what: &str) -> Option<Thread> {
    let running = announced(what)?;
    let finished = stack(&[&running.pid().to_string(), "--json"]);
    running.signal(Signal::KILL);
    threads(&finished).into_values().next()
}

/// Its functions from the one that the announced code has called on.
fn functions(thread: &Thread) -> Vec<&str> {
    let functions = thread.frames.iter().map(|frame| frame.function.as_str());
    functions.skip_while(|function| *function != "leaf").collect()
}

#[test]
fn frames_are_those_that_gdb_finds() {
    let Some(running) = announced("good") else { return };
    let pid = running.pid().to_string();
    let ours = threads(&stack(&[&pid, "--json"]));
    let thread = ours.values().next().expect("a thread");
    assert_eq!(
        functions(thread)[..4],
        ["leaf", "announced_body", "enter", "main"],
        "{thread:?}"
    );
    let enter = thread.frames.iter().find(|frame| frame.function == "enter");
    assert_eq!(enter.expect("it was found").how, "eh_frame");
    if let Some(gdb) = available(debugger::gdb(&[OsStr::new("-p"), OsStr::new(&pid)])) {
        same(&ours, &gdb, "announced code");
    }
    let folder = scratch();
    let core = folder.path().join("core");
    if available(debugger::gcore(running.pid(), &core)).is_some() {
        let of_core = threads(&stack(&[core.to_str().expect("text"), "--json"]));
        let built = available(program::ANNOUNCED.build()).expect("it was built before");
        if let Some(gdb) = available(debugger::gdb(&[built.as_os_str(), core.as_os_str()])) {
            same(&of_core, &gdb, "announced code in a core");
        }
    }
    running.signal(Signal::KILL);
}

#[test]
fn a_damaged_list_is_read_as_far_as_it_makes_sense() {
    for what in ["ring", "huge", "nonsense"] {
        let Some(thread) = thread(what) else { return };
        assert_eq!(thread.stop, "end_of_stack", "{what}: {thread:?}");
        assert_eq!(functions(&thread)[..3], ["leaf", "announced_body", "enter"], "{what}");
    }
}

/// Too many entries, a version that is not known, a frame that has another size: the stack ends
/// where nothing else is known, and no frame is made up.
#[test]
fn what_a_list_claims_wrongly_gives_no_frames() {
    for what in ["many", "version", "lie"] {
        let Some(thread) = thread(what) else { return };
        assert_ne!(thread.stop, "end_of_stack", "{what}: {thread:?}");
        assert_eq!(functions(&thread).len(), 2, "{what}: {thread:?}");
    }
}
