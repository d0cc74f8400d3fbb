//! Fuzz targets as tests.

use super::mutate;
use backtrail_testkit::text::Random;
use std::time::{Duration, Instant};

/// Runs a target for a second on valid inputs with a few bytes changed, each from its own place
/// on.
pub(crate) fn run(target: fn(&[u8]), seeds: &[(Vec<u8>, usize)], text: bool) {
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let mut runs = 0u64;
    for (seed, _) in seeds {
        target(seed);
    }
    while start.elapsed() < Duration::from_secs(1) {
        let (seed, from) = &seeds[random.below(seeds.len())];
        target(&mutate(&mut random, seed, *from, text));
        runs += 1;
    }
    println!("{runs} runs");
    assert!(runs > 100);
}
