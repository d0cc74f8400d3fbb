//! `backtrail trace show`.

use std::io::{self, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::thread::available_parallelism;

use backtrail_trace::{
    ClockFormat, Event, JsonWriter, Options, Recover, Rendered, StreamReader, TextWriter, TraceError, TraceErrorKind,
    render,
};
use clap::Args;

use super::input::{Input, failure, tell_losses};
use crate::error::{Failure, Status};
use crate::output;

/// Print the events of traces in time order, as babeltrace2 does.
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    input: Input,
    /// Print times as seconds since the clock's origin.
    #[arg(long)]
    clock_seconds: bool,
    /// Print each event as a JSON object on one line.
    #[arg(long)]
    json: bool,
    /// Continue after unreadable packets, and report their number at the end. Also show what a
    /// killed writer left in its rings.
    #[arg(long)]
    recover: bool,
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let mut options = Options::default();
    if arguments.recover {
        options.recover = Recover::NextPacket;
    }
    let streams = open(arguments, options).map_err(|error| hinted(error, arguments.recover))?;
    let mut rendered = Rendered {
        streams: Vec::new(),
        error: None,
    };
    output::to_stdout(|out| {
        let mut printer = Printer::new(arguments, out);
        rendered = printer.print(streams);
        printer.finish()
    })?;
    rendered.streams.iter().for_each(tell_losses);
    match rendered.error {
        Some(error) => Err(hinted(ShowError::Trace(error), arguments.recover)),
        None => Ok(Status::Done),
    }
}

enum ShowError {
    Trace(TraceError),
    Other(Failure),
}

fn hinted(error: ShowError, recovering: bool) -> Failure {
    match error {
        ShowError::Trace(error) => {
            let hint = !recovering && matches!(error.kind, TraceErrorKind::Packet { .. });
            let failure = failure(&error);
            match hint && !failure.has_help() {
                true => failure.help("--recover goes on after what cannot be read"),
                false => failure,
            }
        }
        ShowError::Other(failure) => failure,
    }
}

fn open(arguments: &Show, options: Options) -> Result<Vec<StreamReader>, ShowError> {
    let mut streams = Vec::new();
    for trace in arguments.input.open().map_err(ShowError::Other)? {
        for index in 0..trace.streams().len() {
            streams.push(trace.stream(index, options).map_err(ShowError::Trace)?);
        }
        if arguments.recover {
            streams.extend(trace.rings(options).map_err(ShowError::Trace)?);
        }
    }
    Ok(streams)
}

/// Bytes of text written at a time.
const CHUNK: usize = 64 << 10;

/// The most threads: the one that merges what they decode cannot keep up with more.
const MOST_THREADS: usize = 8;

struct Printer<'o> {
    json: bool,
    writer: TextWriter,
    lines: Vec<u8>,
    out: &'o mut dyn Write,
    result: io::Result<()>,
}

impl Printer<'_> {
    fn new<'o>(arguments: &Show, out: &'o mut dyn Write) -> Printer<'o> {
        let format = match arguments.clock_seconds {
            true => ClockFormat::Seconds,
            false => ClockFormat::TimeOfDay,
        };
        Printer {
            json: arguments.json,
            writer: TextWriter::new(format),
            lines: Vec::with_capacity(2 * CHUNK),
            out,
            result: Ok(()),
        }
    }

    /// Prints all events, up to the first error.
    fn print(&mut self, streams: Vec<StreamReader>) -> Rendered {
        let json = self.json;
        let make = move |event: &Event<'_>, bytes: &mut Vec<u8>| match json {
            true => JsonWriter.event(bytes, event),
            false => TextWriter::fields(bytes, event),
        };
        let threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        render(streams, threads, make, |time, bytes| {
            if !json {
                self.writer.time(&mut self.lines, time);
            }
            self.lines.extend_from_slice(bytes);
            match self.lines.len() < CHUNK {
                true => ControlFlow::Continue(()),
                false => self.flush(),
            }
        })
    }

    fn flush(&mut self) -> ControlFlow<()> {
        self.result = self.out.write_all(&self.lines);
        self.lines.clear();
        match self.result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn finish(mut self) -> io::Result<()> {
        if self.result.is_ok() {
            let _ = self.flush();
        }
        self.result
    }
}
