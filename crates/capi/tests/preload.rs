//! The drop-in in real programs that call `backtrace(3)` when they crash: they must print the same
//! frames as with glibc.

use crate::common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished, Signal};
use backtrail_testkit::{Missing, available, scratch, skip};
use common::{Link, Program, compile, libraries, preload};

const FIFO: &str = "fifo";
const LIMIT: Duration = Duration::from_secs(60);

/// Frames as glibc's `backtrace_symbols` and LLVM print them: module and offset, or function and
/// offset, without parts that differ between runs.
fn frames(text: &str) -> Vec<String> {
    let inside = |line: &str| {
        let (_, place) = line.split_once('(')?;
        let (place, _) = place.split_once(')')?;
        let at = place.find("+0x")?;
        let offset = &place[at..];
        let name = place[..at].rsplit('/').next().unwrap_or_default();
        Some(format!("{name}{offset}"))
    };
    text.lines().filter_map(inside).collect()
}

/// Starts a program, waits until it sleeps, kills it with a fault, and returns the frames that it
/// prints.
fn crash(program: &str, arguments: &[&Path], preload: Option<&Path>) -> Result<Vec<String>, Missing> {
    let mut start = Command::new(program);
    start.args(arguments);
    if let Some(library) = preload {
        start.env("LD_PRELOAD", library);
    }
    let running = command::start(&mut start, LIMIT)?;
    let mut asleep = 0;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(50));
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap_or_default();
        let sleeps = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
        asleep = if sleeps { asleep + 1 } else { 0 };
        // It may sleep briefly while it starts.
        if asleep > 10 {
            break;
        }
    }
    running.signal(Signal::SEGV);
    // Who only prints and goes on finds nothing in its file, and ends.
    let fifo = arguments.last().filter(|path| path.ends_with(FIFO));
    for fifo in fifo.into_iter().cycle().take(300) {
        if !is_alive(running.pid()) {
            break;
        }
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(fifo);
        std::thread::sleep(Duration::from_millis(50));
        drop(opened);
        std::thread::sleep(Duration::from_millis(50));
    }
    let finished = running.finish();
    Ok(frames(&[finished.stdout, finished.stderr].concat()))
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Compares both; reports a skip if the program is not installed.
fn same_frames(program: &str, arguments: &[&Path], least: usize) {
    let library = preload();
    let both =
        crash(program, arguments, None).and_then(|glibc| Ok((glibc, crash(program, arguments, Some(&library))?)));
    let Some((glibc, ours)) = available(both) else { return };
    if glibc.is_empty() {
        return skip(format!("{program} prints no backtrace of itself here"));
    }
    assert!(glibc.len() >= least, "{glibc:?}");
    assert_eq!(ours, glibc, "{program}");
}

/// A pipe without a writer: opening it blocks.
fn fifo(folder: &Path) -> Option<std::path::PathBuf> {
    let path = folder.join(FIFO);
    let made = available(command::run(Command::new("mkfifo").arg(&path), LIMIT))?;
    made.status.success().then_some(path)
}

#[test]
fn redis() {
    let folder = scratch();
    let socket = folder.path().join("socket");
    let arguments = ["--port", "0", "--save", "", "--dir"].map(Path::new);
    let more = [folder.path(), Path::new("--unixsocket"), &socket];
    same_frames("redis-server", &[&arguments[..], &more[..]].concat(), 6);
}

#[test]
fn zstd() {
    let folder = scratch();
    let Some(fifo) = fifo(folder.path()) else { return };
    same_frames("zstd", &[Path::new("-q"), Path::new("-c"), &fifo], 4);
}

#[test]
fn llvm() {
    let folder = scratch();
    let Some(fifo) = fifo(folder.path()) else { return };
    same_frames("yaml2obj-14", &[&fifo], 4);
}

#[test]
fn frames_of_either_print() {
    let glibc = "/lib/libc.so.6(epoll_wait+0x56)[0x7f05cb126f36]\nredis-server unixsocket:/tmp/x.sock(+0x64e51)[0x55d3cc7d5e51]\nEIP:\n";
    assert_eq!(frames(glibc), ["epoll_wait+0x56", "+0x64e51"]);
    let llvm =
        " #3 0x00007f2696e5a050 (/lib/x86_64-linux-gnu/libc.so.6+0x3c050)\n #4 0x00007f26 __read ./io/read.c:26:10\n";
    assert_eq!(frames(llvm), ["libc.so.6+0x3c050"]);
}

const OWN_ALLOCATOR: &[&str] = &["-D_GNU_SOURCE", "-Wno-deprecated-declarations"];

fn preloaded(program: &Program, arguments: &[&str], library: &str, report: &Path) -> Finished {
    let mut run = Command::new(&program.path);
    run.args(arguments)
        .env("LD_PRELOAD", libraries().join(library))
        .env("BACKTRAIL_CRASH", report);
    command::run(&mut run, LIMIT).expect("it was just built")
}

/// GCL's, as Maxima shows: before `main`, its `realloc` crashes.
#[test]
fn an_allocator_that_is_not_ready_is_not_used() {
    let Some(program) = compile("own_allocator.c", OWN_ALLOCATOR, Link::Not) else {
        return;
    };
    let report = program.folder.path().join("report");
    for library in ["libbacktrail_preload.so", "libbacktrail_unwind.so"] {
        let finished = preloaded(&program, &[], library, &report);
        assert_eq!(finished.stdout, "1\n", "{library}: {}", finished.describe());
    }
}

/// A program's first `dlerror` says nothing of what our libraries did not find.
#[test]
fn look_ups_at_the_start_leave_no_message() {
    let Some(program) = compile("first_error.c", &[], Link::Not) else {
        return;
    };
    let report = program.folder.path().join("report");
    for library in ["libbacktrail_preload.so", "libbacktrail_unwind.so"] {
        let finished = preloaded(&program, &[], library, &report);
        assert_eq!(finished.stdout, "none\n", "{library}: {}", finished.describe());
    }
}

/// Programs restore default actions at their start or in their last handlers, and daemons close
/// all descriptors; the report's number may then be a file of theirs. They block all signals, in a
/// thread, in a handler, or before they start another program.
#[test]
fn default_actions_blocked_signals_and_closed_descriptors_lose_no_report() {
    let Some(program) = compile("own_allocator.c", OWN_ALLOCATOR, Link::Not) else {
        return;
    };
    for how in [
        "default",
        "set",
        "action",
        "handler",
        "once",
        "once-sysv",
        "closed",
        "reused",
        "blocked",
        "thread",
        "masked",
        "inherited",
    ] {
        let [report, own] = ["report", "own"].map(|file| program.folder.path().join(format!("{how}.{file}")));
        let arguments = [how, own.to_str().expect("a plain path")];
        let finished = preloaded(&program, &arguments, "libbacktrail_preload.so", &report);
        assert_eq!(finished.status.signal(), Some(11), "{how}: {}", finished.describe());
        let text = std::fs::read_to_string(&report).expect("it was created");
        assert_eq!(text.matches("crash: SIGSEGV").count(), 1, "{how}: {text}");
        assert!(text.contains("end: the outermost frame"), "{how}: {text}");
        assert!(
            text.lines().filter(|line| line.starts_with('#')).count() >= 5,
            "{how}: {text}"
        );
        assert!(std::fs::read(&own).unwrap_or_default().is_empty(), "{how}");
    }
}
