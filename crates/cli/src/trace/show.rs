//! `backtrail trace show`.

use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_trace::{
    ClockFormat, Condition, Event, Follow, JsonWriter, LineStyle, Options, Recover, Rendered, StreamReader, TextWriter,
    TraceError, TraceErrorKind, render,
};
use backtrail_trace_rfc::open as open_trace;
use clap::{Args, ValueEnum};

use super::input::{Input, Span, failure, tell_losses};
use super::symbols::Symbols;
use crate::error::{Failure, Status};
use crate::output;
use crate::times::seconds;

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
    /// Print times in cycles of the event's clock.
    #[arg(long, conflicts_with_all = ["clock_seconds", "clock_date", "json"])]
    clock_cycles: bool,
    /// Leave out the time since the previous event.
    #[arg(long)]
    no_delta: bool,
    /// Print the names of these fields [default: payload,context].
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "json")]
    names: Vec<Names>,
    /// Print these fields before the event's name [default:
    /// trace:hostname,trace:procname,trace:vpid].
    #[arg(short, long, value_name = "FIELDS", value_delimiter = ',', conflicts_with = "json")]
    fields: Vec<HeaderField>,
    /// Print each event as a JSON object on one line.
    #[arg(long)]
    json: bool,
    /// With --json, add the labels of enumerations, the event's level, and its clock with cycles.
    #[arg(long, requires = "json")]
    labels: bool,
    /// Print the functions of an application's stacks, of LTTng's `ip` and call stacks, and of
    /// perf's call chains, as far as the trace describes the processes and their files are here.
    #[arg(long)]
    symbols: bool,
    /// Continue after unreadable packets, and report their number at the end. Also show what a
    /// killed writer left in its rings.
    #[arg(long)]
    recover: bool,
    /// Go on when traces grow, until interrupted: print what is appended to streams, new streams
    /// and new traces below the directories.
    #[arg(long)]
    follow: bool,
    /// With --follow, do not wait for a stream to which nothing was appended for SECS seconds.
    #[arg(long, value_name = "SECS", default_value = "2", value_parser = seconds, requires = "follow")]
    idle: Duration,
    /// With --follow, stop after SECS seconds.
    #[arg(long, value_name = "SECS", value_parser = seconds, requires = "follow")]
    duration: Option<Duration>,
}

/// Fields with a name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Names {
    All,
    None,
    Header,
    #[value(alias = "ctx")]
    Context,
    #[value(alias = "arg", alias = "args")]
    Payload,
    Scope,
}

/// A field before the event's name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HeaderField {
    All,
    #[value(name = "trace:hostname")]
    Hostname,
    #[value(name = "trace:domain")]
    Domain,
    #[value(name = "trace:procname")]
    Procname,
    #[value(name = "trace:vpid")]
    Vpid,
    Loglevel,
}

impl Show {
    fn style(&self) -> LineStyle {
        let mut style = LineStyle::default();
        if !self.names.is_empty() {
            let has = |names| self.names.contains(&names) || self.names.contains(&Names::All);
            style.header_names = has(Names::Header);
            style.context_names = has(Names::Context);
            style.payload_names = has(Names::Payload);
            style.scope_names = has(Names::Scope);
        }
        if !self.fields.is_empty() {
            let has = |field| self.fields.contains(&field) || self.fields.contains(&HeaderField::All);
            style.hostname = has(HeaderField::Hostname);
            style.domain = has(HeaderField::Domain);
            style.procname = has(HeaderField::Procname);
            style.vpid = has(HeaderField::Vpid);
            style.level = has(HeaderField::Loglevel);
        }
        style
    }
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    if arguments.follow {
        return follow(arguments);
    }
    let streams = open(arguments).map_err(|error| hinted(error, arguments.recover))?;
    let symbols = arguments.symbols.then(Symbols::new);
    let mut rendered = Rendered {
        streams: Vec::new(),
        error: None,
    };
    output::to_stdout(|out| {
        let mut printer = Printer::new(arguments, symbols.as_ref(), out);
        rendered = printer.print(streams);
        printer.finish()
    })?;
    rendered.streams.iter().for_each(tell_losses);
    match rendered.error {
        Some(error) => Err(hinted(ShowError::Trace(error), arguments.recover)),
        None => Ok(Status::Done),
    }
}

/// The time between two looks at traces that do not grow.
const PAUSE: Duration = Duration::from_millis(20);

/// Prints what is written, until interrupted.
fn follow(arguments: &Show) -> Result<Status, Failure> {
    let mut options = match arguments.span.is_given() {
        // A time of day is one of the day of the first event.
        true => arguments.span.options(&arguments.input.open()?)?,
        false => Options::default(),
    };
    if arguments.recover {
        options.recover = Recover::NextPacket;
    }
    for root in &arguments.input.traces {
        fs::read_dir(root).map_err(|error| Failure::of(root, error))?;
    }
    let key = arguments.input.key()?;
    let roots = &arguments.input.traces;
    let mut follow = Follow::new(roots, options, arguments.idle, move |directory| {
        open_trace(directory, key)
    });
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let mut error = None;
    let symbols = arguments.symbols.then(Symbols::new);
    output::to_stdout(|out| {
        let mut printer = Printer::new(arguments, symbols.as_ref(), out);
        let mut bytes = Vec::new();
        loop {
            let is_over = signals.next().is_some() || arguments.duration.is_some_and(|limit| begin.elapsed() >= limit);
            let polled = follow.poll(is_over, |event| {
                bytes.clear();
                printer.append(event, &mut bytes);
                printer.take(event.time(), &bytes)
            });
            let more = match polled {
                Ok(ControlFlow::Continue(more)) => more,
                Ok(ControlFlow::Break(())) => break,
                Err(found) => {
                    error = Some(found);
                    break;
                }
            };
            if printer.flush().is_break() || is_over {
                break;
            }
            printer.out.flush()?;
            if !more {
                sleep(PAUSE);
            }
        }
        printer.finish()
    })?;
    follow.into_streams().iter().for_each(tell_losses);
    match error {
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

/// What is printed of an event.
#[derive(Clone, Copy)]
enum Form {
    Json,
    /// With labels, levels and clocks.
    JsonWithLabels,
    Text(LineStyle),
    /// The event's cycles come first, in eight bytes, and a byte that says whether there are any.
    Cycles(LineStyle),
}

impl Form {
    fn of(arguments: &Show) -> Form {
        match (arguments.json, arguments.labels, arguments.clock_cycles) {
            (true, false, _) => Form::Json,
            (true, true, _) => Form::JsonWithLabels,
            (false, _, false) => Form::Text(arguments.style()),
            (false, _, true) => Form::Cycles(arguments.style()),
        }
    }

    fn append(self, event: &Event<'_>, bytes: &mut Vec<u8>) {
        match self {
            Form::Json => JsonWriter.event(bytes, event),
            Form::JsonWithLabels => JsonWriter.event_with_labels(bytes, event),
            Form::Text(style) => TextWriter::styled_fields(bytes, event, style),
            Form::Cycles(style) => {
                bytes.extend(event.cycles().unwrap_or(0).to_ne_bytes());
                bytes.push(u8::from(event.cycles().is_some()));
                TextWriter::styled_fields(bytes, event, style);
            }
        }
    }
}

struct Printer<'o> {
    form: Form,
    symbols: Option<&'o Symbols>,
    condition: Option<&'o Condition>,
    writer: TextWriter,
    lines: Vec<u8>,
    out: &'o mut dyn Write,
    result: io::Result<()>,
}

impl<'o> Printer<'o> {
    fn new(arguments: &'o Show, symbols: Option<&'o Symbols>, out: &'o mut dyn Write) -> Printer<'o> {
        let format = match (arguments.clock_seconds, arguments.clock_date) {
            (true, _) => ClockFormat::Seconds,
            (_, true) => ClockFormat::Date,
            _ => ClockFormat::TimeOfDay,
        };
        let mut writer = TextWriter::new(format).styled(arguments.style());
        if arguments.span.clock_gmt {
            writer = writer.in_utc();
        }
        if arguments.no_delta {
            writer = writer.without_delta();
        }
        Printer {
            form: Form::of(arguments),
            symbols,
            condition: arguments.condition.as_ref(),
            writer,
            lines: Vec::with_capacity(2 * CHUNK),
            out,
            result: Ok(()),
        }
    }

    /// Prints all events, up to the first error.
    fn print(&mut self, streams: Vec<StreamReader>) -> Rendered {
        let make = self.make();
        // What an event says of its process is needed for later ones.
        let threads = match self.symbols {
            Some(_) => 1,
            None => available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS),
        };
        render(streams, threads, make, |time, bytes| self.take(time, bytes))
    }

    fn append(&self, event: &Event<'_>, bytes: &mut Vec<u8>) {
        self.make()(event, bytes);
    }

    /// Nothing is made of an event that is left out.
    fn make(&self) -> impl Fn(&Event<'_>, &mut Vec<u8>) + Sync + use<'o> {
        let (form, condition, symbols) = (self.form, self.condition, self.symbols);
        move |event: &Event<'_>, bytes: &mut Vec<u8>| {
            if let Some(symbols) = symbols {
                symbols.learn(event);
            }
            if condition.is_some_and(|condition| !condition.matches(event)) {
                return;
            }
            form.append(event, bytes);
            if let Some(symbols) = symbols {
                symbols.annotate(event, bytes, matches!(form, Form::Json | Form::JsonWithLabels));
            }
        }
    }

    /// Prints what [`Form::append`] made of an event.
    fn take(&mut self, time: Option<i64>, bytes: &[u8]) -> ControlFlow<()> {
        let mut bytes = bytes;
        if bytes.is_empty() {
            return ControlFlow::Continue(());
        }
        match self.form {
            Form::Json | Form::JsonWithLabels => {}
            Form::Text(_) => self.writer.time(&mut self.lines, time),
            Form::Cycles(_) => {
                if let Some((&cycles, [is_some, rest @ ..])) = bytes.split_first_chunk() {
                    let cycles = (*is_some != 0).then_some(u64::from_ne_bytes(cycles));
                    self.writer.cycles(&mut self.lines, cycles);
                    bytes = rest;
                }
            }
        }
        self.lines.extend_from_slice(bytes);
        match self.lines.len() < CHUNK {
            true => ControlFlow::Continue(()),
            false => self.flush(),
        }
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
