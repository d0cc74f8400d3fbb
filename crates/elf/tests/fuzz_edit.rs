//! Damaged files, and tables added to them: an accepted file must be consistent afterwards.

use std::fs;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_elf::edit;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn add(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut make = |_| Ok::<_, backtrail_elf::Error>(vec![7; len]);
    Some(edit::add_table(bytes, [0; 16], &mut make).ok()?.to_vec())
}

/// Small linked files: unchanged, with a table of ours, and without sections.
fn seeds() -> Vec<Vec<u8>> {
    let candidates = [
        "/bin/true",
        "/lib/x86_64-linux-gnu/libdl.so.2",
        "/usr/aarch64-linux-gnu/lib/libdl.so.2",
        "/usr/s390x-linux-gnu/lib/libdl.so.2",
    ];
    let mut seeds: Vec<Vec<u8>> = candidates.iter().filter_map(|path| fs::read(path).ok()).collect();
    seeds.push(fs::read("/lib64/ld-linux-x86-64.so.2").unwrap_or_default());
    let edited: Vec<Vec<u8>> = seeds.iter().filter_map(|seed| add(seed, 500)).collect();
    assert!(edited.len() >= seeds.len() - 1);
    let bare = seeds.iter().map(|seed| {
        let mut bare = seed.clone();
        bare.get_mut(40..48).into_iter().for_each(|shoff| shoff.fill(0));
        bare
    });
    let bare: Vec<Vec<u8>> = bare.collect();
    seeds.extend(edited);
    seeds.extend(bare);
    seeds
}

#[test]
fn whole_files() {
    for seed in seeds() {
        fuzz::edit(&seed);
    }
}

#[test]
fn mutations_and_beginnings_of_real_files() {
    let seeds = seeds();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let (mut runs, mut accepted) = (0, 0);
    while Instant::now() < end {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(4) {
            // Headers matter most; after them, the pieces in the way of longer ones; at the end,
            // sections and the record.
            let (start, len) = match random.below(5) {
                0 => (0, 64),
                1 | 2 => (64, 1024),
                3 => (data.len().saturating_sub(4096), 4096),
                _ => (0, data.len()),
            };
            let at = (start + random.below(len)).min(data.len().saturating_sub(1));
            if let Some(byte) = data.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
            }
        }
        if random.below(8) == 0 {
            data.truncate(random.below(data.len()));
        }
        fuzz::edit(&data);
        runs += 1;
        accepted += u32::from(add(&data, 100).is_some());
    }
    println!("{runs} runs, {accepted} accepted");
    assert!(runs > 20 && accepted > runs / 10, "{runs} runs, {accepted} accepted");
}
