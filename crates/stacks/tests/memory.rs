//! Memory that is in a core's files but not in the core, and the reverse.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use backtrail_elf::core::Core;
use backtrail_process::{core, live};
use backtrail_stacks::{Looker, Options, input};
use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::debugger::gcore;
use backtrail_testkit::{TempDir, available, program, scratch};

/// A program that waits, and gdb's core of it with the kinds of memory that this filter selects
/// (`core(5)`).
fn parked(folder: &TempDir, filter: &str) -> Option<(Running, PathBuf)> {
    let built = available(program::PARKED.build())?;
    let running = command::start(Command::new(built).arg("1"), Duration::from_secs(60)).expect("it was just built");
    assert!(running.wait_at_rest("ready"));
    std::fs::write(format!("/proc/{}/coredump_filter", running.pid()), filter).expect("it is ours");
    let path = folder.path().join("gcore");
    available(gcore(running.pid(), &path))?;
    Some((running, path))
}

#[test]
fn what_a_core_leaves_out_is_read_from_files() {
    let folder = scratch();
    // Without ELF headers: gdb writes the whole mapping that begins with one, and on AArch64 that
    // is the code.
    let filter = if cfg!(target_arch = "aarch64") { "0x23" } else { "0x33" };
    let Some((running, path)) = parked(&folder, filter) else {
        return;
    };
    let (snapshot, hold) = live::capture(running.pid(), false).expect("it may be traced");
    drop(hold);
    let input = input::open(&path).expect("it was just written");
    let core = Core::parse(input.file.bytes()).expect("a core");
    let from_core = core::snapshot(&core);
    let mut looker = Looker::new(Options::default());
    let process = looker.stacks(&from_core);
    let mut left_out = 0;
    for frame in process.threads.iter().flat_map(|thread| &thread.frames) {
        let (mut then, mut now) = ([0; 64], [0; 64]);
        assert_eq!(snapshot.read(frame.address, &mut then), then.len());
        left_out += usize::from(from_core.read(frame.address, &mut now) == 0);
        assert_eq!(looker.read(&from_core, frame.address, &mut now), now.len());
        assert_eq!(then, now, "{frame:x?}");
    }
    assert!(left_out > 0, "this core has all code: nothing was shown");
    running.signal(Signal::KILL);
}

#[test]
fn modules_without_a_file_have_the_names_that_lie_in_memory() {
    let folder = scratch();
    let Some((running, path)) = parked(&folder, "0xff") else {
        return;
    };
    let input = input::open(&path).expect("it was just written");
    let core = Core::parse(input.file.bytes()).expect("a core");
    let mut snapshot = core::snapshot(&core);
    for mapping in snapshot
        .mappings
        .iter_mut()
        .filter(|mapping| mapping.path.starts_with('/'))
    {
        mapping.path.insert_str(0, "/none");
    }
    let mut looker = Looker::new(Options::default());
    let process = looker.stacks(&snapshot);
    let named = looker.names(&process);
    for thread in &named {
        assert_eq!(thread.end, backtrail_stacks::End::COMPLETE, "{thread:?}");
        let is_libc = |module: &str| module.starts_with("libc.so");
        let of_libc: Vec<&str> = thread
            .frames
            .iter()
            .filter(|frame| is_libc(&frame.module))
            .map(|frame| frame.function.as_str())
            .collect();
        assert!(
            of_libc.iter().any(|name| ["read", "__read", "pthread_cond_wait"]
                .iter()
                .any(|known| name.starts_with(known))),
            "{of_libc:?}"
        );
    }
    running.signal(Signal::KILL);
}
