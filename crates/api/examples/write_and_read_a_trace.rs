//! Writes a trace of one event, in CTF 2, and reads it back.
//! `cargo run --example write_and_read_a_trace -- DIRECTORY`

use backtrail_api::trace::description::{Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct};
use backtrail_api::trace::{Dialect, Endian, Options, StreamOptions, Trace, TraceWriter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or("usage: write_and_read_a_trace DIRECTORY")?;
    let fields = Struct::new()
        .with("bytes", Integer::unsigned(32, Endian::NATIVE))
        .with("path", FieldClass::String(Encoding::Utf8));
    let events = vec![EventClass::new(0, "app:read", fields)];
    let description = Description::of_events(Clock::nanoseconds("monotonic", 0), events);
    let trace = TraceWriter::create(directory.as_ref(), description, Dialect::V2)?;
    let mut stream = trace.stream("main_0", StreamOptions::for_cpu(0, 0))?;
    let mut event = stream.writer().event(0, 1_000);
    event.u32(512);
    event.string("/etc/hostname");
    event.finish()?;
    stream.flush(2_000)?;

    let mut events = Trace::open(directory.as_ref())?.events(Options::default())?;
    while let Some(event) = events.next()? {
        let bytes = event.field("bytes").and_then(|value| value.as_u64());
        println!("{}: {} bytes", event.name(), bytes.ok_or("no such field")?);
    }
    Ok(())
}
