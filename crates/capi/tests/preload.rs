//! The drop-in in real programs that call `backtrace(3)` when they crash: they must print the same
//! frames as with glibc.

use crate::common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::{Missing, available, scratch, skip};
use common::preload;

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
