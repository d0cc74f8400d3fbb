//! How columns are encoded, and in which order rows are.

use std::fs::File;

use backtrail_store::tables::{self, FRAMES, FUNCTIONS, SAMPLES, STACKS};
use backtrail_store::{Resolution, Rows, Store, Table, TableReader};
use parquet::basic::Encoding;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::add::folder;
use crate::invented::{BEFORE_FIVE, Made, add, all_samples, record};

/// A store of a recording with 30 distinct stacks at most.
fn filled(folder: &std::path::Path, samples: u64, resolution: Resolution) -> Store {
    let trace = folder.join(format!("trace{samples}"));
    let begin = BEFORE_FIVE - 10_000_000_000;
    record(
        &trace,
        Made {
            host: "a",
            begin,
            samples,
        },
    );
    let store = Store::open_or_create(&folder.join(format!("store{samples}"))).unwrap();
    add(&store, &trace, resolution).unwrap();
    store
}

/// The only file of a table.
fn file(store: &Store, table: &Table) -> std::path::PathBuf {
    let partitions = store.partitions(table).unwrap();
    let [partition] = &partitions[..] else {
        panic!("{partitions:?}")
    };
    store.files(table, partition).unwrap().remove(0)
}

fn rows(store: &Store, table: &'static Table) -> Rows {
    let reader = TableReader::open(&file(store, table), table).unwrap();
    reader.read_all().unwrap()
}

/// The encodings of a column.
fn encodings(store: &Store, table: &Table, column: &str) -> Vec<Encoding> {
    let reader = SerializedFileReader::new(File::open(file(store, table)).unwrap()).unwrap();
    let index = table.column(column).unwrap();
    reader.metadata().row_group(0).column(index).encodings().collect()
}

#[test]
fn stacks_have_a_dictionary_unless_most_samples_differ() {
    let folder = folder();
    for (samples, has_dictionary) in [(3000, true), (20, false)] {
        let store = filled(folder.path(), samples, Resolution::Exact);
        let encodings = encodings(&store, &SAMPLES, "stack");
        assert_eq!(
            encodings.contains(&Encoding::RLE_DICTIONARY),
            has_dictionary,
            "{encodings:?}"
        );
        let all = all_samples(&store);
        for (number, (_, time, tid, ..)) in all.iter().enumerate() {
            let wanted = (BEFORE_FIVE - 10_000_000_000) as i64 + number as i64 * 1_000_001;
            assert_eq!((*time, *tid), (wanted, 10 + number as i64 % 2));
        }
        assert_eq!(all.len() as u64, samples);
        assert_eq!(store.check().unwrap().findings, []);
    }
}

#[test]
fn minutes_have_a_dictionary_and_times_have_none() {
    let folder = folder();
    for (samples, resolution, has_dictionary) in [(3000, Resolution::Exact, false), (3001, Resolution::Minute, true)] {
        let store = filled(folder.path(), samples, resolution);
        let encodings = encodings(&store, &SAMPLES, "time");
        assert_eq!(
            encodings.contains(&Encoding::RLE_DICTIONARY),
            has_dictionary,
            "{encodings:?}"
        );
        let counts = all_samples(&store).into_iter().map(|(.., count)| count);
        assert_eq!(counts.sum::<i64>() as u64, samples);
        let samples = rows(&store, &SAMPLES);
        let stacks = (0..samples.len()).map(|row| samples.long(11, row));
        assert_eq!(stacks.is_sorted(), has_dictionary);
    }
}

#[test]
fn hashes_have_no_dictionary() {
    let folder = folder();
    let store = filled(folder.path(), 3000, Resolution::Exact);
    for table in [&STACKS, &FRAMES, &FUNCTIONS] {
        let encodings = encodings(&store, table, "id");
        assert!(
            !encodings.contains(&Encoding::RLE_DICTIONARY),
            "{}: {encodings:?}",
            table.name
        );
    }
}

#[test]
fn rows_that_have_much_in_common_are_neighbours() {
    let folder = folder();
    let store = filled(folder.path(), 3000, Resolution::Exact);
    let stacks = rows(&store, &STACKS);
    let outermost_first = |row: usize| stacks.longs(1, row).iter().rev().copied().collect::<Vec<_>>();
    assert!((0..stacks.len()).is_sorted_by_key(outermost_first));
    let frames = rows(&store, &FRAMES);
    let place = |row: usize| [3, 4, 0, 1].map(|column| frames.long(column, row));
    assert!(frames.len() > 3 && (0..frames.len()).is_sorted_by_key(place));
    // The functions of a stack stay together, innermost first.
    let functions = rows(&store, &tables::STACK_FUNCTIONS);
    let mut seen = Vec::new();
    for row in 0..functions.len() {
        let stack = functions.long(0, row);
        let begins = seen.last() != Some(&stack);
        assert_eq!(functions.long(2, row) != 0, begins);
        if begins {
            assert!(!seen.contains(&stack));
            seen.push(stack);
        }
    }
    assert_eq!(seen.len(), stacks.len());
}
