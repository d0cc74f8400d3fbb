//! Damaged files: tables that are still built from them must agree with their `.eh_frame`.

use backtrail_testkit::text::Random;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_elf::{FileBytes, Image};
use backtrail_wire::{Bytes, Endian};

/// A file reduced to the first bytes of its `.eh_frame`: the headers, and the section's place in
/// it.
struct Seed {
    bytes: Vec<u8>,
    frames: std::ops::Range<usize>,
}

/// A linked file of which only the headers and the start of `.eh_frame` remain, so that it is quick
/// to parse.
fn seed(path: &Path, machine: u8) -> Option<Seed> {
    const KEPT: usize = 3000;
    let file = FileBytes::open(path).ok()?;
    let image = Image::parse(file.bytes()).ok()?;
    let section = image.section_header(".eh_frame")?;
    let data = image.section(".eh_frame").ok()??;
    let frames = whole_entries(&data.data[..data.data.len().min(KEPT)], image.endian());
    // One executable program header for everything, and the sections null, .eh_frame and names.
    let mut bytes = vec![0; 64 + 56];
    bytes[..64].copy_from_slice(&file.bytes()[..64]);
    bytes[18] = machine;
    // Space for more program headers.
    bytes.resize(bytes.len() + 4 * 56, 0);
    let start = bytes.len();
    bytes.extend(frames);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let names_at = bytes.len();
    bytes.extend(b"\0.eh_frame\0.shstrtab\0\0\0\0");
    let headers_at = bytes.len();
    let mut put = |fields: [u64; 7]| {
        let [name, kind, flags, address, offset, size, align] = fields;
        bytes.extend((name as u32).to_le_bytes());
        bytes.extend((kind as u32).to_le_bytes());
        for field in [flags, address, offset, size, 0, align, 0] {
            bytes.extend(field.to_le_bytes());
        }
    };
    put([0; 7]);
    put([1, 1, 2, section.address, start as u64, frames.len() as u64, 8]);
    put([11, 3, 0, 0, names_at as u64, 21, 1]);
    bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
    bytes[40..48].copy_from_slice(&(headers_at as u64).to_le_bytes());
    bytes[54..64].copy_from_slice(&[56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    let program = [1u64 | 5 << 32, 0, 0, 0, 0, 1 << 30, 0x1000];
    for (field, value) in program.into_iter().enumerate() {
        bytes[64 + field * 8..72 + field * 8].copy_from_slice(&value.to_le_bytes());
    }
    let frames = start..start + frames.len();
    Some(Seed { bytes, frames })
}

/// The entries that are not cut off.
fn whole_entries(frames: &[u8], endian: Endian) -> &[u8] {
    let bytes = Bytes::new(frames, endian);
    let mut end = 0;
    while let Ok(len) = bytes.u32(end) {
        match end + 4 + len as usize {
            next if next <= frames.len() => end = next,
            _ => break,
        }
    }
    &frames[..end]
}

fn seeds() -> Vec<Seed> {
    const AARCH64: u8 = 183;
    const X86_64: u8 = 62;
    let own = std::env::current_exe().unwrap();
    let paths = [
        (Path::new("/lib64/ld-linux-x86-64.so.2"), X86_64),
        (Path::new("/lib/x86_64-linux-gnu/libc.so.6"), X86_64),
        (Path::new("/lib/ld-linux-aarch64.so.1"), AARCH64),
        (Path::new("/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"), AARCH64),
        (Path::new("/usr/aarch64-linux-gnu/lib/libc.so.6"), AARCH64),
        (&own, if cfg!(target_arch = "aarch64") { AARCH64 } else { X86_64 }),
    ];
    paths
        .into_iter()
        .filter_map(|(path, machine)| seed(path, machine))
        .collect()
}

#[test]
fn the_seeds_are_whole() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        let image = Image::parse(&seed.bytes).unwrap();
        let options =
            backtrail_sframe::write::Options::new(backtrail_sframe::Version::V3, backtrail_cfi::tables::abi(&image), 0);
        let built = backtrail_cfi::build::of_image(&image, &options).unwrap();
        assert!(built.functions > 10, "{built:?}");
        fuzz::build(&seed.bytes);
        fuzz::registers(&seed.bytes);
        assert!(fuzz::add(&seed.bytes), "no table could be added");
    }
}

#[test]
fn mutations() {
    let seeds = seeds();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs <= 50 || Instant::now() < end {
        let seed = &seeds[random.below(seeds.len())];
        let mut data = seed.bytes.clone();
        for _ in 0..1 + random.below(12) {
            // Mostly in the rules, sometimes in the headers.
            let at = match random.below(10) {
                0 => random.below(data.len()),
                _ => seed.frames.start + random.below(seed.frames.len()),
            };
            data[at] = match random.below(6) {
                0 => 0,
                1 => 0xff,
                2 => data[at].wrapping_add(1),
                3 | 4 => RULES[random.below(RULES.len())],
                _ => random.below(256) as u8,
            };
        }
        fuzz::build(&data);
        fuzz::registers(&data);
        fuzz::add(&data);
        runs += 1;
    }
    println!("{runs} runs");
}

/// Instructions of call frame information and operators of expressions.
const RULES: [u8; 32] = [
    0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x14, 0x16, 0x2d, 0x2e, 0x06, 0x12, 0x13, 0x1a, 0x1c,
    0x22, 0x23, 0x24, 0x2a, 0x30, 0x48, 0x76, 0x77, 0x80, 0x86, 0x87, 0x90, 0x9c,
];
