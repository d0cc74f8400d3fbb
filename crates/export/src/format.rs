//! The formats of other tools, and what each cannot hold.

use std::io;

use crate::samples::{Frame, Samples};
use crate::{firefox, folded, otlp, perf_script, pprof, speedscope};

/// A format that other tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `profile.proto` of pprof, compressed by gzip.
    Pprof,
    /// The Firefox Profiler's processed profile.
    Firefox,
    /// The JSON of speedscope.
    Speedscope,
    /// OpenTelemetry's profiles, `ProfilesData` of `v1development`.
    Otlp,
    /// One line for each distinct stack, for flame graph tools.
    Folded,
    /// The text that `perf script` prints.
    PerfScript,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] = [
        Format::Pprof,
        Format::Firefox,
        Format::Speedscope,
        Format::Otlp,
        Format::Folded,
        Format::PerfScript,
    ];

    /// Its name at the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Pprof => "pprof",
            Format::Firefox => "firefox",
            Format::Speedscope => "speedscope",
            Format::Otlp => "otlp",
            Format::Folded => "folded",
            Format::PerfScript => "perf-script",
        }
    }

    /// The parts of these samples that the format cannot hold, one phrase each.
    pub fn left_out(self, samples: &Samples) -> Vec<&'static str> {
        let mut phrases = Vec::new();
        let mut say = |holds: bool, present: bool, phrase| {
            if !holds && present {
                phrases.push(phrase);
            }
        };
        use Format::{Firefox, Folded, Otlp, PerfScript, Pprof};
        let any = !samples.rows.is_empty();
        say(matches!(self, Firefox | Otlp | PerfScript), any, "the times of samples");
        say(matches!(self, Otlp | PerfScript), any, "the CPUs of samples");
        say(self != Folded, any, "threads");
        say(
            matches!(self, Pprof | Otlp | PerfScript | Firefox),
            any,
            "the addresses of frames",
        );
        let build_ids = samples.files.iter().any(|file| !file.build_id.is_empty());
        say(matches!(self, Pprof | Otlp | Firefox), build_ids, "build ids");
        let mut calls = samples.locations.iter().flat_map(|location| &location.calls);
        say(
            matches!(self, Pprof | Otlp | Firefox),
            calls.any(|call| call.line.is_some()),
            "line numbers",
        );
        let markers = samples.frames.iter().any(|frame| matches!(frame, Frame::Marker(_)));
        say(self != PerfScript, markers, "why stacks are incomplete");
        say(false, samples.lost > 0, "the number of lost samples");
        phrases
    }
}

/// Writes the samples in the format. `title` names the recording for people.
pub fn write(samples: &Samples, format: Format, title: &str, out: &mut dyn io::Write) -> io::Result<()> {
    match format {
        Format::Pprof => pprof::write(samples, out),
        Format::Firefox => firefox::write(samples, title, out),
        Format::Speedscope => speedscope::write(samples, title, out),
        Format::Otlp => otlp::write(samples, out),
        Format::Folded => folded::write(samples, out),
        Format::PerfScript => perf_script::write(samples, out),
    }
}
