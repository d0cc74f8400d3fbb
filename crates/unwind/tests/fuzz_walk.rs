//! The fuzz target, on mutated valid walks.

use std::time::{Duration, Instant};

use crate::fuzz::walk_stack;
use backtrail_sframe::write::{FunctionRows, Options, section};
use backtrail_sframe::{Base, Location, Row, Rule, constants};

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

fn at(base: Base, offset: i32, deref: bool) -> Location {
    Location { base, offset, deref }
}

/// A table of rules of every kind, for functions of 64 bytes each.
fn table(version: constants::Version, abi: constants::Abi, sp: u8, fp: u8) -> Vec<u8> {
    let by = |cfa: Location, fp: Option<Location>| Rule {
        cfa,
        ra: at(Base::Cfa, -8, true),
        fp,
        mangled_ra: false,
    };
    let saved = Some(at(Base::Cfa, -16, true));
    let rules = [
        Some(by(at(Base::Register(sp), 16, false), saved)),
        Some(by(at(Base::Register(fp), 16, false), saved)),
        Some(by(
            at(Base::Register(fp), -8, true),
            Some(at(Base::Register(fp), 0, true)),
        )),
        Some(by(at(Base::Register(10), 0, false), None)),
        None,
    ];
    let functions = (0..20u64).map(|number| FunctionRows {
        start: number * 64,
        size: 64,
        rows: vec![Row {
            start: 0,
            rule: rules[number as usize % rules.len()],
        }],
        repeat: None,
        signal_frame: number == 15,
        pauth_key_b: false,
    });
    let functions: Vec<FunctionRows> = functions.collect();
    section(&functions, &Options::new(version, abi, 0)).unwrap().bytes
}

#[test]
fn mutated_walks() {
    let mut random = Random(1);
    let tables = [
        (0u8, table(constants::Version::V3, constants::Abi::Amd64Little, 7, 6)),
        (0, table(constants::Version::V2, constants::Abi::Amd64Little, 7, 6)),
        (1, table(constants::Version::V3, constants::Abi::Aarch64Little, 31, 29)),
        (1, table(constants::Version::V1, constants::Abi::Aarch64Little, 31, 29)),
    ];
    let end = Instant::now() + Duration::from_secs(2);
    let mut rounds = 0;
    while Instant::now() < end {
        let (cpu, table) = &tables[random.below(tables.len())];
        let mut data = vec![*cpu];
        data.extend((table.len() as u16).to_le_bytes());
        for _ in 0..4 {
            data.extend((random.below(0x600) as u16 & !7).to_le_bytes());
        }
        data.push(10);
        data.extend(table);
        for _ in 0..150 {
            let word = match random.below(8) {
                0..4 => 0x1_0000 + random.below(0x500) as u64,
                4..7 => 0x2_0000 + random.below(1200) as u64 / 8 * 8,
                _ => random.below(0x200) as u64,
            };
            data.extend(word.to_le_bytes());
        }
        walk_stack(&data);
        for _ in 0..random.below(8) {
            let place = random.below(data.len());
            data[place] = random.below(256) as u8;
        }
        data.truncate(random.below(4 * data.len()));
        walk_stack(&data);
        rounds += 1;
    }
    assert!(rounds > 100, "{rounds}");
}
