//! Crashes added to a store, and stores of earlier versions.

use std::fs;
use std::path::Path;

use backtrail_store::tables::{self, CRASHES};
use backtrail_store::{CrashDescription, Resolution, SCHEMA, Store, SymbolSources, Table, TableReader};
use serde_json::{Value, json};

use crate::add::{contents, folder};
use crate::invented::{BEFORE_FIVE, Made, add, all_samples, copy, record};

/// A report as `backtrail collect` writes it, of a program mapped at `base`.
pub(crate) fn report(number: u64, base: u64, functions: &[&str]) -> Value {
    let frame = |(index, function): (usize, &&str)| {
        json!({
            "pc": format!("{:#x}", base + 0x1000 + 0x100 * index as u64),
            "function": function, "offset": 16, "file": "cart.c", "line": 7 + index,
            "module": "/opt/shop/cart", "build_id": "abcd", "inlined": index == 1,
            "args": [
                {"name": "count", "type": "int", "value": "3", "hidden": null},
                {"name": "password", "type": "char *", "value": null, "hidden": "value"},
            ],
        })
    };
    let frames: Vec<Value> = functions.iter().enumerate().map(frame).collect();
    json!({
        "id": format!("20261123-165959-{number}"), "time": format!("2026-11-23T16:{:02}:59Z", number % 60),
        "host": format!("h{}", number % 3), "pid": number, "path": "/opt/shop/cart", "name": "cart",
        "signal": {"number": 11, "name": "SIGSEGV"}, "abort_message": null,
        "key": format!("{:016x}", functions.len()), "function": functions[0],
        "modules": [{
            "path": "/opt/shop/cart", "base": format!("{base:#x}"), "build_id": "abcd",
            "code": [format!("{:#x}", base + 0x1000), format!("{:#x}", base + 0x9000)],
        }],
        "threads": [{"tid": number, "name": "pool", "stop": "end_of_stack", "frames": frames}],
    })
}

/// The values of a column, in all partitions.
fn column(store: &Store, table: &'static Table, name: &str) -> Vec<String> {
    let column = table.column(name).unwrap();
    let mut found = Vec::new();
    for partition in store.partitions(table).unwrap() {
        for path in store.files(table, &partition).unwrap() {
            let rows = TableReader::open(&path, table).unwrap().read_all().unwrap();
            let text = |row| match rows.text(column, row) {
                text if text.is_empty() => rows.long(column, row).to_string(),
                text => text,
            };
            found.extend((0..rows.len()).map(text));
        }
    }
    found.sort();
    found
}

#[test]
fn crashes_are_there_once_and_their_stacks_do_not_depend_on_addresses() {
    let folder = folder();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let functions = ["take", "inlined_into", "work", "main"];
    let reports: Vec<Value> = (0..100)
        .map(|number| {
            report(
                number,
                0x5555_0000_0000 + (number << 16),
                &functions[..3 + number as usize % 2],
            )
        })
        .collect();
    let description = CrashDescription {
        labels: vec![("version".to_owned(), "1.2".to_owned())],
        ..CrashDescription::default()
    };
    let added = store.add_crashes(&reports[..60], &description).unwrap();
    assert_eq!((added.crashes, added.new, added.files), (60, 60, 7));
    let added = store.add_crashes(&reports, &description).unwrap();
    assert_eq!((added.crashes, added.new), (100, 40));
    let before = contents(store.folder());
    let again = store.add_crashes(&reports, &description).unwrap();
    assert_eq!((again.crashes, again.new, again.files), (100, 0, 0));
    assert_eq!(contents(store.folder()), before);

    let distinct = |table, name| {
        let mut values = column(&store, table, name);
        values.dedup();
        values
    };
    assert_eq!(column(&store, &CRASHES, "recording").len(), 100);
    assert_eq!(distinct(&CRASHES, "recording").len(), 100);
    assert_eq!(distinct(&CRASHES, "stack").len(), 2);
    assert_eq!(distinct(&tables::STACKS, "id"), distinct(&CRASHES, "stack"));
    assert_eq!(
        distinct(&tables::FUNCTIONS, "function"),
        ["inlined_into", "main", "take", "work"]
    );
    assert_eq!(distinct(&CRASHES, "version"), ["1.2"]);
    let arguments = distinct(&CRASHES, "arguments");
    assert!(
        arguments[0].starts_with("take(count=3, password=<char *>)\n"),
        "{arguments:?}"
    );
    assert_eq!(store.check().unwrap().findings, []);
    assert_eq!(store.check().unwrap().crashes, 100);
    store.compact().unwrap();
    assert_eq!(store.check().unwrap().findings, []);
    assert_eq!(column(&store, &CRASHES, "recording").len(), 100);
    assert_eq!(store.add_crashes(&reports, &description).unwrap().new, 0);
}

#[test]
fn an_attempt_that_ended_early_is_completed_and_a_damaged_report_is_refused() {
    let folder = folder();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let reports = [1, 2].map(|number| report(number, 0x40_0000, &["a", "b"]));
    let description = CrashDescription::default();
    store.add_crashes(&reports[..1], &description).unwrap();
    let partition = &store.partitions(&CRASHES).unwrap()[0];
    for table in [&CRASHES, &tables::STACK_FUNCTIONS] {
        fs::remove_file(&store.files(table, partition).unwrap()[0]).unwrap();
    }
    let added = store.add_crashes(&reports, &description).unwrap();
    assert_eq!((added.crashes, added.new), (2, 2));
    assert_eq!(store.check().unwrap().findings, []);
    let damaged = [
        json!(null),
        json!({"id": 7, "time": []}),
        json!({"id": "x", "time": "yesterday"}),
    ];
    assert_eq!(store.add_crashes(&damaged, &description).unwrap().refused, 3);
    // Without a stack, as of a collector that was killed.
    let bare = json!({"id": "x", "time": "2026-11-23T16:00:00Z", "name": "../..", "signal": {"name": "SIGBUS"}});
    assert_eq!(store.add_crashes(&[bare], &description).unwrap().new, 1);
    assert_eq!(store.check().unwrap().findings, []);
    assert!(column(&store, &CRASHES, "key").contains(&"../.. SIGBUS".to_owned()));
}

/// `version1` was written by the first version of the tables, which had no crashes.
#[test]
fn a_store_of_version_1_is_read_and_grows() {
    let folder = folder();
    let place = folder.path().join("store");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version1"), &place);
    assert!(
        fs::read_to_string(place.join(SCHEMA))
            .unwrap()
            .contains("\"version\": 1")
    );
    let store = Store::open(&place).unwrap();
    let checked = store.check().unwrap();
    assert_eq!((checked.samples, checked.crashes, checked.findings), (40, 0, vec![]));
    let trace = folder.path().join("trace");
    let begin = BEFORE_FIVE + 1_100_000_000_000;
    let made = Made {
        host: "a",
        begin,
        samples: 40,
    };
    record(&trace, made);
    assert!(add(&store, &trace, Resolution::Exact).unwrap().was_there);
    let later = folder.path().join("later");
    record(&later, Made { host: "b", ..made });
    assert_eq!(add(&store, &later, Resolution::Exact).unwrap().samples, 40);
    let crash = report(7, 0x40_0000, &["a"]);
    assert_eq!(
        store.add_crashes(&[crash], &CrashDescription::default()).unwrap().new,
        1
    );
    let symbolized = store.symbols(&SymbolSources::default()).unwrap();
    assert_eq!((symbolized.modules.len(), symbolized.files), (1, 0), "{symbolized:?}");
    store.compact().unwrap();
    let checked = store.check().unwrap();
    assert_eq!((checked.samples, checked.crashes, checked.findings), (80, 1, vec![]));
    assert_eq!(all_samples(&store).len(), 80);
}
