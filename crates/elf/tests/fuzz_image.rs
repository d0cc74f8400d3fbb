//! Damaged files: mutations and truncations of real ones.

use backtrail_testkit::skip;
use backtrail_testkit::text::Random;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_elf::FileBytes;

/// A small linked file with all tables, otherwise the beginning of this test's own program.
fn seeds() -> Vec<Vec<u8>> {
    let candidates = [
        "/lib64/ld-linux-x86-64.so.2",
        "/bin/true",
        "/usr/lib/x86_64-linux-gnu/crt1.o",
    ];
    let mut seeds: Vec<Vec<u8>> = candidates
        .iter()
        .filter_map(|path| FileBytes::open(path).ok())
        .map(|file| file.bytes().to_vec())
        .collect();
    let own = FileBytes::open(std::env::current_exe().unwrap()).unwrap();
    seeds.push(own.bytes()[..64 << 10].to_vec());
    for machine in ["gcc -m32", "powerpc-linux-gnu-gcc"] {
        seeds.extend(object(machine));
    }
    seeds
}

/// An object of a 32-bit machine.
fn object(compiler: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("object");
    let made = Command::new("sh")
        .args([
            "-c",
            &format!("echo 'int f(int a) {{ return a; }}' | {compiler} -g -gz -x c -c - -o \"$0\""),
        ])
        .arg(&object)
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        skip(format!("{compiler} can't compile"));
        return None;
    }
    Some(std::fs::read(object).unwrap())
}

#[test]
fn mutations_and_beginnings_of_real_files() {
    let seeds = seeds();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs <= 20 || Instant::now() < end {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(8) {
            // Headers matter most: program headers at the front, section headers at the end.
            let (start, len) = match random.below(3) {
                0 => (0, 64),
                1 => (64, 1024),
                _ => (data.len().saturating_sub(2048), 2048),
            };
            let at = (start + random.below(len)).min(data.len() - 1);
            data[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
        }
        if random.below(4) == 0 {
            data.truncate(random.below(data.len()));
        }
        fuzz::image(&data);
        runs += 1;
    }
    println!("{runs} runs");
}

#[test]
fn every_beginning_of_the_headers() {
    for seed in seeds() {
        for len in 0..seed.len().min(1500) {
            fuzz::image(&seed[..len]);
        }
    }
}
