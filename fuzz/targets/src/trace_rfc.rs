//! Entry points of the fuzz targets and the mutation tests, for traces of any dialect: any bytes,
//! no panic.

use backtrail_trace::{
    ClockFormat, Dialect, Events, JsonWriter, Options, Plan, PushReader, Recover, StreamReader, TextWriter, TraceError,
    TraceErrorKind,
};
use backtrail_trace_rfc::internals::{decoder, packet_order, parse_any};
use backtrail_trace_rfc::{Packing, metadata, open};
use backtrail_wire::Endian;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Metadata of the RFC: likewise, but for floating point numbers, which are read and not written.
pub fn rfc(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for order in [Endian::Little, Endian::Big] {
        let Ok(mut description) = metadata::parse(text, order) else {
            return;
        };
        if Plan::new(description.clone()).is_err() {
            continue;
        }
        description.session = Some(0);
        let written = match metadata::write(&description) {
            Ok(entries) => entries.join("\n"),
            Err(error) => {
                let kind = error.kind;
                let known = matches!(
                    kind,
                    metadata::WriteErrorKind::Float | metadata::WriteErrorKind::Mappings
                );
                assert!(known, "what the RFC said, it can say: {error}");
                continue;
            }
        };
        description.session = None;
        match metadata::parse(&written, order) {
            Ok(again) => assert_eq!(description, again, "{written}"),
            Err(error) => panic!("{error}\n{written}"),
        }
    }
}

/// A whole trace of one stream: four bytes with the length of the metadata, little endian, the
/// metadata, the stream. All that can be read is printed in both ways, and is the same if the
/// stream arrives in pieces.
pub fn trace(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else {
        return;
    };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((metadata, stream)) = rest.split_at_checked(length) else {
        return;
    };
    let Ok((_, description)) = parse_any(metadata, packet_order(stream)) else {
        return;
    };
    let Ok(plan) = Plan::new(description) else { return };
    let options = Options {
        recover: Recover::NextPacket,
        ..Options::default()
    };
    let plan = Arc::new(plan);
    let mut pushed = PushReader::new(plan.clone(), Path::new(""), options).with_content(Some(decoder(None)));
    let mut times = Vec::new();
    for piece in stream.chunks(1 + stream.len() / 7) {
        pushed.feed(piece);
        while let Ok(Some(event)) = pushed.next() {
            times.push(event.time());
        }
    }
    pushed.finish();
    while let Ok(Some(event)) = pushed.next() {
        times.push(event.time());
    }
    let stream = StreamReader::in_memory(plan, Path::new(""), stream.to_vec(), options);
    let mut stream = stream.with_content(Some(decoder(None)));
    let (mut text, mut line) = (TextWriter::new(ClockFormat::Seconds), Vec::new());
    let mut count = 0;
    while let Ok(Some(event)) = stream.next() {
        line.clear();
        text.event(&mut line, &event);
        JsonWriter.event(&mut line, &event);
        JsonWriter.event_with_labels(&mut line, &event);
        assert_eq!(times.get(count), Some(&event.time()));
        count += 1;
    }
    assert_eq!(times.len(), count);
}

/// Reads a sound stream while its first, second, third … read fails: what comes before the failure
/// is as it is without one, and the failure is reported, whatever else is skipped. Returns the
/// number of reads.
pub fn failing_reads(metadata: &[u8], stream: &[u8]) -> u64 {
    let (_, description) = parse_any(metadata, packet_order(stream)).expect("sound metadata");
    let plan = Arc::new(Plan::new(description).expect("a sound description"));
    let read = |reads: Option<u64>| {
        let options = Options {
            recover: Recover::NextPacket,
            ..Options::default()
        };
        let reader = StreamReader::in_memory(plan.clone(), Path::new(""), stream.to_vec(), options);
        let reader = reader.with_content(Some(decoder(None)));
        let reader = reads.into_iter().fold(reader, StreamReader::fail_after);
        let (mut events, mut text) = (Events::new(vec![reader]), Vec::new());
        loop {
            match events.next() {
                Ok(Some(event)) => JsonWriter.event(&mut text, &event),
                Ok(None) => return (text, None),
                Err(error) => return (text, Some(error.kind)),
            }
        }
    };
    let (whole, _) = read(None);
    for reads in 0.. {
        let (text, error) = read(Some(reads));
        assert!(whole.starts_with(&text), "after {reads} reads");
        match error {
            None => {
                assert_eq!(text, whole, "after {reads} reads");
                return reads;
            }
            Some(error) => assert!(matches!(error, TraceErrorKind::Io(_)), "{error}"),
        }
    }
    0
}

/// A packet of the trace whose metadata, of any dialect, ends at the first double zero byte.
pub fn packet(data: &[u8]) {
    let Some(end) = data.windows(2).position(|pair| pair == [0, 0]) else {
        return;
    };
    let Ok((_, description)) = parse_any(&data[..end], None) else {
        return;
    };
    let Ok(plan) = Plan::new(description) else { return };
    let stream = data[end + 2..].to_vec();
    let reader = StreamReader::in_memory(Arc::new(plan), Path::new(""), stream, Options::default());
    let mut reader = reader.with_content(Some(decoder(None)));
    if matches!(reader.next_packet(), Ok(true)) {
        while matches!(reader.next_of_packet(), Ok(Some(_))) {}
    }
}

/// How many conversions of a trace were made and how many refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Those that were made.
    pub made: usize,
    /// Those that were refused.
    pub refused: usize,
}

/// A trace as for [`trace`], whose stream is named `s_0`, converted into each dialect: what comes
/// of it says what is read from the original, or the conversion is refused.
pub fn convert(data: &[u8]) -> Converted {
    let mut done = Converted::default();
    let Some((length, rest)) = data.split_first_chunk() else {
        return done;
    };
    let Some((metadata, stream)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
        return done;
    };
    let folder = Scratch::new();
    let directory = folder.0.join("trace");
    fs::create_dir(&directory).expect("room for a trace");
    fs::write(directory.join("metadata"), metadata).expect("room for metadata");
    fs::write(directory.join("s_0"), stream).expect("room for a stream");
    let Ok(trace) = open(&directory, None) else {
        return done;
    };
    for target in [Dialect::Rfc1_1, Dialect::V1_8, Dialect::V2] {
        let there = folder.0.join(target.name());
        if backtrail_trace_rfc::convert(&trace, &there, target, Packing::default()).is_err() {
            done.refused += 1;
            continue;
        }
        let dialect = trace.dialect();
        // Streams are copied, sound or not.
        if dialect != Dialect::Rfc1_1 && target != Dialect::Rfc1_1 {
            continue;
        }
        match (lines(&directory), lines(&there)) {
            (Ok(before), Ok(after)) if dialect == target => assert_eq!(before, after),
            (Ok(before), Ok(after)) => assert_eq!(before.len(), after.len(), "{dialect} to {target}"),
            // Who converts to the same dialect looks at packets, not at events.
            (Err(_), Err(_)) if dialect == target => {}
            (before, after) => panic!("{dialect} to {target}: {before:?}, {after:?}"),
        }
        done.made += 1;
    }
    done
}

/// The events of a trace without the name of their stream or section.
fn lines(directory: &Path) -> Result<Vec<String>, TraceError> {
    let mut events = open(directory, None)?.events(Options::default())?;
    let mut lines = Vec::new();
    while let Some(event) = events.next()? {
        let mut line = Vec::new();
        JsonWriter.event(&mut line, &event);
        let line = String::from_utf8_lossy(&line);
        lines.extend(line.split_once(", \"name\": ").map(|(_, rest)| rest.to_owned()));
    }
    Ok(lines)
}

/// A folder that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("backtrail-convert-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a folder for temporary files");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
