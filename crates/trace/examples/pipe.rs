//! Prints the events of a stream that comes through a pipe, or from a socket with two arguments:
//!
//! `cat trace/channel0_0 | cargo run -p backtrail-trace --example pipe trace/metadata`
//! `cargo run -p backtrail-trace --example pipe trace/metadata localhost:5000`

use backtrail_trace::{ClockFormat, Options, Plan, PushReader, TextWriter, parse_metadata};
use std::error::Error;
use std::io::{Read, Write, stdin, stdout};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let metadata = arguments.next().ok_or("which metadata?")?;
    let mut input: Box<dyn Read> = match arguments.next() {
        Some(address) => Box::new(TcpStream::connect(address)?),
        None => Box::new(stdin().lock()),
    };
    let (_, description) = parse_metadata(&std::fs::read(metadata)?).map_err(|error| error.to_string())?;
    let mut reader = PushReader::new(Arc::new(Plan::new(description)?), Path::new("pipe"), Options::default());
    let mut writer = TextWriter::new(ClockFormat::TimeOfDay);
    let (mut out, mut text) = (stdout().lock(), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = input.read(&mut buffer)?;
        match count {
            0 => reader.finish(),
            _ => reader.feed(&buffer[..count]),
        }
        while let Some(event) = reader.next()? {
            writer.event(&mut text, &event);
            if text.len() > 64 << 10 {
                out.write_all(&text)?;
                text.clear();
            }
        }
        // What came is printed before more is waited for.
        out.write_all(&text)?;
        out.flush()?;
        text.clear();
        if count == 0 {
            return Ok(());
        }
    }
}
