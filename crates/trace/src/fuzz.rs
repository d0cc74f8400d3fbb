//! What the fuzz targets and the mutation tests call: any bytes, no panic.

use crate::error::TraceErrorKind;
use crate::plan::Plan;
use crate::read::{Events, Options, Recover, StreamReader, decode_all};
use crate::{ClockFormat, JsonWriter, TextWriter, json2, rfc, tsdl};
use backtrail_wire::Endian;
use std::path::Path;
use std::sync::Arc;

/// TSDL: what is parsed and compiled can be written and parsed again with the same result.
pub fn tsdl(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(description) = tsdl::parse(text) else { return };
    if Plan::new(description.clone()).is_err() {
        return;
    }
    let Ok(written) = tsdl::write(&description) else { return };
    match tsdl::parse(&written) {
        Ok(again) => assert_eq!(description, again, "{written}"),
        Err(error) => panic!("{error}\n{written}"),
    }
}

/// CTF 2 metadata: likewise.
pub fn json2(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(description) = json2::parse(text) else { return };
    if Plan::new(description.clone()).is_err() {
        return;
    }
    let Ok(written) = json2::write(&description) else {
        panic!("what CTF 2 said, it can say");
    };
    match json2::parse(&written) {
        Ok(again) => assert_eq!(description, again, "{written}"),
        Err(error) => panic!("{error}\n{written}"),
    }
}

/// Metadata of the RFC: likewise, but for floating point numbers, which are read and not written.
pub fn rfc(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for order in [Endian::Little, Endian::Big] {
        let Ok(mut description) = rfc::parse(text, order) else {
            return;
        };
        if Plan::new(description.clone()).is_err() {
            continue;
        }
        description.session = Some(0);
        let written = match rfc::write(&description) {
            Ok(entries) => entries.join("\n"),
            Err(error) => {
                let kind = error.kind;
                let known = matches!(kind, rfc::WriteErrorKind::Float | rfc::WriteErrorKind::Mappings);
                assert!(known, "what the RFC said, it can say: {error}");
                continue;
            }
        };
        description.session = None;
        match rfc::parse(&written, order) {
            Ok(again) => assert_eq!(description, again, "{written}"),
            Err(error) => panic!("{error}\n{written}"),
        }
    }
}

/// A whole trace of one stream: four bytes with the length of the metadata, little endian, the metadata, the stream. All that
/// can be read is printed in both ways.
pub fn trace(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else {
        return;
    };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((metadata, stream)) = rest.split_at_checked(length) else {
        return;
    };
    let order = crate::metadata::packet_order(stream);
    let Ok((_, description)) = crate::metadata::parse(metadata, order) else {
        return;
    };
    let Ok(plan) = Plan::new(description) else { return };
    let options = Options {
        recover: Recover::NextPacket,
        ..Options::default()
    };
    let stream = StreamReader::of_memory(Arc::new(plan), Path::new(""), stream.to_vec(), None, options);
    let mut events = Events::new(vec![stream]);
    let (mut text, mut line) = (TextWriter::new(ClockFormat::Seconds), Vec::new());
    while let Ok(Some(event)) = events.next() {
        line.clear();
        text.event(&mut line, &event);
        JsonWriter.event(&mut line, &event);
    }
}

/// Reads a sound stream while its first, second, third … read fails: what comes before the failure is as it is without one, and the
/// failure is told, whatever else is forgiven. How many reads there are.
pub fn failing_reads(metadata: &[u8], stream: &[u8]) -> u64 {
    let (_, description) =
        crate::metadata::parse(metadata, crate::metadata::packet_order(stream)).expect("sound metadata");
    let plan = Arc::new(Plan::new(description).expect("a sound description"));
    let read = |reads: Option<u64>| {
        let options = Options {
            recover: Recover::NextPacket,
            ..Options::default()
        };
        let reader = StreamReader::of_memory(plan.clone(), Path::new(""), stream.to_vec(), None, options);
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
    let Ok((_, description)) = crate::metadata::parse(&data[..end], None) else {
        return;
    };
    let Ok(plan) = Plan::new(description) else { return };
    let _ = decode_all(&plan, &data[end + 2..]);
}
