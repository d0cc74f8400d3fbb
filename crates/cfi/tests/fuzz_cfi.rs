//! Damaged call frame information: mutated and truncated real sections.

use backtrail_testkit::text::Random;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_elf::{FileBytes, Image};

/// Sections with all relevant features: PLTs, signal trampolines, expressions, personalities.
fn seeds() -> Vec<Vec<u8>> {
    let own = std::env::current_exe().unwrap();
    let candidates = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"];
    let paths = candidates.iter().map(std::path::PathBuf::from).chain([own]);
    let files: Vec<FileBytes> = paths.filter_map(|path| FileBytes::open(path).ok()).collect();
    let sections = files.iter().filter_map(|file| {
        let image = Image::parse(file.bytes()).ok()?;
        Some([image.eh_frame().ok()??, image.eh_frame_hdr().ok()??])
    });
    let beginning = |section: backtrail_elf::SectionData<'_>| section.data[..section.data.len().min(20_000)].to_vec();
    sections.flatten().map(beginning).collect()
}

#[test]
fn mutations_of_real_sections() {
    let seeds = seeds();
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs <= 50 || Instant::now() < end {
        let seed = &seeds[random.below(seeds.len())];
        let start = random.below(seed.len() / 4) & !3;
        let mut data = seed[..seed.len().min(start + 4000)].to_vec();
        for _ in 0..1 + random.below(12) {
            let at = random.below(data.len());
            data[at] = match random.below(5) {
                0 => 0,
                1 => 0xff,
                2 => data[at].wrapping_add(1),
                // Opcodes and operators of the instructions and expressions that the conversion
                // interprets.
                3 => [
                    0x0f, 0x10, 0x16, 0x0a, 0x0b, 0x2d, 0x06, 0x23, 0x77, 0x80, 0x1a, 0x2a, 0x24,
                ][random.below(13)],
                _ => random.below(256) as u8,
            };
        }
        fuzz::cfi(&data);
        runs += 1;
    }
    println!("{runs} runs");
}

#[test]
fn every_beginning() {
    for seed in seeds() {
        for len in 0..seed.len().min(800) {
            fuzz::cfi(&seed[..len]);
        }
    }
}

/// A slow CIE with as many FDEs as fit must not take the product of both.
#[test]
fn long_initial_instructions_do_not_multiply() {
    let mut data = Vec::new();
    let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
    cie.extend(std::iter::repeat_n([0x0a, 0x0b], 250_000).flatten());
    data.extend((cie.len() as u32).to_le_bytes());
    data.extend(&cie);
    while data.len() < 2_000_000 {
        let back = data.len() as u32 + 4;
        data.extend(16u32.to_le_bytes());
        data.extend(back.to_le_bytes());
        data.extend([0, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
    }
    let start = backtrail_testkit::cpu_time();
    fuzz::cfi(&data);
    let taken = backtrail_testkit::cpu_time() - start;
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}
