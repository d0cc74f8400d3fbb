//! Flight recorders, switches, crashes, and programs that reach the limits of their rings.

use crate::common::{babeltrace2, events, example};

fn run(what: &str, directory: &std::path::Path) -> std::process::Output {
    example("modes").arg(what).arg(directory).output().unwrap()
}

fn values(directory: &std::path::Path) -> Vec<u64> {
    events(directory).0.iter().map(|seen| seen.number("value")).collect()
}

#[test]
fn a_snapshot_has_the_newest_events() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("snapshot");
    let output = run("snapshot", &directory);
    assert!(output.status.success(), "{output:?}");
    let values = values(&directory);
    // Two of its four packets of 4,096 bytes are whole at least, with 16 bytes an event.
    assert!(values.len() > 2 * 250 && values.len() < 4 * 256, "{}", values.len());
    assert_eq!(*values.last().unwrap(), 9_999);
    assert!(values.windows(2).all(|pair| pair[1] == pair[0] + 1));
    babeltrace2(&directory);
}

#[test]
fn snapshots_while_events_go_on_are_whole() {
    let scratch = backtrail_testkit::scratch();
    let output = run("snapshots", scratch.path());
    assert!(output.status.success(), "{output:?}");
    for number in 0..=20 {
        let (all, _) = events(&scratch.path().join(number.to_string()));
        // A thread that is not scheduled in the middle of a packet may find it overwritten each
        // time. The last one was made when the writers had ended.
        assert!(number < 20 || !all.is_empty());
        let mut last: [Option<u64>; 2] = [None; 2];
        for seen in all {
            let (thread, value) = (seen.number("thread") as usize, seen.number("value"));
            assert_eq!(seen.number("check"), value ^ 0x5555_5555, "{seen:?}");
            let before = last[thread].replace(value);
            assert!(before.is_none_or(|before| before < value), "{seen:?} {before:?}");
        }
    }
}

#[test]
fn a_crash_leaves_a_snapshot() {
    let scratch = backtrail_testkit::scratch();
    let file = scratch.path().join("crash");
    let output = run("crash", &file);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    backtrail_tracer::collect::recover(&file).unwrap();
    let values = values(&scratch.path().join("crash.trace"));
    assert_eq!(values.last(), Some(&99));
}

#[test]
fn switches_and_levels() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let output = run("switch", &directory);
    assert!(output.status.success(), "{output:?}");
    // Debug is off by the first rule, everything by the second, and only `modes:late` is on at
    // last.
    assert_eq!(values(&directory), [1, 5]);
}

#[test]
fn a_full_ring_discards_and_counts() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let output = run("full", &directory);
    assert!(output.status.success(), "{output:?}");
    let (all, discarded) = events(&directory);
    assert_eq!(all.len() as u64 + discarded, 100_002);
    // One is larger than any packet.
    assert!(discarded >= 1, "{discarded}");
}

#[test]
fn threads_that_end_leave_their_rings() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let output = run("many", &directory);
    assert!(output.status.success(), "{output:?}");
    let (all, discarded) = events(&directory);
    let mut values: Vec<u64> = all.iter().map(|seen| seen.number("value")).collect();
    values.sort_unstable();
    values.dedup();
    // Each thread begins a packet, so the few rings may be full.
    assert_eq!(values.len(), all.len());
    assert_eq!(all.len() as u64 + discarded, 300);
}

#[test]
fn threads_that_end_share_all_rings() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let output = run("newest", &directory);
    assert!(output.status.success(), "{output:?}");
    let mut values = values(&directory);
    values.sort_unstable();
    // Four rings of four packets, of which one may be in use; a packet is one thread's.
    assert!(values.len() >= 4 * 3, "{values:?}");
    assert_eq!(values, (80 - values.len() as u64..80).collect::<Vec<u64>>());
}
