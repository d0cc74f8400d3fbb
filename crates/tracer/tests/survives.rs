//! What is left of threads, signal handlers and forks, also of those that are killed.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{babeltrace2, events, example};

const TEXT: &str = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Checks every event, and that the numbers of each thread have no gap but what was discarded.
/// Returns the number of ticks.
fn check(directory: &Path) -> u64 {
    let (all, discarded) = events(directory);
    let mut next: BTreeMap<(PathBuf, u64), u64> = BTreeMap::new();
    let (mut ticks, mut missing) = (0, 0);
    for seen in &all {
        match seen.name.as_str() {
            "hammer:tick" => {
                let (thread, number) = (seen.number("thread"), seen.number("number"));
                assert_eq!(seen.number("check"), thread ^ number, "{seen:?}");
                assert_eq!(seen.text, TEXT[..((number + thread) % 60) as usize], "{seen:?}");
                let next = next.entry((seen.trace.clone(), thread)).or_default();
                assert!(number >= *next, "{seen:?} after {next}");
                missing += number - *next;
                *next = number + 1;
                ticks += 1;
            }
            "hammer:interrupt" => {
                let number = seen.number("number");
                assert_eq!(seen.number("twice"), number * 2, "{seen:?}");
                assert_eq!(seen.text, TEXT[..(number % 60) as usize], "{seen:?}");
            }
            _ => {}
        }
    }
    assert!(missing <= discarded, "{missing} missing, {discarded} discarded");
    ticks
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
    let (all, discarded) = events(&directory);
    let ticks = check(&directory);
    let interrupts = all.iter().filter(|seen| seen.name == "hammer:interrupt").count() as u64;
    // Four processes with eight threads each.
    assert!(
        ticks + discarded >= 4 * 8 * 2000 && ticks <= 4 * 8 * 2000,
        "{ticks} {discarded} {interrupts}"
    );
    if let Some(lines) = babeltrace2(&directory) {
        assert_eq!(lines.len(), all.len());
    }
}

#[test]
fn killed_processes_leave_every_finished_event() {
    for round in 0..4u64 {
        let scratch = backtrail_testkit::scratch();
        let directory = scratch.path().join("trace");
        let mut child = example("hammer")
            .arg(&directory)
            .args(["10000", "8", "2", "wait"])
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Wherever this finds them; the check does not depend on it.
        std::thread::sleep(Duration::from_millis(40 + round * 37));
        let group = format!("-{}", child.id());
        assert!(
            Command::new("kill")
                .args(["-KILL", "--", &group])
                .status()
                .unwrap()
                .success()
        );
        child.wait().unwrap();
        let before = std::fs::read_dir(&directory).map_or(0, Iterator::count);
        // Children that were not reaped by the killed parent end a moment later.
        let mut left = true;
        for _ in 0..200 {
            backtrail_tracer::collect::recover(&directory).unwrap();
            let names = std::fs::read_dir(&directory)
                .unwrap()
                .flatten()
                .map(|entry| entry.file_name());
            left = names.into_iter().any(|name| name.to_string_lossy().ends_with(".rings"));
            if !left {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(before == 0 || !left, "rings are left");
        check(&directory);
        if backtrail_trace::find_traces(&directory).is_ok() {
            babeltrace2(&directory);
        }
    }
}
