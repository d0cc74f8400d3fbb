//! Every verb with a failure at each of its system calls, and at each of its allocations.

use std::path::Path;

use backtrail_testkit::faults::{CASES, Faults, What};
use backtrail_testkit::place;

/// Which failures are tried.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Try each N-th allocation only, and all system calls.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Try only cases that begin with this text, such as `sframe add`.
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = place::release("backtrail", "backtrail")?;
    let faults = Faults::new(Path::new(&backtrail)).map_err(|missing| missing.to_string())?;
    let mut all_are_right = true;
    for case in CASES.iter().filter(|case| case.arguments.starts_with(&options.only)) {
        if !faults.can_run(case) {
            println!("SKIPPED: {}", case.arguments);
            continue;
        }
        for (what, step) in [(What::Call, 1), (What::Allocation, options.every)] {
            let (mut tried, mut wrong) = (0, 0);
            for number in (1..).step_by(step as usize) {
                let outcome = faults.run(case, what, number).map_err(|missing| missing.to_string())?;
                tried += 1;
                if let Some(text) = &outcome.wrong {
                    wrong += 1;
                    println!("{text}");
                }
                if !outcome.was_met {
                    break;
                }
            }
            println!("{}: {what:?}: {tried} failures, {wrong} wrong", case.arguments);
            all_are_right &= wrong == 0;
        }
    }
    Ok(all_are_right)
}
