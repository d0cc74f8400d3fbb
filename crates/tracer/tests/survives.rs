//! What is left of threads, signal handlers and forks, also of those that are killed.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backtrail_testkit::mounted::Mounted;
use backtrail_trace::{Options, Trace, find_traces};

use crate::common::{babeltrace2, example};

const TEXT: &str = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What was found below a directory.
#[derive(Debug, Default)]
struct Found {
    ticks: u64,
    /// Numbers that are not there, between others that are.
    missing: u64,
    discarded: u64,
    all: u64,
}

/// Checks every event, and that the numbers of each thread have no gap but what was discarded.
fn check(directory: &Path) -> Found {
    let mut found = Found::default();
    // None, if the program was killed before its first event.
    for trace in find_traces(directory).unwrap_or_default() {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let opened = Trace::open(&trace).unwrap();
        for index in 0..opened.streams().len() {
            let mut stream = opened.stream(index, Options::default()).unwrap();
            let mut last = i64::MIN;
            while let Some(event) = stream.next().unwrap() {
                found.all += 1;
                let time = event.time().unwrap();
                assert!(time >= last, "time goes back");
                last = time;
                let number = |name: &str| event.field(name).and_then(|value| value.as_u64()).unwrap();
                let text = || event.field("text").and_then(|value| value.as_str()).unwrap();
                match event.name() {
                    "hammer:tick" => {
                        let (thread, number, check) = (number("thread"), number("number"), number("check"));
                        assert_eq!(check, thread ^ number);
                        assert_eq!(text(), &TEXT[..((number + thread) % 60) as usize]);
                        let next = next.entry(thread).or_default();
                        assert!(number >= *next, "{number} of {thread} after {next}");
                        found.missing += number - *next;
                        *next = number + 1;
                        found.ticks += 1;
                    }
                    "hammer:interrupt" => {
                        let value = number("number");
                        assert_eq!(number("twice"), value * 2);
                        assert_eq!(text(), &TEXT[..(value % 60) as usize]);
                    }
                    _ => {}
                }
            }
            found.discarded += stream.statistics().discarded;
        }
    }
    assert!(found.missing <= found.discarded, "{found:?}");
    found
}

#[test]
fn threads_handlers_and_forks_lose_nothing_uncounted() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let run = example("hammer")
        .arg(&directory)
        .args(["2000", "8", "3"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let found = check(&directory);
    // Four processes with eight threads each.
    let ticks = 4 * 8 * 2000;
    assert!(
        found.ticks + found.discarded >= ticks && found.ticks <= ticks,
        "{found:?}"
    );
    if let Some(lines) = babeltrace2(&directory) {
        assert_eq!(lines.len() as u64, found.all);
    }
}

#[test]
fn killed_processes_leave_every_finished_event() {
    for round in 0..4 {
        let scratch = backtrail_testkit::scratch();
        let directory = scratch.path().join("trace");
        // Wherever this finds them; the check does not depend on it.
        killed(&directory, "10000", Duration::from_millis(40 + round * 37));
        check(&directory);
        if find_traces(&directory).is_ok() {
            babeltrace2(&directory);
        }
    }
}

/// Kills the program and its children after some time, and recovers what they leave.
fn killed(directory: &Path, events: &str, time: Duration) {
    let mut child = example("hammer")
        .arg(directory)
        .args([events, "8", "2", "wait"])
        .process_group(0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(time);
    let group = format!("-{}", child.id());
    assert!(
        Command::new("kill")
            .args(["-KILL", "--", &group])
            .status()
            .unwrap()
            .success()
    );
    child.wait().unwrap();
    if !directory.exists() {
        return;
    }
    // Children that were not reaped by the killed parent end a moment later.
    for _ in 0..500 {
        backtrail_tracer::collect::recover(directory).unwrap();
        let names = std::fs::read_dir(directory)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name());
        if !names.into_iter().any(|name| name.to_string_lossy().ends_with(".rings")) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("rings are left");
}

/// `cargo test --release -p backtrail-tracer -- --ignored a_hundred_million --nocapture`;
/// `BACKTRAIL_EVENTS` is another number.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_million_events() {
    let wanted = std::env::var("BACKTRAIL_EVENTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(100_000_000u64);
    let (mut ticks, mut discarded, mut kills, mut rounds) = (0, 0, 0, 0u64);
    while ticks < wanted {
        let scratch = backtrail_testkit::scratch();
        let directory = scratch.path().join("trace");
        if rounds % 2 == 0 {
            killed(&directory, "300000", Duration::from_millis(30 + rounds * 7919 % 700));
            kills += 1;
        } else {
            let run = example("hammer")
                .arg(&directory)
                .args(["300000", "8", "2"])
                .output()
                .unwrap();
            assert!(run.status.success(), "{run:?}");
        }
        let found = check(&directory);
        if rounds % 2 == 1 {
            assert!(found.ticks + found.discarded >= 3 * 8 * 300_000, "{found:?}");
        }
        ticks += found.ticks;
        discarded += found.discarded;
        rounds += 1;
    }
    println!("{ticks} events, {discarded} discarded and counted, {kills} of {rounds} programs killed");
}

/// Its caller chooses the environment: it could have root make and remove files anywhere.
#[test]
fn programs_with_more_rights_than_their_caller_do_not_let_it_choose_the_folder() {
    let scratch = backtrail_testkit::scratch();
    let place = |name: &str| scratch.path().join(name);
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(example("hammer").get_program(), place("hammer")).unwrap();
    std::fs::set_permissions(place("hammer"), Permissions::from_mode(0o4755)).unwrap();
    let run = Command::new("setpriv")
        .args(["--reuid", "65533", "--clear-groups"])
        .arg(place("hammer"))
        .arg(place("own"))
        .args(["10", "1", "0"])
        .env("BACKTRAIL_TRACE", place("chosen"))
        .output()
        .unwrap();
    // Only root can run a program as another user, and files of others.
    if run.status.success() && place("own").is_dir() {
        assert!(!place("chosen").exists());
        let mode = std::fs::metadata(place("own")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    } else {
        assert!(!place("chosen").exists(), "{run:?}");
    }
}

/// The program that it runs next may record into the same directory.
#[test]
fn what_a_program_has_recorded_before_an_exec_is_there() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let run = example("hammer")
        .arg(&directory)
        .args(["3000", "2", "0", "exec"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let found = check(&directory);
    assert_eq!((found.ticks, found.missing), (2 * 2 * 3000, 0), "{found:?}");
}

/// A store into memory for which the file system has no room would end the program by SIGBUS. A
/// refusal takes so long that the program could not ask with each event.
#[test]
fn a_full_file_system_loses_events_and_not_the_program() {
    let scratch = backtrail_testkit::scratch();
    let mut with_events = 0;
    for (index, kilobytes) in [64, 300, 800, 1200, 1700, 2500, 4000, 8000, 64_000].iter().enumerate() {
        let path = scratch.path().join(index.to_string());
        let Some(disk) = Mounted::tmpfs(&path, &format!("{kilobytes}k")) else {
            return;
        };
        let run = example("hammer")
            .arg(disk.path().join("trace"))
            .args(["50000", "8", "3"])
            .output()
            .unwrap();
        let found = check(disk.path());
        let said = String::from_utf8_lossy(&run.stderr);
        match run.status.code() {
            Some(0) => with_events += u64::from(found.ticks > 0),
            Some(1) => assert!(said.contains("No space left"), "{said}"),
            _ => panic!("{kilobytes}: {run:?}"),
        }
    }
    assert!(with_events > 0);
}
