//! Neighbouring functions under one FDE: which ones may be joined, that the result is smaller, and
//! that only padding gets other rules.

use crate::common;

use std::ops::Range;

use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Location, Row, Rule, Section, Version};
use common::naive;

const ADDRESS: u64 = 0x40_0008;
const CODE: u64 = 0x40_2000;

fn rule(offset: i32) -> Option<Rule> {
    Some(Rule::new(Location::register(7, offset), Location::saved(-8)))
}

/// A function with these CFA offsets, a row every four bytes.
fn function(range: Range<u64>, offsets: &[i32]) -> FunctionRows {
    let rows = offsets.iter().zip(0..).map(|(&offset, index)| Row {
        start: index * 4,
        rule: rule(offset),
    });
    FunctionRows::new(CODE + range.start, (range.end - range.start) as u32, rows.collect())
}

fn options(version: Version, merge: u8) -> Options {
    Options {
        merge,
        ..Options::new(version, Abi::Amd64Little, ADDRESS)
    }
}

/// Start and size of each FDE, and the starts of its rows.
fn written(functions: &[FunctionRows], barriers: &[Range<u64>], merge: u8) -> Vec<(u64, u32, Vec<u32>)> {
    let output = write::section_around(functions, barriers, &options(Version::V3, merge)).unwrap();
    let section = Section::parse(&output.bytes, ADDRESS).unwrap();
    let fdes = section.functions().map(|fde| {
        let (fde, function) = (fde.unwrap(), fde.unwrap().function());
        let starts = fde.rows().map(|row| row.unwrap().start).collect();
        (function.start - CODE, function.size, starts)
    });
    fdes.collect()
}

#[test]
fn rows_that_meet_fall_together() {
    let functions = [
        function(0..16, &[8, 16, 8]),
        function(16..40, &[8, 24]),
        function(48..64, &[32]),
    ];
    assert_eq!(written(&functions, &[], 1).len(), 3);
    // The second function begins with the rule with which the first one ends, and the padding
    // before the third gets the row before it.
    assert_eq!(written(&functions, &[], 8), [(0, 64, vec![0, 4, 8, 20, 48])]);
    // Two at most.
    let lens = written(&functions, &[], 2);
    assert_eq!(lens, [(0, 40, vec![0, 4, 8, 20]), (48, 16, vec![0])]);
}

#[test]
fn what_must_stay_apart_does() {
    let plain = [function(0..16, &[8, 16, 8]), function(16..40, &[8, 24])];
    assert_eq!(written(&plain, &[], 8).len(), 1);
    type Change = fn(&mut FunctionRows);
    let changes: [(&str, Change); 8] = [
        ("a signal frame", |function| function.signal_frame = true),
        ("repeated blocks", |function| function.repeat = Some(8)),
        ("another key", |function| function.pauth_key_b = true),
        ("a long gap", |function| function.start += 16),
        ("a gap that no alignment explains", |function| function.start += 4),
        ("no row at the start", |function| function.rows[0].start = 1),
        ("no bytes", |function| function.size = 0),
        ("an overlap", |function| function.start -= 2),
    ];
    for (what, change) in changes {
        let mut functions = plain.clone();
        change(&mut functions[1]);
        assert_eq!(written(&functions, &[], 8).len(), 2, "{what}");
    }
    let mut behind = plain.clone();
    behind[0].size = 8;
    behind[1].start -= 8;
    assert_eq!(written(&behind, &[], 8).len(), 2, "a row after the function's end");
}

#[test]
fn barriers_are_no_padding() {
    let functions = [function(0..9, &[8, 16, 8]), function(16..40, &[8, 24])];
    assert_eq!(written(&functions, &[], 8).len(), 1);
    for (barrier, fdes) in [
        (8..10, 2),
        (9..10, 2),
        (15..17, 2),
        (0..40, 2),
        // A function that contains a barrier is not joined either: it has a reason to be alone.
        (0..9, 2),
        (16..20, 2),
        (40..44, 1),
        (12..12, 1),
    ] {
        let far = CODE + 1000..CODE + 2000;
        let barriers = [far.clone(), CODE + barrier.start..CODE + barrier.end, far];
        assert_eq!(written(&functions, &barriers, 8).len(), fdes, "{barrier:?}");
    }
    // A function that can't be expressed is not padding either.
    let mut unsaid = function(10..12, &[8]);
    unsaid.rows.clear();
    let [first, second] = functions;
    assert_eq!(written(&[first, unsaid, second], &[], 8).len(), 2);
}

#[test]
fn the_rows_of_a_joined_range_are_few() {
    // Functions of one byte; narrow starts could reach all of them.
    let functions: Vec<FunctionRows> = (0..200).map(|at| function(at..at + 1, &[8 * at as i32])).collect();
    let lens: Vec<usize> = written(&functions, &[], 200)
        .iter()
        .map(|(.., rows)| rows.len())
        .collect();
    assert_eq!((lens.len(), lens.iter().sum::<usize>()), (2, 200));
    assert!(lens.iter().all(|rows| *rows <= 128));
    // A function that is alone may have more.
    let many: Vec<i32> = (0..500).collect();
    assert_eq!(written(&[function(0..2000, &many)], &[], 200)[0].2.len(), 500);
}

#[test]
fn functions_that_share_their_rows_stay_apart() {
    // Sharing twenty rows among a hundred functions saves more than ninety-nine FDEs.
    let offsets: Vec<i32> = (0..20).map(|index| 8 + 8 * index).collect();
    let functions: Vec<FunctionRows> = (0..100)
        // No two pairs of neighbours have the same distance.
        .scan(0u64, |start, index| {
            let range = *start..*start + 80 + index;
            *start = range.end.next_multiple_of(16);
            Some(function(range, &offsets))
        })
        .collect();
    assert!(written(&functions, &[], 2).len() > 80);
    let apart = Options {
        share: false,
        ..options(Version::V3, 2)
    };
    assert!(write::section(&functions, &apart).unwrap().functions < 60);
}

#[test]
fn functions_are_cut_where_the_pieces_are_shared() {
    // The same prologue and the same epilogue around bodies of different lengths.
    let shape: Vec<i32> = (1..8).map(|index| 8 * index).collect();
    let functions: Vec<FunctionRows> = (0..50)
        .scan(0u64, |start, index| {
            let body = 28 + 16 * index as u32;
            let mut function = function(*start..*start + u64::from(body) + 28, &shape);
            function.rows.extend((1..7).map(|index| Row {
                start: body + 2 * index as u32,
                rule: rule(56 - 8 * index),
            }));
            *start = (*start + u64::from(body) + 28).next_multiple_of(16);
            Some(function)
        })
        .collect();
    let [whole, cut] = [1, 2].map(|merge| write::section(&functions, &options(Version::V3, merge)).unwrap());
    assert_eq!((whole.functions, whole.rows), (50, 650));
    // The code from one function's epilogue to the end of the next one's prologue is the same
    // everywhere, so the section consists almost only of FDEs.
    assert!(cut.bytes.len() < whole.bytes.len() / 3);
    let section = Section::parse(&cut.bytes, ADDRESS).unwrap();
    let inside = section.functions().filter(|fde| {
        let start = fde.unwrap().function().start;
        functions.iter().all(|function| function.start != start)
    });
    assert!(inside.count() > 40);
    for function in &functions {
        for (row, next) in function.rows.iter().zip(function.rows.iter().skip(1)) {
            for pc in [row.start, next.start - 1] {
                let found = section.lookup(function.start + u64::from(pc)).unwrap().unwrap();
                assert_eq!(found.row.rule, row.rule);
            }
        }
    }
}

/// Code with a compiler's layout, every version: both readers find the same at every program
/// counter.
#[test]
fn every_program_counter_of_a_larger_table() {
    let mut random = backtrail_testkit::text::Random::new(0x5eed);
    for round in 0..12 {
        let mut functions = Vec::new();
        let mut at = 0u64;
        for _ in 0..300 {
            let size = 4 + random.below(if round % 3 == 0 { 60 } else { 400 }) as u64;
            let shape = random.below(6);
            let count = 1 + (size / 8).min(shape as u64 * 2);
            let offsets: Vec<i32> = (0..count)
                .map(|index| 8 + 8 * (index as i32 % (2 + shape as i32)))
                .collect();
            let mut function = function(at..at + size, &offsets);
            function.signal_frame = random.below(50) == 0;
            function.repeat = (random.below(50) == 0).then_some(16);
            function.pauth_key_b = random.below(100) == 0;
            functions.push(function);
            at = (at + size).next_multiple_of(16) + 16 * u64::from(random.below(20) == 0);
        }
        for version in Version::ALL {
            let [apart, joined] = [1, 8].map(|merge| write::section(&functions, &options(version, merge)).unwrap());
            assert!(joined.functions < apart.functions && joined.bytes.len() < apart.bytes.len());
            let [before, after] = [&apart, &joined].map(|output| naive::read(&output.bytes, ADDRESS));
            let [ours_before, ours_after] =
                [&apart, &joined].map(|output| Section::parse(&output.bytes, ADDRESS).unwrap());
            let ours = |section: &Section<'_>, pc| section.lookup(pc).unwrap().map(|found| found.row.rule);
            let mut naives = (0, 0);
            for pc in CODE - 1..=CODE + at {
                let expected = current(&before, &mut naives.0, pc);
                let found = current(&after, &mut naives.1, pc);
                assert_eq!(ours(&ours_before, pc), expected, "{version:?} at {pc:#x}");
                assert_eq!(ours(&ours_after, pc), found, "{version:?}, joined, at {pc:#x}");
                if expected.is_some() {
                    assert_eq!(found, expected, "{version:?} at {pc:#x}");
                } else if found.is_some() {
                    // Padding: the row before it.
                    assert_eq!(found, ours(&ours_after, pc - 1), "{version:?} at {pc:#x}");
                }
            }
        }
    }
}

/// The second reader's result; program counters ascend, so it need not check every function each
/// time.
fn current(functions: &[naive::NaiveFunction], index: &mut usize, pc: u64) -> Option<Option<Rule>> {
    while functions
        .get(*index)
        .is_some_and(|function| function.start + function.size <= pc)
    {
        *index += 1;
    }
    naive::look_up(functions.get(*index..)?.get(..1)?, pc).map(|(_, row)| row.rule)
}
