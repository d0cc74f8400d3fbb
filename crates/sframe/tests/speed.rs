//! How long a lookup takes: `cargo test --release -p backtrail-sframe --test speed -- --ignored --nocapture`.

mod common;

use std::hint::black_box;
use std::time::Instant;

use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Base, Location, Row, Rule, Section, Version};

const FUNCTIONS: usize = 100_000;
const LOOKUPS: usize = 2_000_000;

/// Functions of 16 to 1,015 bytes with 1 to 16 rows.
fn functions(random: &mut backtrail_testkit::text::Random) -> Vec<FunctionRows> {
    let mut start = 0x40_0000;
    let ra = Location {
        base: Base::Cfa,
        offset: -8,
        deref: true,
    };
    let functions = (0..FUNCTIONS).map(|_| {
        let size = 16 + random.below(1000) as u32;
        let rows = 1 + random.below(16) as u32;
        let row = |index: u32| Row {
            start: index * size / rows,
            rule: Some(Rule {
                cfa: Location {
                    base: Base::Register(7),
                    offset: 8 + 8 * (index as i32 + size as i32 % 5),
                    deref: false,
                },
                ra,
                fp: None,
                mangled_ra: false,
            }),
        };
        start += u64::from(size);
        FunctionRows {
            start: start - u64::from(size),
            size,
            rows: (0..rows).map(row).collect(),
            repeat: None,
            signal_frame: false,
            pauth_key_b: false,
        }
    });
    functions.collect()
}

/// Nanoseconds of a lookup, in the best of many batches: the machine does other things too.
fn best_of(pcs: &[u64], section: &Section<'_>) -> u128 {
    let batches = pcs.chunks(10_000).map(|batch| {
        let begin = Instant::now();
        for &pc in batch {
            assert!(matches!(black_box(section.lookup(black_box(pc))), Ok(Some(_))));
        }
        begin.elapsed().as_nanos() / batch.len() as u128
    });
    batches.min().unwrap()
}

#[test]
#[ignore = "measures; meant for a quiet machine and optimised code"]
fn lookups_are_fast() {
    let mut random = backtrail_testkit::text::Random::new(7);
    let functions = functions(&mut random);
    let last = functions.last().unwrap();
    let range = (last.start + u64::from(last.size) - 0x40_0000) as usize;
    let pcs: Vec<u64> = (0..LOOKUPS).map(|_| 0x40_0000 + random.below(range) as u64).collect();
    for version in Version::ALL {
        for pcrel in [false, true] {
            if pcrel && version == Version::V1 {
                continue;
            }
            let options = Options {
                pcrel,
                ..Options::new(version, Abi::Amd64Little, 0x1_0000)
            };
            let begin = Instant::now();
            let output = write::section(&functions, &options).unwrap();
            let writing = begin.elapsed();
            let section = Section::parse(&output.bytes, 0x1_0000).unwrap();
            let anywhere = best_of(&pcs, &section);
            let warm = best_of(&pcs[..64].repeat(300), &section);
            println!(
                "{version:?}, pcrel {pcrel}: {anywhere} ns anywhere, {warm} ns among 64 addresses, in {} bytes, written in {writing:?}",
                output.bytes.len()
            );
            assert!(anywhere < 1000 && warm < 1000);
        }
    }
}
