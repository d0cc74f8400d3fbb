//! The fuzz targets as ordinary tests: mutated valid inputs from a fixed seed, one second each.

use crate::fuzz;
use backtrail_testkit::text::Random;
use std::time::{Duration, Instant};

fn run(seeds: &[&[u8]], target: fn(&[u8])) {
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let mut inputs: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    let start = Instant::now();
    let mut runs = 0u64;
    while start.elapsed() < Duration::from_secs(1) {
        let mut input = inputs[random.below(inputs.len())].clone();
        random.mutate(&mut input);
        target(&input);
        // Mutations of mutations, but never far from valid input.
        let slot = seeds.len() + random.below(64);
        if slot < inputs.len() {
            inputs[slot] = input;
        } else {
            inputs.push(input);
        }
        runs += 1;
    }
    assert!(runs > 1000, "{runs} inputs in a second");
}

#[test]
fn decode() {
    run(
        &[
            b"\x02\x19\x10\x00\x20\x10\x21\xff\x00\x35\x7f\xff\x00\x00\x10\xf0\x44\x61\x03\xe8\x29\x20\x20\x80\x00",
            b"\x02\x18\x7f\x8d\x01\x00\x00\x00\x00\x00\x00",
            b"\x01\x1b\x08\x04\x80\x00\x21\x01\x23\x89\x01\x00\x5f\x87\x01",
            b"\x00\x19\x80\x00\x28\xff\x20\x02\x88\x0a\x7f\x00\x00",
        ],
        fuzz::cbf_decode,
    );
}

#[test]
fn encode() {
    run(
        &[
            // A word size, the sizes of buffer, head and tail; then for each frame a kind with a
            // shift, and eight bytes.
            b"\x02\x40\x03\x02\x00\0\0\0\0\0\x40\x10\0\x01\0\0\0\0\0\x40\x10\x10\x01\0\0\0\0\0\x40\x10\x10\x03\0\0\0\0\0\0\0\x05\x02\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x01\x10\x00\x01\x81\x80\0\0\0\0\0\0\0\x81\x80\0\0\0\0\0\0\0\x81\x80\0\0\0\0\0\0\0\xff\x80\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x07",
            b"\x00\xff\x01\x00\xc1\xff\xff\0\0\0\0\0\0\xc2\x7f\xff\0\0\0\0\0\0\xc0\x7f\xff\0\0\0\0\0\0\xc3\x7f\xff\0\0\0\0\0\0",
            // More omitted than can be counted (found by libFuzzer).
            b"\xda\x09\0\0\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0",
        ],
        fuzz::cbf_encode,
    );
}

#[test]
fn cif() {
    run(
        &[
            b"\x02\x05Linux\x02\x2a\x55\x00\x00\x00\x10\x00\x00\x3a\x71\x03\x01\x02\x03\x05/w/bt\x00\x8a\x40\x00\x00\xc6\x80\x00\x81\xa0\x80\x02.s\x00",
            b"\x01\x00\x01\x1a\x10\x00\x00\x00\x01\x00\x00\x00\x84\x45CAppKit\x00",
        ],
        fuzz::cif,
    );
}
