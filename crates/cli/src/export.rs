//! `backtrail export`: writes a recording in the format of another tool.

use std::path::{Path, PathBuf};

use backtrail_export::{Format, Samples};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};

use crate::error::{Failure, Status, shown};
use crate::filter::FilterArguments;
use crate::{output, recorded};

/// Write a recording in another tool's format.
///
/// Anything that the format cannot hold is reported on standard error.
#[derive(Args)]
pub(crate) struct Export {
    /// Directory of the trace.
    #[arg(value_name = "TRACE", value_hint = ValueHint::DirPath)]
    trace: PathBuf,
    /// Write this format.
    #[arg(long, value_name = "FORMAT")]
    to: Target,
    /// Write this file; '-' is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    counted: recorded::Counted,
}

/// A format, by its name.
#[derive(Clone, Copy)]
struct Target(Format);

impl ValueEnum for Target {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: [Target; Format::ALL.len()] = {
            let mut all = [Target(Format::Pprof); Format::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = Target(Format::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Format::Pprof => "profile.proto, compressed by gzip",
            Format::Firefox => "JSON for profiler.firefox.com",
            Format::Speedscope => "JSON for speedscope.app",
            Format::Otlp => "OpenTelemetry profiles, v1development, binary",
            Format::Folded => "one line for each stack, for flame graph tools",
            _ => "the text of perf script",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

pub(crate) fn run(arguments: &Export) -> Result<Status, Failure> {
    let samples = recorded::samples(&arguments.trace, &arguments.filter, &arguments.counted)?;
    let title = arguments.trace.display().to_string();
    let format = arguments.to.0;
    output::to(&arguments.output, |out| {
        backtrail_export::write(&samples, format, &title, out)
    })?;
    say_left_out(&arguments.trace, &samples, format);
    Ok(Status::Done)
}

/// Reports what is notable about a recording, and what of it the format cannot hold.
pub(crate) fn say_left_out(trace: &Path, samples: &Samples, format: Format) {
    for note in &samples.notes {
        eprintln!("backtrail: {}: {note}", shown(trace));
    }
    let left_out = format.left_out(samples);
    if !left_out.is_empty() {
        eprintln!(
            "backtrail: left out, as {} cannot hold it: {}",
            format.name(),
            left_out.join(", ")
        );
    }
}
