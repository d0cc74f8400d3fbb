//! Traces of any dialect, in.

use crate::constants::METADATA_ALLOWANCE;
use crate::content::{Key, Unpacking};
use crate::metadata;
use backtrail_trace::constants::{METADATA_FILE, PACKET_MAGIC};
use backtrail_trace::content::ContentDecoder;
use backtrail_trace::description::{Clock, Description, StreamClass};
use backtrail_trace::regular;
use backtrail_trace::{
    DecodeError, DecodeErrorKind, Dialect, Finding, Options, Plan, SourceLine, StreamReader, Trace, TraceError,
    TraceErrorKind, parse_metadata,
};
use backtrail_wire::{Bytes, Endian};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the trace of any dialect in this directory. `key` is for encrypted packets.
///
/// # Errors
///
/// The directory or its metadata cannot be read, or a stream's file belongs to no section.
pub fn open(directory: &Path, key: Option<Key>) -> Result<Trace, TraceError> {
    let path = directory.join(METADATA_FILE);
    let fail = |kind| TraceError {
        path: path.clone(),
        kind,
    };
    let bytes = regular::read(&path).map_err(|error| fail(TraceErrorKind::Io(error)))?;
    if Dialect::of_metadata(&bytes).map_err(fail)? != Dialect::Rfc1_1 {
        return Trace::open(directory);
    }
    let order = data_order(&Trace::stream_files(directory)?);
    let description = description(&bytes, order).map_err(fail)?;
    Trace::described(directory, Dialect::Rfc1_1, description, Some(decoder(key)))
}

/// Reads all of the trace in a directory and returns everything that is wrong with it, by file and
/// place.
pub fn check(directory: &Path, key: Option<Key>) -> Vec<Finding> {
    match open(directory, key) {
        Ok(trace) => trace.check(),
        Err(error) => vec![error.into()],
    }
}

/// The line of metadata in which an error is, in any dialect, as long as the file exists.
pub fn source_line(error: &TraceError) -> Option<SourceLine> {
    let TraceErrorKind::Tsdl(_) = error.kind else {
        return error.source_line();
    };
    let metadata = regular::read(&error.path).ok()?;
    if Dialect::of_metadata(&metadata).ok()? != Dialect::Rfc1_1 {
        return error.source_line();
    }
    let contents = contents(&metadata, packet_order(&metadata).unwrap_or(Endian::NATIVE)).ok()?;
    error.line_in(&String::from_utf8(lines(contents.text)).ok()?)
}

/// Undoes what was done to packets.
pub fn decoder(key: Option<Key>) -> Arc<dyn ContentDecoder> {
    Arc::new(Unpacking { key })
}

/// Parses metadata of any dialect. `data_order` is the byte order of the data packets, if known:
/// the RFC's metadata does not have it.
pub fn parse_any(metadata: &[u8], data_order: Option<Endian>) -> Result<(Dialect, Description), TraceErrorKind> {
    match Dialect::of_metadata(metadata)? {
        Dialect::Rfc1_1 => Ok((Dialect::Rfc1_1, description(metadata, data_order)?)),
        _ => parse_metadata(metadata),
    }
}

/// Byte order of the data packets, by the magic number of the first. The reader checks that the
/// others agree.
fn data_order(streams: &[PathBuf]) -> Option<Endian> {
    streams.iter().find_map(|path| {
        let mut magic = [0; 4];
        let file = regular::open(path).ok()?;
        file.read_exact_at(&mut magic, 0).ok()?;
        packet_order(&magic)
    })
}

/// Byte order by the magic number at the start of a packet (RFC 5).
pub fn packet_order(packet: &[u8]) -> Option<Endian> {
    [Endian::Little, Endian::Big]
        .into_iter()
        .find(|&order| Bytes::new(packet, order).u32(0).map(u64::from) == Ok(PACKET_MAGIC))
}

/// Metadata packets are ordinary packets with strings in them (RFC 7); their byte order may differ
/// from that of the data.
fn description(bytes: &[u8], data_order: Option<Endian>) -> Result<Description, TraceErrorKind> {
    let order = packet_order(bytes).unwrap_or(Endian::NATIVE);
    let contents = contents(bytes, order)?;
    let text = lines(contents.text);
    let text = std::str::from_utf8(&text).map_err(|error| TraceErrorKind::Utf8(error.valid_up_to() as u64))?;
    let mut description = metadata::parse(text, data_order.unwrap_or(order)).map_err(TraceErrorKind::Tsdl)?;
    description.session = contents.session;
    Ok(description)
}

/// Each string is an entry, and what lies between entries does not matter.
fn lines(mut strings: Vec<u8>) -> Vec<u8> {
    strings
        .iter_mut()
        .filter(|byte| **byte == 0)
        .for_each(|byte| *byte = b'\n');
    strings
}

/// The contents of metadata packets, one after the other.
struct Contents {
    text: Vec<u8>,
    session: Option<u32>,
}

/// Takes the contents out of metadata packets. They are read as a stream of packets without events.
fn contents(bytes: &[u8], order: Endian) -> Result<Contents, TraceErrorKind> {
    let described = Description {
        clocks: vec![Clock::nanoseconds("", 0)],
        packet_header: Some(metadata::packet_header(order)),
        streams: vec![StreamClass::default()],
        ..Description::default()
    };
    let plan = Plan::new(described).map_err(TraceErrorKind::Description)?;
    let reader = StreamReader::in_memory(Arc::new(plan), Path::new(""), bytes.to_vec(), Options::default());
    let mut reader = reader.with_content(Some(decoder(None)));
    let mut contents = Contents {
        text: Vec::new(),
        session: None,
    };
    while reader.next_packet().map_err(|error| error.kind)? {
        let Some(packet) = reader.packet() else { break };
        let (offset, number) = (packet.offset, packet.session);
        let wrong = |kind| {
            let error = DecodeError { kind, bit: 0 };
            Err(TraceErrorKind::Packet { offset, error })
        };
        let session = number.map(|session| session as u32);
        if offset > 0 && session != contents.session {
            return wrong(DecodeErrorKind::Session(number.unwrap_or(0)));
        }
        contents.session = session;
        contents.text.extend_from_slice(reader.packet_bytes().1);
        if contents.text.len() > bytes.len().saturating_add(METADATA_ALLOWANCE) {
            return wrong(DecodeErrorKind::Bomb);
        }
    }
    Ok(contents)
}
