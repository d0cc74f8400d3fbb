//! Tables in another version or byte order: each pc has the same rule, or its function is reported
//! as left out.

use crate::common;

use std::time::{Duration, Instant};

use crate::fuzz::convert_sframe;
use backtrail_sframe::write::{self, ConvertError, FunctionRows, Options, Reason};
use backtrail_sframe::{Abi, Base, Location, Row, Rule, Section, Version};

/// Every section of the corpus, converted to every version and byte order, and read back by the
/// second reader.
#[test]
fn the_corpus_in_every_version_and_byte_order() {
    let Some(cases) = common::corpus() else { return };
    let (mut pcs, mut left_out) = (0, 0);
    for case in cases.iter().filter(|case| !case.bytes.is_empty()) {
        let section = Section::parse(&case.bytes, case.address).unwrap();
        let before = common::naive::read(&case.bytes, case.address);
        for abi in Abi::ALL.into_iter().filter(|abi| abi.arch() == section.abi().arch()) {
            for version in Version::ALL {
                let options = Options::new(version, abi, case.address + 0x1000);
                let output = write::convert(&section, &options).unwrap();
                assert_eq!(output.bytes[0] == 0xde, abi.endian() == backtrail_wire::Endian::Big);
                let after = common::naive::read(&output.bytes, case.address + 0x1000);
                for function in &before {
                    let skipped = output.skipped.iter().find(|skipped| skipped.start == function.start);
                    left_out += usize::from(skipped.is_some());
                    for pc in function.start..function.start + function.size {
                        let rule = |functions| common::naive::look_up(functions, pc).map(|(_, row)| row.rule);
                        let expected = rule(&before).filter(|_| skipped.is_none());
                        assert_eq!(rule(&after), expected, "{} {abi:?} {version:?} {pc:#x}", case.name);
                        pcs += 1;
                    }
                }
            }
        }
    }
    println!("{pcs} pcs, {left_out} functions left out");
    assert!(pcs > 6000, "only {pcs} pcs");
}

fn register(number: u8, offset: i32, deref: bool) -> Location {
    Location {
        base: Base::Register(number),
        offset,
        deref,
    }
}

fn function(start: u64, rule: Option<Rule>) -> FunctionRows {
    FunctionRows::new(start, 0x40, vec![Row { start: 0, rule }])
}

/// A version 3 section with one function of each kind that older versions lack, and one of a kind
/// that they have.
fn rich() -> Vec<u8> {
    let saved = Location::saved(-8);
    let rule = |cfa, ra| {
        Some(Rule {
            cfa,
            ra,
            fp: None,
            mangled_ra: false,
        })
    };
    let plain = rule(register(7, 8, false), saved);
    let functions = [
        function(0x1000, plain),
        function(0x1040, None),
        FunctionRows {
            signal_frame: true,
            ..function(0x1080, plain)
        },
        function(0x10c0, rule(register(10, 0, false), saved)),
        function(0x1100, rule(register(6, -8, true), saved)),
        function(0x1140, rule(register(7, 8, false), register(3, 0, false))),
        FunctionRows {
            repeat: Some(32),
            ..function(0x1180, plain)
        },
        function(0x1_0000_0000, plain),
    ];
    let output = write::section(&functions, &Options::new(Version::V3, Abi::Amd64Little, 0)).unwrap();
    assert_eq!(output.skipped, []);
    output.bytes
}

#[test]
fn what_an_older_version_lacks_is_named() {
    let bytes = rich();
    let section = Section::parse(&bytes, 0).unwrap();
    let left_out = |version| {
        let options = Options::new(version, Abi::Amd64Little, 0);
        let output = write::convert(&section, &options).unwrap();
        assert_eq!(output.functions as usize, 8 - output.skipped.len());
        output
            .skipped
            .iter()
            .map(|skipped| (skipped.start, skipped.reason))
            .collect::<Vec<_>>()
    };
    let in_both = [
        (0x1080, Reason::SignalFrame),
        (0x10c0, Reason::CfaRegister),
        (0x1100, Reason::CfaInMemory),
        (0x1140, Reason::RaPlace),
    ];
    let far = (0x1_0000_0000, Reason::StartOutOfRange);
    assert_eq!(left_out(Version::V3), []);
    assert_eq!(left_out(Version::V2), [&in_both[..], &[far]].concat());
    let in_first = [
        &[(0x1040, Reason::Outermost)],
        &in_both[..],
        &[(0x1180, Reason::Repeat), far],
    ]
    .concat();
    assert_eq!(left_out(Version::V1), in_first);
}

#[test]
fn another_cpu_and_endless_rows_are_refused() {
    let bytes = rich();
    let section = Section::parse(&bytes, 0).unwrap();
    let options = Options::new(Version::V3, Abi::S390xBig, 0);
    assert_eq!(write::convert(&section, &options), Err(ConvertError::OtherCpu));
    // A thousand functions that share a thousand rows.
    let many = FunctionRows {
        size: 10_000,
        rows: (0..5000u32)
            .map(|start| Row {
                start,
                rule: Some(Rule::new(
                    register(7, 8 + (start % 2) as i32 * 8, false),
                    Location::saved(-8),
                )),
            })
            .collect(),
        ..function(0, None)
    };
    let functions: Vec<FunctionRows> = (0..1000)
        .map(|index| FunctionRows {
            start: index * 10_000,
            ..many.clone()
        })
        .collect();
    let output = write::section(&functions, &Options::new(Version::V3, Abi::Amd64Little, 0)).unwrap();
    let shared = Section::parse(&output.bytes, 0).unwrap();
    let refused = write::convert(&shared, &Options::new(Version::V1, Abi::Amd64Little, 0)).unwrap_err();
    assert!(matches!(refused, ConvertError::Read(_)), "{refused}");
    assert!(refused.to_string().contains("claim more than"), "{refused}");
}

#[test]
fn damaged_sections() {
    let mut seeds = vec![rich()];
    seeds.extend(common::corpus().unwrap_or_default().into_iter().map(|case| case.bytes));
    seeds.retain(|seed| !seed.is_empty());
    let mut random = backtrail_testkit::text::Random::new(0x00c0_ffee);
    let begin = Instant::now();
    let mut runs = 0;
    while runs <= 100 || begin.elapsed() < Duration::from_secs(1) {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(6) {
            let at = random.below(data.len());
            data[at] = match random.below(3) {
                0 => random.number() as u8,
                1 => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                _ => data[at].wrapping_add(1),
            };
        }
        convert_sframe(&data);
        runs += 1;
    }
    println!("{runs} runs");
}
