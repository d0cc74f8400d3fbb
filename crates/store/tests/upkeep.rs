//! Stores that are compacted, checked and damaged.

use std::fs;

use backtrail_store::tables::{self, SAMPLES, STACKS};
use backtrail_store::{Resolution, Store, StoreError, TableReader};

use crate::add::{contents, folder};
use crate::invented::{BEFORE_FIVE, Made, add, all_samples, record};

/// A store of three recordings, one of which is of an hour before.
fn filled(folder: &std::path::Path) -> Store {
    let store = Store::open_or_create(&folder.join("store")).unwrap();
    for (number, host) in ["a", "b", "a"].into_iter().enumerate() {
        let trace = folder.join(format!("trace{number}"));
        let begin = BEFORE_FIVE + number as u64 * 2_000_000_000;
        record(
            &trace,
            Made {
                host,
                begin,
                samples: 1500,
            },
        );
        add(&store, &trace, Resolution::Exact).unwrap();
    }
    store
}

#[test]
fn compaction_keeps_every_row_and_what_is_added_again() {
    let folder = folder();
    let store = filled(folder.path());
    let before = all_samples(&store);
    let compacted = store.compact().unwrap();
    assert!(compacted.partitions > 0 && compacted.duplicates > 0, "{compacted:?}");
    assert!(compacted.bytes_after < compacted.bytes_before, "{compacted:?}");
    assert_eq!(all_samples(&store), before);
    for table in tables::ALL {
        for partition in store.partitions(table).unwrap() {
            assert_eq!(
                store.files(table, &partition).unwrap().len(),
                1,
                "{} {partition:?}",
                table.name
            );
        }
    }
    assert_eq!(store.check().unwrap().findings, []);
    let merged = contents(store.folder());
    for number in 0..3 {
        let trace = folder.path().join(format!("trace{number}"));
        assert!(add(&store, &trace, Resolution::Exact).unwrap().was_there);
    }
    assert_eq!(store.compact().unwrap().partitions, 0);
    assert_eq!(contents(store.folder()), merged);
}

#[test]
fn a_killed_compaction_is_completed() {
    let folder = folder();
    let store = filled(folder.path());
    let before = all_samples(&store);
    let partitions = store.partitions(&SAMPLES).unwrap();
    let partition = partitions.last().unwrap();
    let inputs = store.files(&SAMPLES, partition).unwrap();
    let saved: Vec<_> = inputs
        .iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    store.compact().unwrap();
    let merged = store.files(&SAMPLES, partition).unwrap();
    // Killed after the exchange, with a file that a writer had just added to the old folder.
    let late = folder.path().join("late");
    record(
        &late,
        Made {
            host: "z",
            begin: BEFORE_FIVE + 9_000_000_000,
            samples: 100,
        },
    );
    add(&store, &late, Resolution::Exact).unwrap();
    let added: Vec<_> = store
        .files(&SAMPLES, partition)
        .unwrap()
        .into_iter()
        .filter(|path| !merged.contains(path))
        .collect();
    let work = store.folder().join(".compacting").join(format!(
        "samples~{}~{}~{}",
        partition.date, partition.hour, partition.service
    ));
    fs::create_dir(&work).unwrap();
    for (path, bytes) in &saved {
        fs::write(work.join(path.file_name().unwrap()), bytes).unwrap();
    }
    for path in &added {
        fs::rename(path, work.join(path.file_name().unwrap())).unwrap();
    }
    assert_eq!(all_samples(&store).len(), before.len());
    store.compact().unwrap();
    assert_eq!(all_samples(&store).len(), before.len() + 100);
    assert!(!work.exists());
    assert_eq!(store.check().unwrap().findings, []);
    // Killed before the exchange: the merged file is in the other folder, and goes.
    fs::create_dir(&work).unwrap();
    let [now] = &store.files(&SAMPLES, partition).unwrap()[..] else {
        panic!("not merged")
    };
    fs::copy(now, work.join(now.file_name().unwrap())).unwrap();
    store.compact().unwrap();
    assert_eq!(all_samples(&store).len(), before.len() + 100);
    assert!(!work.exists());
}

#[test]
fn old_partitions_are_removed_as_a_whole() {
    let folder = folder();
    let store = filled(folder.path());
    let removed = store.remove_before("2026-11-23", "17").unwrap();
    assert_eq!(removed, 1);
    // There are no crashes, and no names that were found later.
    let is_used = |table: &&tables::Table| !["crashes", "named_stacks"].contains(&table.name);
    for table in tables::ALL.into_iter().filter(is_used) {
        let hours: Vec<String> = store
            .partitions(table)
            .unwrap()
            .into_iter()
            .map(|part| part.hour)
            .collect();
        assert_eq!(hours, ["17"], "{}", table.name);
    }
    assert!(store.check().unwrap().findings.is_empty());
    store.remove_before("2027-01-01", "00").unwrap();
    assert!(all_samples(&store).is_empty());
    assert!(!store.table(&SAMPLES).join("date=2026-11-23").exists());
}

#[test]
fn damage_and_missing_files_are_found_and_nothing_panics() {
    let folder = folder();
    let store = filled(folder.path());
    let partition = store.partitions(&STACKS).unwrap().pop().unwrap();
    let path = store.files(&STACKS, &partition).unwrap().pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut random = backtrail_testkit::text::Random::new(7);
    for round in 0..300 {
        let mut damaged = whole.clone();
        match round % 3 {
            0 => damaged.truncate(random.below(whole.len())),
            _ => random.mutate(&mut damaged),
        }
        fs::write(&path, &damaged).unwrap();
        let read = TableReader::open(&path, &STACKS).and_then(TableReader::read_all);
        if round % 3 == 0 {
            assert!(read.is_err(), "cut to {} of {}", damaged.len(), whole.len());
        }
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(
        store
            .check()
            .unwrap()
            .findings
            .iter()
            .any(|finding| finding.file == path)
    );
    assert!(store.compact().is_err());
    // The others have the same stacks.
    for path in store.files(&STACKS, &partition).unwrap() {
        fs::remove_file(&path).unwrap();
    }
    let findings = store.check().unwrap().findings;
    assert!(
        findings
            .iter()
            .any(|finding| finding.what.contains("samples of stacks that are missing")),
        "{findings:?}"
    );
}

#[test]
fn one_compaction_runs_at_a_time_beside_writers() {
    let folder = folder();
    let store = filled(folder.path());
    let wanted = all_samples(&store).len();
    let traces: Vec<_> = (0..8_u64)
        .map(|number| {
            let trace = folder.path().join(format!("more{number}"));
            let begin = BEFORE_FIVE + (number + 4) * 1_000_000_000;
            record(
                &trace,
                Made {
                    host: "w",
                    begin,
                    samples: 200,
                },
            );
            trace
        })
        .collect();
    std::thread::scope(|scope| {
        for traces in traces.chunks(2) {
            let store = &store;
            scope.spawn(move || {
                for trace in traces {
                    add(store, trace, Resolution::Exact).unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..6 {
                    match store.compact() {
                        Ok(_) | Err(StoreError::Busy(_)) => {}
                        Err(error) => panic!("{error}: {:?}", error.path()),
                    }
                }
            });
        }
    });
    store.compact().unwrap();
    assert_eq!(all_samples(&store).len(), wanted + 1600);
    assert_eq!(store.check().unwrap().findings, []);
}
