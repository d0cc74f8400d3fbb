//! Recorders that are killed at random times, and disks that are full at many sizes.

use std::time::Duration;

use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::text::Random;
use backtrail_testkit::{endings, place};

/// How often each is tried.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kill this many recorders.
    #[arg(long, default_value_t = 500)]
    kills: u32,
    /// Record into file systems of this many sizes.
    #[arg(long, default_value_t = 50)]
    sizes: u32,
    /// Start the sequence of random times with this number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = Backtrail::new(place::release("backtrail", "backtrail")?);
    let program = endings::worker().map_err(|missing| missing.to_string())?;
    let mut random = Random::new(options.seed);
    let (mut wrong, mut skipped) = (0, 0);
    for _ in 0..options.kills {
        let after = Duration::from_micros(random.below(4_500_000) as u64);
        if let Err(error) = endings::killed(&backtrail, &program, after) {
            println!("killed after {after:?}: {error}");
            wrong += 1;
        }
    }
    for number in 0..options.sizes {
        // From one page to more than a recording takes.
        match endings::full(&backtrail, &program, 4 * (1 + number * number / 8 + number)) {
            Ok(Some(())) => {}
            Ok(None) => skipped += 1,
            Err(error) => {
                println!("full: {error}");
                wrong += 1;
            }
        }
    }
    let (kills, sizes) = (options.kills, options.sizes);
    println!("{kills} recorders killed, {sizes} sizes of disks ({skipped} skipped): {wrong} wrong");
    Ok(wrong == 0)
}
