//! Damaged sections give an answer or an error: never a panic, never a long loop.

use crate::common;

use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Base, Location, Row, Rule, Section, Version};

/// Runs every fuzz target. Returns the number of rows on which both readers agree.
fn everything(data: &[u8]) -> usize {
    fuzz::read_sframe(data);
    fuzz::lookup_sframe(data);
    fuzz::show_sframe(data);
    fuzz::validate_sframe(data);
    common::differential::compare(data)
}

/// A small section of each version and ABI, with every kind of row that the version has.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for version in Version::ALL {
        for abi in Abi::ALL {
            let output = write::section(&functions(abi), &Options::new(version, abi, 0x40_0000)).unwrap();
            assert!(output.functions >= 2, "{version:?} {abi:?}: {:?}", output.skipped);
            seeds.push(output.bytes);
        }
    }
    seeds
}

/// The same, plus sections that binutils wrote.
fn seeds_and_corpus() -> Vec<Vec<u8>> {
    let corpus = common::corpus().unwrap_or_default().into_iter();
    let corpus = corpus.map(|case| case.bytes).filter(|bytes| !bytes.is_empty());
    seeds().into_iter().chain(corpus).collect()
}

fn functions(abi: Abi) -> Vec<FunctionRows> {
    let arch = abi.arch();
    let register = |number, offset, deref| Location {
        base: Base::Register(number),
        offset,
        deref,
    };
    let saved = |offset| Location::saved(offset);
    let ra = match abi {
        Abi::Amd64Little => saved(-8),
        _ => register(arch.ra.0, 0, false),
    };
    let rule = |cfa, ra, fp| {
        Some(Rule {
            cfa,
            ra,
            fp,
            mangled_ra: false,
        })
    };
    let saved_ra = if abi == Abi::Amd64Little { ra } else { saved(-16) };
    let plain = vec![
        Row {
            start: 0,
            rule: rule(register(arch.sp.0, 160, false), ra, None),
        },
        Row {
            start: 4,
            rule: rule(register(arch.sp.0, 4160, false), saved_ra, Some(saved(-24))),
        },
        Row {
            start: 300,
            rule: rule(register(arch.fp.0, 320, false), saved_ra, Some(saved(-24))),
        },
    ];
    let function = |start, rows: &[Row]| FunctionRows::new(start, 0x200, rows.to_vec());
    vec![
        function(0x1000, &plain),
        function(0x1200, &plain[..2]),
        FunctionRows {
            repeat: Some(16),
            ..function(0x1400, &plain[..2])
        },
        FunctionRows {
            signal_frame: true,
            ..function(
                0x1600,
                &[Row {
                    start: 0,
                    rule: rule(
                        register(arch.sp.0, 160, true),
                        register(arch.sp.0, 168, true),
                        Some(register(3, 120, true)),
                    ),
                }],
            )
        },
        function(0x1800, &[Row { start: 0, rule: None }]),
    ]
}

#[test]
fn every_prefix() {
    for seed in seeds_and_corpus() {
        for len in 0..seed.len() {
            everything(&seed[..len]);
            assert!(Section::parse(&seed[..len], 0).is_err(), "{len} of {}", seed.len());
        }
        assert!(Section::parse(&seed, 0).is_ok());
        assert!(everything(&seed) > 0 || seed[8..12] == [0; 4], "{seed:02x?}");
    }
}

#[test]
fn every_byte_changed() {
    let (mut inputs, mut rows) = (0, 0);
    for mut seed in seeds_and_corpus() {
        for at in 0..seed.len() {
            let before = seed[at];
            for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x7f, 0x80, 0xff] {
                seed[at] = before ^ flip;
                rows += everything(&seed);
                inputs += 1;
            }
            seed[at] = before;
        }
    }
    println!("{inputs} inputs, {rows} rows");
    assert!(rows > 10 * inputs / 4, "most changes leave most rows");
}

#[test]
fn random_damage() {
    let seeds = seeds_and_corpus();
    let mut random = backtrail_testkit::text::Random::new(0x5f4a_3e15);
    let begin = Instant::now();
    let mut inputs = 0;
    while begin.elapsed() < Duration::from_secs(1) {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(6) {
            if data.is_empty() {
                break;
            }
            let at = random.below(data.len());
            match random.below(4) {
                0 => data[at] = random.number() as u8,
                1 => data[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                2 => data.truncate(at),
                _ => data.insert(at, random.number() as u8),
            }
        }
        let one = backtrail_testkit::cpu_time();
        everything(&data);
        assert!(
            backtrail_testkit::cpu_time() - one < Duration::from_secs(1),
            "took too long: {data:02x?}"
        );
        inputs += 1;
    }
    println!("{inputs} inputs");
}

/// Wrong numbers in the header or in an FDE cost no time.
#[test]
fn lies_about_numbers() {
    for seed in seeds() {
        let big = seed[0] == 0xde;
        let most = |data: &mut [u8], at: usize, value: u32| {
            let bytes = if big { value.to_be_bytes() } else { value.to_le_bytes() };
            data[at..at + 4].copy_from_slice(&bytes);
        };
        for value in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            for at in (8..28).step_by(4).chain(28..seed.len().min(100) - 4) {
                let mut data = seed.clone();
                most(&mut data, at, value);
                let begin = backtrail_testkit::cpu_time();
                everything(&data);
                assert!(
                    backtrail_testkit::cpu_time() - begin < Duration::from_millis(500),
                    "{value:#x} at {at}"
                );
            }
        }
    }
}
