//! `backtrail trace info`.

use std::io::{self, Write};

use backtrail_trace::description::format_uuid;
use backtrail_trace::{StreamReader, Trace, TraceError};
use clap::Args;
use serde_json::{Value, json};

use super::input::{Input, Span, failure};
use crate::error::{Failure, Status, one_line, shown};
use crate::output;

/// Count what traces contain, per stream.
#[derive(Args)]
pub(crate) struct Info {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    span: Span,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Info) -> Result<Status, Failure> {
    let mut summaries = Vec::new();
    let traces = arguments.input.open()?;
    let options = arguments.span.options(&traces)?;
    for trace in traces {
        let mut streams = Vec::new();
        for index in 0..trace.streams().len() {
            let read = || -> Result<StreamReader, TraceError> {
                let mut stream = trace.stream(index, options)?;
                while stream.next()?.is_some() {}
                Ok(stream)
            };
            streams.push(read().map_err(|error| failure(&error))?);
        }
        summaries.push((trace, streams));
    }
    output::to_stdout(|out| match arguments.json {
        true => writeln!(out, "{}", to_json(&summaries)),
        false => write_text(out, &summaries),
    })?;
    Ok(Status::Done)
}

type Summary = (Trace, Vec<StreamReader>);

fn events(summaries: &[Summary]) -> u64 {
    let streams = summaries.iter().flat_map(|(_, streams)| streams);
    streams.map(|stream| stream.statistics().events).sum()
}

fn uuid(trace: &Trace) -> Option<String> {
    trace.description().uuid.as_ref().map(format_uuid)
}

fn to_json(summaries: &[Summary]) -> Value {
    let traces: Vec<Value> = summaries
        .iter()
        .map(|(trace, streams)| {
            json!({
                "directory": trace.directory().to_string_lossy(),
                "format": trace.dialect().name(),
                "uuid": uuid(trace),
                "streams": streams.iter().map(stream_json).collect::<Vec<Value>>(),
            })
        })
        .collect();
    json!({"traces": traces, "events": events(summaries)})
}

fn file(stream: &StreamReader) -> String {
    let name = stream.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn stream_json(stream: &StreamReader) -> Value {
    let statistics = stream.statistics();
    let (begin, end) = stream.span();
    json!({
        "file": file(stream),
        "packets": statistics.packets,
        "events": statistics.events,
        "bytes": stream.file_bytes(),
        "begin_ns": begin,
        "end_ns": end,
        "discarded": statistics.discarded,
        "lost_packets": statistics.lost_packets,
    })
}

fn write_text(out: &mut dyn Write, summaries: &[Summary]) -> io::Result<()> {
    for (trace, streams) in summaries {
        write!(out, "{}: {}", shown(trace.directory()), trace.dialect())?;
        match uuid(trace) {
            Some(uuid) => writeln!(out, ", {uuid}")?,
            None => writeln!(out)?,
        }
        for stream in streams {
            let statistics = stream.statistics();
            write!(
                out,
                "  {}: {} events in {} packets, {} bytes",
                one_line(&file(stream)),
                statistics.events,
                statistics.packets,
                stream.file_bytes()
            )?;
            if let (Some(begin), Some(end)) = stream.span() {
                write!(out, ", {} s", end.saturating_sub(begin) as f64 / 1e9)?;
            }
            if statistics.discarded > 0 {
                write!(out, ", {} events discarded", statistics.discarded)?;
            }
            if statistics.lost_packets > 0 {
                write!(out, ", {} packets missing", statistics.lost_packets)?;
            }
            writeln!(out)?;
        }
    }
    writeln!(out, "{} events", events(summaries))
}
