//! Damaged object files and archives: the results for accepted files must be consistent.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use backtrail_testkit::text::Random;
use backtrail_testkit::{TempDir, scratch, skip};

/// Small objects from every available compiler, with and without tables of the assembler.
fn seeds() -> (TempDir, Vec<Vec<u8>>) {
    let folder = scratch();
    let cpp = "template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }\n\
               inline __attribute__((noinline)) int once(int x) { static int n; return n += x; }\n\
               int other(int); int both(int x) { return twice(x) + once(x) + other(x) + (int)twice(1.5); }\n";
    let c = "int other(int);\nint one(int x) { return other(x) + 1; }\nint two(int x) { return other(x) + one(x); }\n";
    for (name, text) in [("source.cc", cpp), ("source.c", c)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut seeds = Vec::new();
    for (compiler, source) in [
        ("g++", "source.cc"),
        ("clang++", "source.cc"),
        ("aarch64-linux-gnu-gcc", "source.c"),
        ("s390x-linux-gnu-gcc", "source.c"),
    ] {
        let source = folder.path().join(source);
        let with_tables = &["-O2", "-Wa,--gsframe"][..];
        for flags in [&["-O2"][..], &["-O2", "-ffunction-sections"], with_tables] {
            // Not every assembler writes tables, nor for every machine.
            if flags == with_tables && !matches!(compiler, "g++" | "aarch64-linux-gnu-gcc") {
                continue;
            }
            let object: PathBuf = folder.path().join("object.o");
            let mut compile = Command::new(compiler);
            compile.args(flags).arg("-c").arg(&source).arg("-o").arg(&object);
            match compile.output() {
                Ok(output) if output.status.success() => seeds.push(fs::read(&object).unwrap()),
                _ => skip(format!("{compiler} {flags:?}")),
            }
        }
    }
    assert!(seeds.len() >= 2, "no compiler at all");
    (folder, seeds)
}

fn mutate(random: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..1 + random.below(6) {
        // The headers at the end and the file's own header matter most.
        let (start, len) = match random.below(4) {
            0 => (0, 64),
            1 | 2 => (data.len().saturating_sub(3000), 3000),
            _ => (0, data.len()),
        };
        let at = (start + random.below(len.max(1))).min(data.len().saturating_sub(1));
        if let Some(byte) = data.get_mut(at) {
            *byte = [0, 1, 2, 0x7f, 0xff, byte.wrapping_add(1), random.below(256) as u8][random.below(7)];
        }
    }
    if random.below(16) == 0 {
        data.truncate(random.below(data.len().max(1)));
    }
}

#[test]
fn objects() {
    let (_folder, seeds) = seeds();
    for seed in &seeds {
        assert!(crate::fuzz_elf::object(seed), "it takes no tables");
        assert!(crate::fuzz::object(seed), "no table could be made");
    }
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let (mut runs, mut accepted) = (0, 0);
    while runs <= 50 || Instant::now() < end {
        let mut data = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut data);
        accepted += u32::from(crate::fuzz_elf::object(&data));
        crate::fuzz::object(&data);
        runs += 1;
    }
    println!("{runs} runs, {accepted} accepted");
}

#[test]
fn archives() {
    let (folder, seeds) = seeds();
    let mut files = Vec::new();
    for (index, seed) in seeds.iter().take(3).enumerate() {
        let file = folder.path().join(format!("a_member_with_a_long_name_{index}.o"));
        fs::write(&file, seed).unwrap();
        files.push(file);
    }
    let archive = folder.path().join("lib.a");
    let made = Command::new("ar").arg("rcs").arg(&archive).args(&files).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skip("there is no ar");
    }
    let seed = fs::read(&archive).unwrap();
    crate::fuzz_elf::archive(&seed);
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs <= 50 || Instant::now() < end {
        let mut data = seed.clone();
        for _ in 0..1 + random.below(4) {
            // The index, and the members' headers.
            let at = match random.below(2) {
                0 => random.below(300),
                _ => random.below(data.len()),
            };
            data[at] = [b'0', b'9', b' ', b'/', 0, 0xff, random.below(256) as u8][random.below(7)];
        }
        crate::fuzz_elf::archive(&data);
        runs += 1;
    }
}
