//! Compares the reader with the second reader on any bytes: they must find the same functions, rows
//! and errors, and the same row at every pc.

use backtrail_sframe::{Flags, Section};

use super::naive::{self, AnyFunction, Body, Found};

const ADDRESS: u64 = 0x40_0000;

/// Fails if the two readers disagree. Returns the number of rows on which they agree.
pub(crate) fn compare(data: &[u8]) -> usize {
    let (section, expected) = match (Section::parse(data, ADDRESS), naive::read_any(data)) {
        (Ok(section), Some(expected)) => (section, expected),
        (Err(_), None) => return 0,
        (ours, naive) => panic!("one reads the header: {ours:?}, {:?}", naive.map(|all| all.len())),
    };
    assert_eq!(section.functions().len(), expected.len());
    let mut rows = 0;
    for (index, (fde, function)) in section.functions().zip(&expected).enumerate() {
        match (&fde, &function.body) {
            (Ok(fde), Some(body)) => {
                assert_eq!(fde.function().start, address_of(function), "start of {index}");
                assert_eq!(u64::from(fde.function().size), function.size, "size of {index}");
                assert_eq!(fde.function().repeat.map(u64::from), body.block, "block of {index}");
                rows += same_rows(fde.rows(), body, index);
            }
            (Err(_), None) => {}
            (ours, theirs) => panic!("one reads function {index}: {ours:?}, {theirs:?}"),
        }
    }
    look_ups(&section, data, &expected);
    rows
}

fn address_of(function: &AnyFunction) -> u64 {
    ADDRESS.wrapping_add(function.start as u64)
}

/// The rows up to the first that can't be read.
fn same_rows(rows: backtrail_sframe::Rows<'_>, body: &Body, index: usize) -> usize {
    let readable = body.rows.iter().take_while(|row| row.rule.is_some()).count();
    let whole = body.complete && readable == body.rows.len();
    let mut count = 0;
    let mut failed = false;
    for row in rows {
        match row {
            Ok(row) => {
                let expected = body.rows.get(count).expect("as many rows");
                assert_eq!(
                    (row.start, Some(row.rule)),
                    (expected.start, expected.rule),
                    "row {count} of {index}"
                );
                count += 1;
            }
            Err(_) => failed = true,
        }
    }
    assert_eq!((count, failed), (readable, !whole), "rows of {index}");
    count
}

/// Looks up the ends of functions and rows. With the table's own flag, the result must be right or
/// nothing; flagged as unsorted, it must be the same.
fn look_ups(section: &Section<'_>, data: &[u8], expected: &[AnyFunction]) {
    const FUNCTIONS: usize = 64;
    let mut unsorted = data.to_vec();
    unsorted[3] &= !Flags::FDE_SORTED.0;
    let unsorted = Section::parse(&unsorted, ADDRESS).expect("the flag has no part in this");
    for function in expected.iter().take(FUNCTIONS) {
        let start = address_of(function);
        let rows = function.body.iter().flat_map(|body| body.rows.iter().take(16));
        let pcs = rows.map(|row| start.wrapping_add(row.start.into()));
        for pc in pcs.chain([
            start,
            start.wrapping_add(function.size),
            start.wrapping_add(function.size / 2),
        ]) {
            for pc in [pc.wrapping_sub(1), pc] {
                let target = pc.wrapping_sub(ADDRESS) as i64;
                let found = naive::look_up_any(expected, target);
                match (unsorted.lookup(pc), found) {
                    (Ok(None), Found::Nothing) | (Err(_), Found::Damage) => {}
                    (Ok(Some(ours)), Found::Row(index, row)) => {
                        assert_eq!(ours.row, row, "at {pc:#x}");
                        assert_eq!(ours.function.start, address_of(&expected[index]), "at {pc:#x}");
                    }
                    (ours, theirs) => panic!("at {pc:#x}: {ours:?}, {theirs:?}"),
                }
                if let Ok(Some(ours)) = section.lookup(pc) {
                    let size = ours.function.size.into();
                    assert!(pc.wrapping_sub(ours.function.start) < size, "at {pc:#x}: {ours:?}");
                }
            }
        }
    }
}
