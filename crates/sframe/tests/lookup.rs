//! Look-up in large, uneven and wrongly flagged tables, compared with checking every function.

use crate::common;

use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Flags, Index, Location, Row, Rule, Section, Version};
use common::naive;

const ADDRESS: u64 = 0x7fff_0000;

/// Functions whose sizes and gaps span many orders of magnitude, so that their indexes are hard to
/// guess.
fn uneven(random: &mut backtrail_testkit::text::Random, count: usize) -> Vec<FunctionRows> {
    let mut start = 0x4000_0000;
    let functions = (0..count).map(|_| {
        let magnitude = random.below(18);
        let size = match random.below(8) {
            0 => 0,
            _ => random.below(1 << magnitude) as u32,
        };
        if random.below(4) == 0 {
            start += random.below(1 << (magnitude + 2)) as u64;
        }
        let rows = 1 + random.below(3) as u32;
        let row = |index: u32| Row {
            start: index * (1 + size / 4),
            rule: Some(Rule::new(
                Location::register(7, 8 + 8 * index as i32),
                Location::saved(-8),
            )),
        };
        start += u64::from(size);
        FunctionRows::new(start - u64::from(size), size, (0..rows).map(row).collect())
    });
    functions.collect()
}

fn compare(section: &Section<'_>, functions: &[naive::NaiveFunction], pcs: impl Iterator<Item = u64>) -> usize {
    let mut count = 0;
    let mut words = [Index::words(section), Index::words_with_rows(section)].map(|words| vec![0; words]);
    let indexes = words.each_mut().map(|words| Index::build(section, words));
    for pc in pcs {
        let found = section.lookup(pc).unwrap();
        for index in indexes.iter().flatten() {
            assert_eq!(section.lookup_by(index, pc).unwrap(), found, "at {pc:#x}");
        }
        let found = found.map(|found| (found.function.start, found.row));
        let expected = naive::look_up(functions, pc).map(|(index, row)| (functions[index].start, row));
        assert_eq!(found, expected, "at {pc:#x}");
        count += 1;
    }
    count
}

#[test]
fn uneven_tables_of_every_length() {
    let mut random = backtrail_testkit::text::Random::new(0x1001);
    let mut count = 0;
    for round in 0..60 {
        let functions = uneven(
            &mut random,
            [0, 1, 2, 3, 63, 64, 65, 66, 100, 400, 900, 2000][round % 12],
        );
        for version in Version::ALL {
            let options = Options {
                pcrel: round % 2 == 0 && version != Version::V1,
                ..Options::new(version, Abi::Amd64Little, ADDRESS)
            };
            let output = write::section(&functions, &options).unwrap();
            assert_eq!(output.skipped, []);
            let section = Section::parse(&output.bytes, ADDRESS).unwrap();
            let naive = naive::read(&output.bytes, ADDRESS);
            let pcs: Vec<u64> = (0..60)
                .filter_map(|_| functions.get(random.below(functions.len().max(1))))
                .flat_map(|function| {
                    let end = function.start + u64::from(function.size);
                    [
                        function.start - 1,
                        function.start,
                        (function.start + end) / 2,
                        end - 1,
                        end,
                    ]
                })
                .chain([0, u64::MAX, ADDRESS])
                .collect();
            count += compare(&section, &naive, pcs.into_iter());
        }
    }
    println!("{count} program counters");
}

/// A table that is wrongly flagged as sorted still yields the right function or none.
#[test]
fn a_false_flag_gives_no_wrong_function() {
    let mut random = backtrail_testkit::text::Random::new(0x2002);
    let functions = uneven(&mut random, 500);
    let output = write::section(&functions, &Options::new(Version::V3, Abi::Amd64Little, ADDRESS)).unwrap();
    let mut bytes = output.bytes;
    bytes[3] = Flags::FDE_SORTED.0;
    for round in 0..200 {
        let (one, other) = (28 + 16 * random.below(500), 28 + 16 * random.below(500));
        for byte in 0..16 {
            bytes.swap(one + byte, other + byte);
        }
        let section = Section::parse(&bytes, ADDRESS).unwrap();
        for _ in 0..20 {
            let pc = functions[random.below(500)].start + random.below(50) as u64;
            if let Some(found) = section.lookup(pc).unwrap() {
                let offset = pc.wrapping_sub(found.function.start);
                assert!(offset < u64::from(found.function.size), "round {round}");
            }
        }
        if round % 50 == 0 {
            let mut unsorted = bytes.clone();
            unsorted[3] = 0;
            let section = Section::parse(&unsorted, ADDRESS).unwrap();
            let naive = naive::read(&unsorted, ADDRESS);
            compare(&section, &naive, functions.iter().map(|function| function.start + 3));
        }
    }
}

/// In relocatable files of old binutils, the fields are relative to themselves without a flag.
#[test]
fn starts_relative_to_the_field_without_a_flag() {
    let mut random = backtrail_testkit::text::Random::new(0x3003);
    let functions = uneven(&mut random, 90);
    let options = Options {
        pcrel: true,
        ..Options::new(Version::V2, Abi::Amd64Little, ADDRESS)
    };
    let mut bytes = write::section(&functions, &options).unwrap().bytes;
    let naive = naive::read(&bytes, ADDRESS);
    bytes[3] &= !Flags::FDE_FUNC_START_PCREL.0;
    let section = Section::parse(&bytes, ADDRESS).unwrap();
    assert_ne!(section.fde(0).unwrap().function().start, naive[0].start);
    let section = section.starts_relative_to_field();
    compare(&section, &naive, functions.iter().map(|function| function.start + 1));
}

/// An index can be built for any sorted table, even in the least memory, and for no other.
#[test]
fn an_index_needs_functions_that_are_sorted_and_the_memory_it_says() {
    let mut random = backtrail_testkit::text::Random::new(0x3003);
    for version in Version::ALL {
        for count in [1, 2, 3, 100, 5000] {
            let functions = uneven(&mut random, count);
            let mut bytes = write::section(&functions, &Options::new(version, Abi::Amd64Little, ADDRESS))
                .unwrap()
                .bytes;
            let section = Section::parse(&bytes, ADDRESS).unwrap();
            let wanted = Index::words(&section);
            assert!(wanted <= 4 * count + 2, "{wanted} words for {count} functions");
            let mut words = vec![u32::MAX; wanted];
            assert!(Index::build(&section, &mut words).is_some());
            assert!(words.iter().all(|&word| (word as usize) < count));
            assert!(Index::build(&section, &mut words[1..]).is_none(), "too little memory");
            let rows: usize = functions.iter().map(|function| function.rows.len()).sum();
            let more = Index::words_with_rows(&section);
            assert!(
                wanted < more && more <= 8 * rows.max(count) + 3,
                "{more} words for {rows} rows"
            );
            bytes[3] &= !Flags::FDE_SORTED.0;
            assert!(Index::build(&Section::parse(&bytes, ADDRESS).unwrap(), &mut words).is_none());
        }
    }
}
