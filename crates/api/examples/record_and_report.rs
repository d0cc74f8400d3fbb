//! Samples a command and prints where its time went.
//! `cargo run --all-features --example record_and_report -- DIRECTORY COMMAND [ARGUMENT…]`

use std::path::PathBuf;

use backtrail_api::profile::{Options as ReportOptions, Profile, TableOptions};
use backtrail_api::record::{
    DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, Dialect, Options, Storage, Target, Trigger, Walk, record,
};
use backtrail_api::recording::Reader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let output = PathBuf::from(arguments.next().ok_or("usage: record_and_report DIRECTORY COMMAND…")?);
    let outcome = record(&Options {
        target: Target::Command(arguments.collect()),
        output: output.clone(),
        storage: Storage::Whole,
        trigger: Trigger::Clock(DEFAULT_FREQUENCY),
        stack_bytes: DEFAULT_STACK_BYTES,
        walk: Walk::Copy,
        dialect: Dialect::V1_8,
        duration: None,
        cache: None,
        hold_files: false,
    })?;
    println!("{} samples", outcome.samples);

    let mut profile = Profile::new(ReportOptions::default());
    let mut reader = Reader::open(&output)?;
    while let Some(item) = reader.next()? {
        profile.add(&item);
    }
    let report = profile.finish(outcome.trace_bytes);
    report.write_table(&mut std::io::stdout(), &TableOptions::default())?;
    Ok(())
}
