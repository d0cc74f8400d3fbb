//! The stream of names in a recording's directory.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use backtrail_trace::{CreateError, EncodeError, Options, Recover, StreamOptions, Trace, TraceError, TraceWriter};

use super::decode::{SymbolsError, decode};
use super::{FILE, Symbols, encode};
use crate::events::{class, field, stream, symbols_stream};

/// Bytes of names in an event: several fit into a packet.
const PIECE_BYTES: usize = 256 << 10;

/// Why names could not be added to a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum AddError {
    /// The recording cannot be read.
    Read(TraceError),
    /// The stream cannot be written.
    Write(CreateError),
    /// An event cannot be written.
    Encode(EncodeError),
    /// A file cannot be made or replaced.
    Io(io::Error),
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddError::Read(error) => error.fmt(f),
            AddError::Write(error) => error.fmt(f),
            AddError::Encode(error) => error.fmt(f),
            AddError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AddError {}

impl From<TraceError> for AddError {
    fn from(error: TraceError) -> Self {
        AddError::Read(error)
    }
}

impl From<CreateError> for AddError {
    fn from(error: CreateError) -> Self {
        AddError::Write(error)
    }
}

impl From<EncodeError> for AddError {
    fn from(error: EncodeError) -> Self {
        AddError::Encode(error)
    }
}

impl From<io::Error> for AddError {
    fn from(error: io::Error) -> Self {
        AddError::Io(error)
    }
}

/// Adds the names to the recording in a directory, in place of earlier ones, and returns the bytes
/// that they take. Interrupted, it leaves the recording as it was.
///
/// # Errors
///
/// If the recording cannot be read, or its directory cannot be written.
pub fn add_symbols(directory: &Path, symbols: &Symbols) -> Result<u64, AddError> {
    let trace = Trace::open(directory)?;
    let mut description = trace.description().clone();
    let is_described = description.streams.iter().any(|class| class.id == stream::SYMBOLS);
    if !is_described {
        description.streams.push(symbols_stream());
    }
    let end = end_of(&trace)?;
    // A trace of its own in a hidden directory, which readers of traces skip, until it is complete.
    let hidden = directory.join(".symbols");
    match fs::remove_dir_all(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let written = write(&hidden, &trace, description, end, symbols).and_then(|bytes| {
        if !is_described {
            fs::rename(hidden.join("metadata"), directory.join("metadata"))?;
        }
        fs::rename(hidden.join(FILE), directory.join(FILE))?;
        Ok(bytes)
    });
    let removed = fs::remove_dir_all(&hidden);
    let bytes = written?;
    removed?;
    Ok(bytes)
}

fn write(
    hidden: &Path,
    trace: &Trace,
    description: backtrail_trace::description::Description,
    end: u64,
    symbols: &Symbols,
) -> Result<u64, AddError> {
    let encoded = encode(symbols)?;
    let writer = TraceWriter::create(hidden, description, trace.dialect())?;
    let options = StreamOptions {
        align_packet_bytes: 1,
        ..StreamOptions::for_cpu(stream::SYMBOLS, 0)
    };
    let mut file = writer.stream(FILE, options)?;
    let pieces = encoded.chunks(PIECE_BYTES);
    let count = pieces.len() as u32;
    for (number, piece) in pieces.enumerate() {
        let mut event = file.writer().event(class::SYMBOLS, end);
        event.i32(0);
        event.i32(0);
        event.u32(number as u32);
        event.u32(count);
        event.sequence_len(piece.len());
        event.bytes(piece);
        event.finish()?;
        file.flush(end)?;
    }
    Ok(file.bytes_written())
}

/// The time of the last packet, in the clock's cycles.
fn end_of(trace: &Trace) -> Result<u64, TraceError> {
    let mut end = 0;
    for index in 0..trace.streams().len() {
        let mut stream = trace.stream(
            index,
            Options {
                recover: Recover::EndStream,
                ..Options::default()
            },
        )?;
        while stream.next_packet()? {}
        end = end.max(stream.span().1.unwrap_or(0));
    }
    let clock = trace.description().clocks.first();
    let offset = clock.map_or(0, |clock| {
        let seconds = i128::from(clock.offset_seconds);
        seconds * 1_000_000_000 + i128::from(clock.offset_cycles)
    });
    Ok(u64::try_from(i128::from(end) - offset).unwrap_or(0))
}

/// The names in a trace; `None` if it has none.
pub(crate) fn read(trace: &Trace) -> Option<Result<Symbols, SymbolsError>> {
    let index = trace.streams().iter().position(|path| path.ends_with(FILE))?;
    Some(read_stream(trace, index))
}

fn read_stream(trace: &Trace, index: usize) -> Result<Symbols, SymbolsError> {
    let damaged = |_| SymbolsError::Damaged;
    let options = Options {
        recover: Recover::EndStream,
        ..Options::default()
    };
    let mut stream = trace.stream(index, options).map_err(damaged)?;
    let mut encoded = Vec::new();
    let (mut read, mut expected) = (0, None);
    while let Some(event) = stream.next().map_err(damaged)? {
        if event.name() != class::NAMES[class::SYMBOLS as usize] {
            continue;
        }
        let number = |name: &str| event.field(name).and_then(|value| value.as_u64());
        let bytes = event.field(field::NAMES).and_then(|value| value.as_bytes());
        let (Some(piece), Some(pieces), Some(bytes)) = (number(field::PIECE), number(field::PIECES), bytes) else {
            return Err(SymbolsError::Damaged);
        };
        if piece != read || expected.is_some_and(|expected| expected != pieces) {
            return Err(SymbolsError::Damaged);
        }
        encoded.extend_from_slice(bytes);
        read += 1;
        expected = Some(pieces);
    }
    match expected == Some(read) {
        true => decode(&encoded),
        false => Err(SymbolsError::Damaged),
    }
}
