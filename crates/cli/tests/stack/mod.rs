//! What the tests of stacks share.
// Every test file is a crate of its own, and none uses all of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::TempDir;
use backtrail_testkit::command::{self, Finished, Running};
use backtrail_testkit::debugger::GdbFrame;
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A frame as `backtrail stack --json` has it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) pc: u64,
    pub(crate) function: String,
    pub(crate) inlined: bool,
    pub(crate) how: String,
    pub(crate) value: Value,
}

/// A thread of it.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) name: Option<String>,
    pub(crate) stop: String,
    pub(crate) frames: Vec<Frame>,
}

pub(crate) fn stack(arguments: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(command.arg("stack").args(arguments), LIMIT).expect("the binary is there")
}

/// Starts a program and waits until it says that it is ready.
pub(crate) fn parked(program: &Path, arguments: &[&str]) -> Running {
    let running = command::start(Command::new(program).args(arguments), LIMIT).expect("it was just built");
    assert!(running.wait_at_rest("ready"), "{program:?} is not ready");
    running
}

/// The threads of a document.
pub(crate) fn threads(finished: &Finished) -> BTreeMap<u32, Thread> {
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let document: Value = serde_json::from_str(&finished.stdout).expect("it prints JSON");
    let threads = document["threads"].as_array().expect("threads");
    threads.iter().map(thread).collect()
}

pub(crate) fn thread(value: &Value) -> (u32, Thread) {
    let frames = value["frames"].as_array().expect("frames").iter().map(|frame| Frame {
        pc: hexadecimal(frame["pc"].as_str().expect("an address")),
        function: frame["function"].as_str().expect("a function").to_owned(),
        inlined: frame["inlined"].as_bool().expect("a truth"),
        how: frame["how"].as_str().expect("how").to_owned(),
        value: frame.clone(),
    });
    let thread = Thread {
        name: value["name"].as_str().map(str::to_owned),
        stop: value["stop"].as_str().expect("why it ends").to_owned(),
        frames: frames.collect(),
    };
    (value["tid"].as_u64().expect("a number") as u32, thread)
}

/// The functions of each thread, the innermost first; every stack must be whole.
pub(crate) fn chains(threads: &BTreeMap<u32, Thread>) -> Vec<Vec<&str>> {
    let chains = threads.values().map(|thread| {
        assert_eq!(thread.stop, "end_of_stack", "{thread:?}");
        let functions = thread.frames.iter().map(|frame| frame.function.as_str());
        functions.collect()
    });
    chains.collect()
}

/// Settings of an nginx that serves nobody, in one process that stays in the foreground: their
/// path, in `folder`.
pub(crate) fn nginx_settings(folder: &TempDir) -> String {
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let settings = format!(
        "events{{}}\ndaemon off;\nmaster_process off;\npid {};\nerror_log {};\nhttp{{server{{listen unix:{};}}}}\n",
        path("pid"),
        path("log"),
        path("nginx.sock")
    );
    std::fs::write(path("nginx.conf"), settings).expect("a scratch folder");
    path("nginx.conf")
}

fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").expect("hexadecimal"), 16).expect("a number")
}

/// Fails unless both have the same threads with the same frames: their addresses, and the
/// functions' names, where gdb has any; inlined calls too, unless `without_inlined` says why not.
pub(crate) fn same(ours: &BTreeMap<u32, Thread>, gdb: &BTreeMap<u32, Vec<GdbFrame>>, what: &str) {
    let tids: Vec<&u32> = ours.keys().collect();
    assert_eq!(tids, gdb.keys().collect::<Vec<_>>(), "{what}: other threads");
    let mut frames = 0;
    for (tid, thread) in ours {
        let theirs = &gdb[tid];
        let describe = || {
            let ours: Vec<String> = thread
                .frames
                .iter()
                .map(|frame| format!("{:#x} {}", frame.pc, frame.function))
                .collect();
            let theirs: Vec<String> = theirs
                .iter()
                .map(|frame| format!("{:#x} {:?}", frame.pc, frame.function))
                .collect();
            format!(
                "{what}, thread {tid} ({}):\n{}\ngdb:\n{}",
                thread.stop,
                ours.join("\n"),
                theirs.join("\n")
            )
        };
        assert_eq!(thread.stop, "end_of_stack", "{}", describe());
        assert_eq!(thread.frames.len(), theirs.len(), "{}", describe());
        for (our, their) in thread.frames.iter().zip(theirs) {
            frames += 1;
            assert_eq!(our.inlined, their.inlined, "{}", describe());
            // gdb reports an inlined call's own place.
            assert!(our.inlined || our.pc == their.pc, "{}", describe());
            if let Some(function) = &their.function {
                assert!(alike(&our.function, function), "{function}: {}", describe());
            }
        }
    }
    println!("{what}: {} threads, {frames} frames as gdb has them", ours.len());
}

/// Whether two names are of one function. gdb leaves out C++ parameters, keeps hashes of Rust's
/// symbols, and chooses another one of the names that a C library's function has.
fn alike(ours: &str, theirs: &str) -> bool {
    let plain = |name: &str| {
        let name = name
            .split_once('@')
            .map_or(name, |(name, _)| name)
            .replace("_IO_new_", "")
            .replace("_IO_", "");
        name.trim_start_matches("__GI_")
            .trim_start_matches('_')
            .trim_start_matches("libc_")
            .to_owned()
    };
    let (ours, theirs) = (plain(ours), plain(theirs));
    ours == theirs
        || ours.starts_with(&theirs)
        || theirs.starts_with(&ours)
        || (theirs.contains("::") && last_name(&ours) == last_name(&theirs))
}

/// What a Rust function is called, without its path, its parameters and a closure's number: the two
/// name types in other ways.
fn last_name(name: &str) -> String {
    let mut depth = 0;
    let mut plain = String::new();
    for c in name.chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let last = plain.rsplit("::").find(|part| !part.is_empty()).unwrap_or_default();
    let last = last.trim_start_matches(['{', '_']);
    last.split(['#', '}', '{', '.']).next().unwrap_or_default().to_owned()
}

/// The states of a process's threads (proc(5)).
pub(crate) fn states(pid: u32) -> Vec<char> {
    let mut states = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let state = stat
            .rfind(')')
            .and_then(|at| stat[at + 1..].trim_start().chars().next());
        states.extend(state);
    }
    states
}
