//! `backtrail trace show`.

use std::io::{self, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::thread::available_parallelism;

use backtrail_trace::{
    ClockFormat, Condition, Event, JsonWriter, Recover, Rendered, StreamReader, TextWriter, TraceError, TraceErrorKind,
    render,
};
use clap::Args;

use super::input::{Input, Span, failure, tell_losses};
use crate::error::{Failure, Status};
use crate::output;

/// Print the events of traces in time order, as babeltrace2 does.
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    span: Span,
    /// Print only events that satisfy CONDITION: comparisons of fields, and of name, cpu, process
    /// and thread, joined by && and ||. In texts, * and ? stand for any characters.
    #[arg(long = "where", value_name = "CONDITION", value_parser = Condition::parse)]
    condition: Option<Condition>,
    /// Print times as seconds since the clock's origin.
    #[arg(long)]
    clock_seconds: bool,
    /// Print the date before times of day.
    #[arg(long, conflicts_with = "clock_seconds")]
    clock_date: bool,
    /// Leave out the time since the previous event.
    #[arg(long)]
    no_delta: bool,
    /// Print each event as a JSON object on one line.
    #[arg(long)]
    json: bool,
    /// Continue after unreadable packets, and report their number at the end. Also show what a
    /// killed writer left in its rings.
    #[arg(long)]
    recover: bool,
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let streams = open(arguments).map_err(|error| hinted(error, arguments.recover))?;
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

fn open(arguments: &Show) -> Result<Vec<StreamReader>, ShowError> {
    let traces = arguments.input.open().map_err(ShowError::Other)?;
    let mut options = arguments.span.options(&traces).map_err(ShowError::Other)?;
    if arguments.recover {
        options.recover = Recover::NextPacket;
    }
    let mut streams = Vec::new();
    for trace in traces {
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
    condition: Option<&'o Condition>,
    writer: TextWriter,
    lines: Vec<u8>,
    out: &'o mut dyn Write,
    result: io::Result<()>,
}

impl Printer<'_> {
    fn new<'o>(arguments: &'o Show, out: &'o mut dyn Write) -> Printer<'o> {
        let format = match (arguments.clock_seconds, arguments.clock_date) {
            (true, _) => ClockFormat::Seconds,
            (_, true) => ClockFormat::Date,
            _ => ClockFormat::TimeOfDay,
        };
        let mut writer = TextWriter::new(format);
        if arguments.span.clock_gmt {
            writer = writer.in_utc();
        }
        if arguments.no_delta {
            writer = writer.without_delta();
        }
        Printer {
            json: arguments.json,
            condition: arguments.condition.as_ref(),
            writer,
            lines: Vec::with_capacity(2 * CHUNK),
            out,
            result: Ok(()),
        }
    }

    /// Prints all events, up to the first error.
    fn print(&mut self, streams: Vec<StreamReader>) -> Rendered {
        let (json, condition) = (self.json, self.condition);
        // Nothing is made of an event that is left out.
        let make = move |event: &Event<'_>, bytes: &mut Vec<u8>| match json {
            _ if condition.is_some_and(|condition| !condition.matches(event)) => {}
            true => JsonWriter.event(bytes, event),
            false => TextWriter::fields(bytes, event),
        };
        let threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        render(streams, threads, make, |time, bytes| {
            if bytes.is_empty() {
                return ControlFlow::Continue(());
            }
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
