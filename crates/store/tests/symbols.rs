//! Names that are looked up after recordings and crashes were added.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_store::tables::{self, CRASHES, FRAMES, FUNCTIONS, NAMED_STACKS, SAMPLES, STACK_FUNCTIONS, STACKS};
use backtrail_store::{
    CrashDescription, Resolution, Rows, Store, StoreError, SymbolSources, Symbolized, Table, TableReader,
};
use backtrail_testkit::{Missing, available};
use serde_json::{Value, json};

use crate::add::{contents, folder};
use crate::crashes::report;
use crate::invented::{BEFORE_FIVE, Made, add, all_samples, copy, record};

/// What invented recordings have.
const BUILD_ID: &str = "abababababababababababababababababababab";
const LEAF: (&str, u64) = ("leaf", 0x1000);
const CALLER: (&str, u64) = ("caller", 0x2000);

/// Builds a library with this build ID and functions of 2 KiB of code at these addresses.
fn library(path: &Path, build_id: &str, functions: &[(&str, u64)], lines: bool) -> Result<(), Missing> {
    let mut source = ".text\n".to_owned();
    for (name, address) in functions {
        let start = address - 0x1000;
        source +=
            &format!(".org {start}\n.type {name},@function\n{name}:\n.rept 0x800\nnop\n.endr\n.size {name},.-{name}\n");
    }
    let assembler = path.with_extension("s");
    fs::write(&assembler, source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-nostdlib", "-Wl,-Ttext=0x1000"]);
    gcc.args(lines.then_some("-g"));
    gcc.arg(format!("-Wl,--build-id=0x{build_id}"));
    let output = gcc.arg("-o").arg(path).arg(&assembler).output();
    let output = output.map_err(|error| Missing(format!("gcc: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Missing(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// A folder with one such library, under any name.
fn upload(folder: &Path, name: &str, build_id: &str, functions: &[(&str, u64)], lines: bool) -> Option<SymbolSources> {
    let place = folder.join(name).join("some");
    fs::create_dir_all(&place).unwrap();
    available(library(&place.join("file"), build_id, functions, lines))?;
    Some(sources(&folder.join(name)))
}

fn sources(folder: &Path) -> SymbolSources {
    SymbolSources {
        folders: vec![folder.to_owned()],
        fetch: None,
    }
}

/// A store with a recording, whose samples are in two partitions.
fn filled(folder: &Path, host: &str) -> Store {
    let store = Store::open_or_create(&folder.join("store")).unwrap();
    add_at(&store, folder, host, BEFORE_FIVE);
    store
}

fn add_at(store: &Store, folder: &Path, host: &str, begin: u64) {
    let trace = folder.join(format!("trace-{host}"));
    let samples = 1500;
    record(&trace, Made { host, begin, samples });
    add(store, &trace, Resolution::Exact).unwrap();
}

fn rows(store: &Store, table: &'static Table) -> Vec<(PathBuf, Rows)> {
    let partitions = store.partitions(table).unwrap();
    let files = partitions
        .iter()
        .flat_map(|partition| store.files(table, partition).unwrap());
    files
        .map(|path| {
            let rows = TableReader::open(&path, table).unwrap().read_all().unwrap();
            (
                path.parent()
                    .unwrap()
                    .strip_prefix(store.table(table))
                    .unwrap()
                    .to_owned(),
                rows,
            )
        })
        .collect()
}

/// Visits the rows of a table, each with its partition.
fn each(store: &Store, table: &'static Table, mut visit: impl FnMut(&Path, &Rows, usize)) {
    for (partition, rows) in rows(store, table) {
        (0..rows.len()).for_each(|row| visit(&partition, &rows, row));
    }
}

/// How often each function is the innermost one, as queries count it: `of` is the samples or the
/// crashes, whose stacks are in this column.
fn innermost(store: &Store, of: &'static Table) -> BTreeMap<String, u64> {
    let mut named: BTreeMap<(PathBuf, i64), (i64, i64)> = BTreeMap::new();
    each(store, &NAMED_STACKS, |partition, rows, row| {
        let best = named.entry((partition.to_owned(), rows.long(0, row))).or_default();
        *best = (rows.long(2, row), rows.long(1, row)).max(*best);
    });
    let mut selves = BTreeMap::new();
    each(store, &STACK_FUNCTIONS, |partition, rows, row| {
        if rows.long(2, row) != 0 {
            selves.insert((partition.to_owned(), rows.long(0, row)), rows.long(1, row));
        }
    });
    let mut functions = BTreeMap::new();
    each(store, &FUNCTIONS, |_, rows, row| {
        functions.insert(rows.long(0, row), rows.text(1, row));
    });
    let column = of.column("stack").unwrap();
    let mut counts = BTreeMap::new();
    each(store, of, |partition, rows, row| {
        let own = (partition.to_owned(), rows.long(column, row));
        let shown = named.get(&own).map_or(own.1, |best| best.1);
        let function = &functions[&selves[&(own.0, shown)]];
        *counts.entry(function.clone()).or_default() += 1;
    });
    counts
}

fn only(function: &str, count: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(function.to_owned(), count)])
}

/// Addresses, names and lines of the only module.
fn counts(symbolized: &Symbolized) -> (u64, u64, u64) {
    let [module] = &symbolized.modules[..] else {
        panic!("{symbolized:?}")
    };
    assert_eq!((&module.path[..], &module.build_id[..]), ("/no/such/cart", BUILD_ID));
    (module.addresses, module.named, module.lines)
}

#[test]
fn names_come_by_build_id_and_better_ones_replace_them() {
    let folder = folder();
    let store = filled(folder.path(), "a");
    let before = all_samples(&store);
    let original = contents(store.folder());
    let both = [LEAF, CALLER];
    let other = "cd".repeat(20);
    let Some(wrong) = upload(folder.path(), "wrong", &other, &both, true) else {
        return;
    };
    let Some(names) = upload(folder.path(), "names", BUILD_ID, &both, false) else {
        return;
    };
    let Some(lines) = upload(folder.path(), "lines", BUILD_ID, &both, true) else {
        return;
    };
    fs::write(folder.path().join("wrong/noise"), "not an ELF file").unwrap();

    // Three leaves and four calls, of which another file says nothing.
    let found = store.symbols(&wrong).unwrap();
    assert_eq!(counts(&found), (7, 0, 0));
    assert_eq!(found.modules[0].trouble.as_deref(), Some("not found"));
    assert_eq!(contents(store.folder()), original);
    let unnamed = innermost(&store, &SAMPLES);
    assert_eq!(unnamed.len(), 3, "{unnamed:?}");

    let found = store.symbols(&names).unwrap();
    assert_eq!((counts(&found), found.stacks, found.files), ((7, 7, 0), 60, 10));
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 1500));
    assert_eq!(store.check().unwrap().findings, []);
    let named = contents(store.folder());
    assert!(original.iter().all(|file| named.contains(file)), "a file was changed");
    for sources in [&names, &wrong, &SymbolSources::default()] {
        let found = store.symbols(sources).unwrap();
        assert_eq!((counts(&found), found.files), ((7, 7, 0), 0));
        assert_eq!(contents(store.folder()), named);
    }

    let found = store.symbols(&lines).unwrap();
    assert_eq!((counts(&found), found.stacks), ((7, 7, 7), 120));
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 1500));
    assert_eq!(store.check().unwrap().findings, []);
    store.compact().unwrap();
    assert_eq!(store.check().unwrap().findings, []);
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 1500));
    // One row for each stack, and one for each of those that were shown before.
    let left: usize = rows(&store, &NAMED_STACKS).iter().map(|(_, rows)| rows.len()).sum();
    assert_eq!(left, 120);
    let compacted = contents(store.folder());
    let found = store.symbols(&lines).unwrap();
    assert_eq!((found.modules.len(), found.files), (0, 0));
    assert_eq!(contents(store.folder()), compacted);
    assert_eq!(all_samples(&store), before);
    let mut with_lines = 0;
    each(&store, &FRAMES, |_, rows, row| {
        with_lines += u64::from(rows.long(9, row) > 0)
    });
    assert_eq!(with_lines, 14);
}

#[test]
fn an_attempt_that_ended_early_is_completed() {
    let folder = folder();
    let store = filled(folder.path(), "a");
    let Some(names) = upload(folder.path(), "names", BUILD_ID, &[LEAF, CALLER], false) else {
        return;
    };
    let original = contents(store.folder());
    store.symbols(&names).unwrap();
    let whole = contents(store.folder());
    let added: Vec<_> = whole.iter().filter(|file| !original.contains(file)).collect();
    assert_eq!(added.len(), 10);
    // Files appear in the order of the tables: an attempt leaves the first ones.
    let order = |path: &Path| {
        tables::ALL
            .iter()
            .position(|table| path.starts_with(store.table(table)))
    };
    for ended in [FUNCTIONS.name, FRAMES.name, STACKS.name, STACK_FUNCTIONS.name] {
        let last = tables::ALL.iter().position(|table| table.name == ended);
        for (path, _) in added.iter().filter(|(path, _)| order(path) > last) {
            fs::remove_file(path).unwrap();
        }
        assert_eq!(store.check().unwrap().findings, [], "{ended}");
        store.symbols(&names).unwrap();
        assert_eq!(innermost(&store, &SAMPLES), only("leaf", 1500), "{ended}");
        assert_eq!(store.check().unwrap().findings, [], "{ended}");
    }
}

#[test]
fn what_several_runs_found_is_combined() {
    let folder = folder();
    let store = filled(folder.path(), "a");
    let uploads = [("leaves", LEAF), ("callers", CALLER)];
    let copies = uploads.map(|(name, function)| {
        let place = folder.path().join(format!("copy-{name}"));
        copy(store.folder(), &place);
        let sources = upload(folder.path(), name, BUILD_ID, &[function], false)?;
        let copy = Store::open(&place).unwrap();
        copy.symbols(&sources).unwrap();
        Some(place)
    });
    let [Some(first), Some(second)] = copies else { return };
    // As if both had run at the same time.
    for from in [&first, &second] {
        copy(from, store.folder());
    }
    assert_eq!(store.check().unwrap().findings, []);
    let found = store.symbols(&SymbolSources::default()).unwrap();
    assert_eq!(counts(&found), (7, 7, 0));
    assert!(found.files > 0);
    let mut frames = BTreeMap::new();
    each(&store, &FRAMES, |_, rows, row| {
        // The rest are remarks on how stacks end.
        if rows.text(2, row) == "file" {
            frames.insert(rows.long(0, row), rows.text(6, row));
        }
    });
    let mut best: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    each(&store, &NAMED_STACKS, |_, rows, row| {
        let best = best.entry(rows.long(0, row)).or_default();
        *best = (rows.long(2, row), rows.long(1, row)).max(*best);
    });
    let column = SAMPLES.column("stack").unwrap();
    let mut shown: Vec<i64> = Vec::new();
    each(&store, &SAMPLES, |_, rows, row| {
        shown.push(best[&rows.long(column, row)].1)
    });
    each(&store, &STACKS, |_, rows, row| {
        if shown.contains(&rows.long(0, row)) {
            for name in rows.longs(1, row).iter().filter_map(|frame| frames.get(frame)) {
                assert!(["leaf", "caller"].contains(&&name[..]), "{name}");
            }
        }
    });
    let found = store.symbols(&SymbolSources::default()).unwrap();
    assert_eq!(found.files, 0);
    assert_eq!(store.check().unwrap().findings, []);
}

#[test]
fn names_that_a_store_has_serve_what_is_added_later() {
    let folder = folder();
    let store = filled(folder.path(), "a");
    let Some(lines) = upload(folder.path(), "lines", BUILD_ID, &[LEAF, CALLER], true) else {
        return;
    };
    store.symbols(&lines).unwrap();
    add_at(&store, folder.path(), "b", BEFORE_FIVE + 5 * 3_600_000_000_000);
    assert!(innermost(&store, &SAMPLES).len() > 1);
    let found = store.symbols(&SymbolSources::default()).unwrap();
    assert_eq!(counts(&found), (7, 7, 7));
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 3000));
    assert_eq!(store.check().unwrap().findings, []);
}

#[test]
fn several_runs_and_writers_at_once_lose_nothing() {
    let folder = folder();
    let store = filled(folder.path(), "a");
    let uploads = [("leaves", LEAF), ("callers", CALLER)];
    let uploads = uploads.map(|(name, function)| upload(folder.path(), name, BUILD_ID, &[function], false));
    let [Some(leaves), Some(callers)] = uploads else { return };
    std::thread::scope(|scope| {
        for sources in [&leaves, &callers, &leaves, &callers] {
            scope.spawn(|| {
                for _ in 0..3 {
                    store.symbols(sources).unwrap();
                }
            });
        }
        for host in ["b", "c"] {
            scope.spawn(|| add_at(&store, folder.path(), host, BEFORE_FIVE + 1_000));
        }
        scope.spawn(|| {
            for _ in 0..5 {
                match store.compact() {
                    Ok(_) | Err(StoreError::Busy(_)) => {}
                    Err(error) => panic!("{error}: {:?}", error.path()),
                }
            }
        });
    });
    // What was added last may have been added after the last run.
    let found = store.symbols(&leaves).unwrap();
    assert_eq!((counts(&found).0, counts(&found).1), (7, 7));
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 4500));
    assert_eq!(store.symbols(&callers).unwrap().files, 0);
    store.compact().unwrap();
    assert_eq!(store.check().unwrap().findings, []);
    assert_eq!(all_samples(&store).len(), 4500);
    assert_eq!(innermost(&store, &SAMPLES), only("leaf", 4500));
}

/// Crashes have the addresses of mappings, and return addresses.
#[test]
fn crashes_get_names() {
    let folder = folder();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    // The caller ends where its call returns to, and another function begins there.
    let functions = [LEAF, ("caller", 0x1800), ("next", 0x2000)];
    let Some(names) = upload(folder.path(), "names", BUILD_ID, &functions, false) else {
        return;
    };
    let reports: Vec<Value> = (0..10_u64)
        .map(|number| {
            let base = 0x5555_0000_0000 + (number << 20);
            let mut report = report(number, base, &["cart+0x1234", "cart+0x2000"]);
            report["modules"][0]["build_id"] = json!(BUILD_ID);
            for (index, offset) in [(0, 0x1234), (1, 0x2000)] {
                let frame = &mut report["threads"][0]["frames"][index];
                frame["pc"] = json!(format!("{:#x}", base + offset));
                frame["line"] = json!(null);
                frame["offset"] = json!(null);
                frame["inlined"] = json!(false);
            }
            report
        })
        .collect();
    store.add_crashes(&reports, &CrashDescription::default()).unwrap();
    assert_eq!(innermost(&store, &CRASHES), only("cart+0x1234", 10));
    let found = store.symbols(&names).unwrap();
    assert_eq!(
        (found.modules[0].addresses, found.modules[0].named),
        (2, 2),
        "{found:?}"
    );
    assert_eq!(innermost(&store, &CRASHES), only("leaf", 10));
    let mut frames = BTreeMap::new();
    each(&store, &FRAMES, |_, rows, row| {
        frames.insert(rows.text(6, row), (rows.long(4, row), rows.long(11, row)));
    });
    assert_eq!(frames["leaf"], (0x1234, 0x234));
    assert_eq!(frames["caller"], (0x2000, 0x800));
    assert!(!frames.contains_key("next"), "{frames:?}");
    assert_eq!(store.check().unwrap().findings, []);
    assert_eq!(store.symbols(&names).unwrap().files, 0);
}
