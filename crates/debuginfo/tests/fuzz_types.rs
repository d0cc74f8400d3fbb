//! Damaged debug information: either types are built from the intact rest, or there is an error.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_elf::File;
use backtrail_testkit::text::Random;
use backtrail_testkit::{place, scratch, skip};

/// An object, and the places in it of the sections that types are built from.
fn seed(compiler: &str, flags: &[&str]) -> Option<(Vec<u8>, Vec<std::ops::Range<usize>>)> {
    let folder = scratch();
    let object = folder.path().join("object");
    let mut command = Command::new(compiler);
    command.args(["-w", "-fPIC", "-shared"]).args(flags);
    command
        .arg(place::programs().join("types_kinds.c"))
        .arg("-o")
        .arg(&object);
    if !command.output().is_ok_and(|output| output.status.success()) {
        skip(format!("{compiler} {flags:?}"));
        return None;
    }
    let bytes = fs::read(object).unwrap();
    let file = File::parse(&bytes).unwrap();
    let sections = file
        .sections()
        .iter()
        .filter(|section| section.name.starts_with(b".debug_"));
    let ranges = sections.map(|section| section.offset as usize..(section.offset + section.size) as usize);
    let ranges = ranges.collect();
    Some((bytes, ranges))
}

#[test]
fn mutations() {
    let all: [(&str, &[&str]); 7] = [
        ("gcc", &["-gdwarf-5"]),
        ("gcc", &["-gdwarf-4", "-fdebug-types-section"]),
        ("gcc", &["-gdwarf-2", "-gstrict-dwarf"]),
        // A 32-bit object, with relocations.
        ("gcc", &["-g", "-m32", "-c", "-D__int128=long long"]),
        ("clang", &["-gdwarf-5"]),
        // Inlined calls.
        ("gcc", &["-O2", "-gdwarf-5"]),
        // Skeletons.
        ("gcc", &["-O2", "-gsplit-dwarf"]),
    ];
    let seeds: Vec<_> = all
        .iter()
        .filter_map(|(compiler, flags)| seed(compiler, flags))
        .collect();
    assert!(seeds.len() > 2);
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs < 60 || Instant::now() < end {
        let (bytes, ranges) = &seeds[random.below(seeds.len())];
        let mut data = bytes.clone();
        if runs >= seeds.len() && !ranges.is_empty() {
            for _ in 0..1 + random.below(8) {
                let range = &ranges[random.below(ranges.len())];
                let at = range.start + random.below(range.len());
                data[at] = match random.below(3) {
                    0 => random.below(256) as u8,
                    1 => data[at].wrapping_add(1),
                    _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                };
            }
        }
        match runs % 3 {
            0 => fuzz::types(&data),
            1 => fuzz::lines(&data),
            _ => fuzz::split(&data),
        }
        runs += 1;
    }
    println!("{runs} runs");
}
