//! Recordings added to a store.

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_profile::Options;
use backtrail_recording::{Measured, Reader};
use backtrail_store::tables::{self, SAMPLES};
use backtrail_store::{Description, Resolution, SCHEMA, Store};
use backtrail_testkit::TempDir;

use crate::invented::{BEFORE_FIVE, Made, add, all_samples, record, record_measured, samples};

pub(crate) fn folder() -> TempDir {
    backtrail_testkit::scratch()
}

/// All files with their contents.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

/// A recording that begins a second before an hour does, with a sample each millisecond, and an
/// empty store.
fn recorded(samples: u64) -> (TempDir, PathBuf, Store) {
    let folder = folder();
    let trace = folder.path().join("trace");
    let made = Made {
        host: "a",
        begin: BEFORE_FIVE,
        samples,
    };
    record(&trace, made);
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    (folder, trace, store)
}

#[test]
fn every_sample_is_there_once_in_the_partition_of_its_hour() {
    let (_folder, trace, store) = recorded(3000);
    let added = add(&store, &trace, Resolution::Exact).unwrap();
    assert_eq!((added.samples, added.partitions, added.files), (3000, 2, 16));
    let partitions = store.partitions(&SAMPLES).unwrap();
    let hours: Vec<&str> = partitions.iter().map(|partition| partition.hour.as_str()).collect();
    assert_eq!(
        (partitions[0].date.as_str(), &hours[..]),
        ("2026-11-23", &["16", "17"][..])
    );
    assert_eq!(samples(&store, &partitions[0]).len(), 1000);
    let all = all_samples(&store);
    for (number, (host, time, tid, _, count)) in all.iter().enumerate() {
        let wanted = BEFORE_FIVE as i64 + number as i64 * 1_000_001;
        assert_eq!(
            (host.as_str(), *time, *tid, *count),
            ("a", wanted, 10 + number as i64 % 2, 1)
        );
    }
    let mut stacks: Vec<i64> = all.iter().map(|(.., stack, _)| *stack).collect();
    stacks.sort_unstable();
    stacks.dedup();
    // Three leaves with up to four callers, complete or not.
    assert_eq!(stacks.len(), 30);
    let checked = store.check().unwrap();
    assert_eq!(checked.findings, []);
    assert_eq!(checked.samples, 3000);
}

#[test]
fn the_same_recording_changes_nothing_and_a_part_is_completed() {
    let (_folder, trace, store) = recorded(2000);
    assert!(!add(&store, &trace, Resolution::Exact).unwrap().was_there);
    let before = contents(store.folder());
    assert!(add(&store, &trace, Resolution::Exact).unwrap().was_there);
    assert!(add(&store, &trace, Resolution::Minute).unwrap().was_there);
    assert_eq!(contents(store.folder()), before);
    // What an attempt leaves that ends before any of the files.
    for (path, _) in &before {
        if path.file_name().is_some_and(|name| name == SCHEMA) {
            continue;
        }
        fs::remove_file(path).unwrap();
        let mut removed = 1;
        // Labels are written before what they are of.
        if path.strip_prefix(store.folder()).unwrap().starts_with("labels") {
            let file = path.strip_prefix(store.folder().join("labels")).unwrap();
            fs::remove_file(store.folder().join("recordings").join(file)).unwrap();
            removed = 2;
        }
        let added = add(&store, &trace, Resolution::Exact).unwrap();
        assert_eq!(added.files, removed, "{path:?}");
        assert_eq!(contents(store.folder()), before, "{path:?}");
    }
}

#[test]
fn a_recording_without_labels_gets_none_later() {
    let (_folder, trace, store) = recorded(100);
    let description = Description {
        service: "shop".to_owned(),
        host: "a".to_owned(),
        labels: Vec::new(),
        resolution: Resolution::Exact,
    };
    let mut reader = Reader::open(&trace).unwrap();
    store.add(&mut reader, &description, Options::default()).unwrap();
    let before = contents(store.folder());
    // Samples have their version in a column, which would stay empty.
    assert!(add(&store, &trace, Resolution::Exact).unwrap().was_there);
    assert_eq!(contents(store.folder()), before);
}

#[test]
fn waits_are_named_that_are_not_added() {
    let folder = folder();
    let trace = folder.path().join("trace");
    let made = Made {
        host: "a",
        begin: BEFORE_FIVE,
        samples: 100,
    };
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let note = "waits are not added: a store has samples of time on the CPU";
    record(&trace, made);
    let added = add(&store, &trace, Resolution::Exact).unwrap();
    assert!(!added.notes.iter().any(|other| other == note));
    let waits = folder.path().join("waits");
    record_measured(&waits, made, Measured::Wall);
    let added = add(&store, &waits, Resolution::Exact).unwrap();
    assert_eq!(added.samples, 50);
    assert!(added.notes.iter().any(|other| other == note), "{:?}", added.notes);
}

#[test]
fn minutes_have_all_samples_in_fewer_rows() {
    let (_folder, trace, store) = recorded(5000);
    add(&store, &trace, Resolution::Minute).unwrap();
    let all = all_samples(&store);
    assert_eq!(all.iter().map(|(.., count)| count).sum::<i64>(), 5000);
    // Thirty stacks of two threads, in two minutes; an odd number belongs to one thread.
    assert!(all.len() <= 120, "{}", all.len());
    assert!(
        all.iter()
            .all(|(_, time, tid, ..)| time % 60_000_000_000 == 0 && *tid == 0)
    );
    assert_eq!(store.check().unwrap().findings, []);
}

#[test]
fn wrong_clocks_lose_nothing() {
    let folder = folder();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let century = 100 * 365 * 86_400 * 1_000_000_000_u64;
    for (number, begin) in [0, century, 2 * century].into_iter().enumerate() {
        let trace = folder.path().join(format!("trace{number}"));
        record(
            &trace,
            Made {
                host: "a",
                begin,
                samples: 10,
            },
        );
        assert_eq!(add(&store, &trace, Resolution::Exact).unwrap().samples, 10);
    }
    assert_eq!(all_samples(&store).len(), 30);
    assert_eq!(store.check().unwrap().findings, []);
}

#[test]
fn writers_need_not_agree() {
    let folder = folder();
    let path = folder.path().join("store");
    let traces: Vec<PathBuf> = (0..6_u64)
        .map(|number| {
            let trace = folder.path().join(format!("trace{number}"));
            let host = ["a", "b", "c"][number as usize % 3];
            record(
                &trace,
                Made {
                    host,
                    begin: BEFORE_FIVE + number * 1_000,
                    samples: 500,
                },
            );
            trace
        })
        .collect();
    // Each recording by four writers at once, into a store that is new to all of them.
    std::thread::scope(|scope| {
        for trace in traces.iter().cycle().take(24) {
            scope.spawn(|| {
                let store = Store::open_or_create(&path).unwrap();
                add(&store, trace, Resolution::Exact).unwrap();
            });
        }
    });
    let store = Store::open(&path).unwrap();
    let all = all_samples(&store);
    assert_eq!(all.len(), 3000);
    assert!(all.windows(2).all(|two| two[0] != two[1]));
    assert_eq!(store.check().unwrap().findings, []);
    // The stacks of all are the same, as are their ids.
    let mut stacks: Vec<i64> = all.iter().map(|(.., stack, _)| *stack).collect();
    stacks.sort_unstable();
    stacks.dedup();
    assert_eq!(stacks.len(), 30);
    let is_used = |table: &&tables::Table| !["crashes", "named_stacks"].contains(&table.name);
    for table in tables::ALL.into_iter().filter(is_used) {
        assert!(!store.partitions(table).unwrap().is_empty(), "{}", table.name);
    }
}
