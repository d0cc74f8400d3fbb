//! `cargo xtask precision`: programs are stepped from their first instruction to their last, and at every one the unwound chain is held
//! against a shadow stack that was kept from their calls and returns.

mod aarch64;
mod check;
mod cpu;
#[cfg(target_arch = "x86_64")]
mod ptrace;
mod shadow;
mod space;
mod x86_64;

use std::path::Path;
use std::time::Duration;

use check::{Checker, Way};
use ptrace::Bounds;
use space::{CodeIs, Source};

/// All of a dynamically linked program.
const CONVERTED: [Way; 3] = [
    Way { name: "version 3", source: Source::Sampling, remembered: false },
    Way { name: "version 3, remembered", source: Source::Sampling, remembered: true },
    Way { name: "version 2", source: Source::Version2, remembered: false },
];

pub(crate) fn run(command: &[String]) -> Result<(), String> {
    let started = std::time::Instant::now();
    let mut checker = Checker::new(&CONVERTED, CodeIs::Executable);
    let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    let done = ptrace::run(&mut checker, (Path::new(&command[0]), &arguments), &[], Bounds { instructions: 3_000_000, time: Duration::from_secs(100) });
    println!("{done:?} {:?}", started.elapsed());
    let o = &checker.outcome;
    println!("{} {:?} deepest {} threads {} handlers {} redirected {}", o.instructions, o.counts, o.deepest, o.threads, o.handlers, o.redirected);
    for (place, seen) in &o.places {
        println!("{} {} {:#x} call {} {:?}: {} {}", place.way, place.module, place.svma, place.is_call, place.fault, seen.instructions, seen.example);
    }
    Ok(())
}
