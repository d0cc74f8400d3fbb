//! `backtrail trace show`.

use std::io::{self, Write};

use backtrail_trace::{
    ClockFormat, Event, Events, JsonWriter, Options, Recover, TextWriter, TraceError, TraceErrorKind,
};
use clap::Args;

use super::{Input, failure, tell_losses};
use crate::error::{Failure, Status};
use crate::output;

/// Print the events of traces, in the order of time, as babeltrace2 does.
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    input: Input,
    /// Print times as seconds since the clock's origin.
    #[arg(long)]
    clock_seconds: bool,
    /// Print a JSON object for each event, a line each.
    #[arg(long)]
    json: bool,
    /// Go on after packets that cannot be read, and say at the end how many there were.
    #[arg(long)]
    recover: bool,
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let mut options = arguments.input.options()?;
    if arguments.recover {
        options.recover = Recover::NextPacket;
    }
    let mut events = open(arguments, options).map_err(|error| hinted(error, arguments.recover))?;
    let mut printer = Printer::new(arguments);
    let mut stopped = None;
    output::to_stdout(|out| {
        stopped = print(&mut events, &mut printer, out)?;
        Ok(())
    })?;
    events.streams().iter().for_each(tell_losses);
    match stopped {
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

fn open(arguments: &Show, options: Options) -> Result<Events, ShowError> {
    let mut streams = Vec::new();
    for trace in arguments.input.open().map_err(ShowError::Other)? {
        for index in 0..trace.streams().len() {
            streams.push(trace.stream(index, options).map_err(ShowError::Trace)?);
        }
    }
    Ok(Events::new(streams))
}

enum Printer {
    Text(TextWriter),
    Json(JsonWriter),
}

impl Printer {
    fn new(arguments: &Show) -> Printer {
        let format = match arguments.clock_seconds {
            true => ClockFormat::Seconds,
            false => ClockFormat::TimeOfDay,
        };
        match arguments.json {
            true => Printer::Json(JsonWriter),
            false => Printer::Text(TextWriter::new(format)),
        }
    }

    fn event(&mut self, line: &mut Vec<u8>, event: &Event<'_>) {
        match self {
            Printer::Text(writer) => writer.event(line, event),
            Printer::Json(writer) => writer.event(line, event),
        }
    }
}

/// Text is written in pieces of so many bytes.
const CHUNK: usize = 64 << 10;

/// Prints up to the end, or up to the error that it gives back.
fn print(events: &mut Events, printer: &mut Printer, out: &mut dyn Write) -> io::Result<Option<TraceError>> {
    let mut lines = Vec::with_capacity(2 * CHUNK);
    let stopped = loop {
        match events.next() {
            Ok(Some(event)) => printer.event(&mut lines, &event),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        if lines.len() >= CHUNK {
            out.write_all(&lines)?;
            lines.clear();
        }
    };
    out.write_all(&lines)?;
    Ok(stopped)
}
