//! A trace in another dialect.

mod from_rfc;
mod plain;
mod recode;
mod repack;
mod to_rfc;
mod unsaid;

pub use unsaid::Unsaid;

use super::packet::StreamOptions;
use super::trace::{TraceWriter, make_empty, new_file};
use crate::Dialect;
use crate::constants::METADATA_FILE;
use crate::content::{Compression, Key, Packing};
use crate::error::{CreateError, CreateErrorKind, EncodeError};
use crate::read::Trace;
use std::fs;
use std::path::Path;

/// How to convert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    /// For encrypted packets of the trace that is read.
    pub key: Option<Key>,
    /// What is done to the content of the RFC's packets.
    pub packing: Packing,
}

/// Makes the directory (or takes an empty one) and puts the trace into it, described in the other dialect. What of the description is
/// left out, since the other dialect has no words for it, is returned; it changes nothing of what the events say.
///
/// The streams of 1.8 and 2 have the same bytes, so they are copied as they are: sound or not, not a byte of them changes. Packets
/// of the RFC are others: from and to them packet headers and events are written anew. From the RFC to itself only what
/// is done to the content changes.
///
/// What the other dialect has no words for and events need is an error that names it.
pub fn convert(
    trace: &Trace,
    directory: &Path,
    dialect: Dialect,
    options: ConvertOptions,
) -> Result<Vec<Unsaid>, CreateError> {
    let packing = options.packing;
    if dialect != Dialect::Rfc1_1 && (packing.encryption.is_some() || packing.compression != Compression::None) {
        return Err(CreateError::new(
            directory,
            CreateErrorKind::Encode(EncodeError::Packing),
        ));
    }
    let mut left_out = Vec::new();
    match (trace.dialect(), dialect) {
        (Dialect::Rfc1_1, Dialect::Rfc1_1) => repacked(trace, directory, options)?,
        (_, Dialect::Rfc1_1) => {
            let described = to_rfc::described(trace, options.key)?;
            let writer = TraceWriter::create(directory, described.description, dialect)?;
            recoded(trace, &writer, &described.targets, options)?;
            let parts = [
                (described.unused, Unsaid::UnusedStreams),
                (described.unnamed_cpus, Unsaid::Cpus),
            ];
            left_out.extend(parts.into_iter().filter(|(is, _)| *is).map(|(_, what)| what));
        }
        (Dialect::Rfc1_1, _) => {
            let (description, targets) = from_rfc::described(trace)?;
            let writer = TraceWriter::create(directory, plain::described_for(dialect, description), dialect)?;
            recoded(trace, &writer, &targets, options)?;
        }
        _ => {
            let description = plain::described_for(dialect, trace.description().clone());
            TraceWriter::create(directory, description, dialect)?;
            copied(trace, directory)?;
        }
    }
    left_out.extend(unsaid::of(trace, dialect));
    Ok(left_out)
}

/// A stream and what its file in the other trace is.
struct Target {
    /// Index of the stream.
    stream: usize,
    /// Id of its class in the other description.
    class: u64,
    /// Number of the stream among those of its class, or of its CPU.
    instance: u64,
    /// The CPU that its packets tell.
    cpu: Option<u32>,
}

fn name_of(stream: &Path) -> &str {
    stream.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn copied(trace: &Trace, directory: &Path) -> Result<(), CreateError> {
    for stream in trace.streams() {
        let target = directory.join(stream.file_name().unwrap_or_default());
        fs::copy(stream, target).map_err(|error| CreateError::io(stream, error))?;
    }
    Ok(())
}

fn repacked(trace: &Trace, directory: &Path, options: ConvertOptions) -> Result<(), CreateError> {
    make_empty(directory)?;
    for (index, stream) in trace.streams().iter().enumerate() {
        let target = directory.join(stream.file_name().unwrap_or_default());
        repack::stream(trace, index, &target, options).map_err(|kind| CreateError::new(stream, kind))?;
    }
    let metadata = trace.directory().join(METADATA_FILE);
    fs::copy(&metadata, directory.join(METADATA_FILE)).map_err(|error| CreateError::io(&metadata, error))?;
    Ok(())
}

fn recoded(
    trace: &Trace,
    writer: &TraceWriter,
    targets: &[Target],
    options: ConvertOptions,
) -> Result<(), CreateError> {
    for target in targets {
        let path = &trace.streams()[target.stream];
        let stream = StreamOptions {
            instance_id: target.instance,
            context: target
                .cpu
                .map(|cpu| ("cpu_id".to_owned(), u64::from(cpu)))
                .into_iter()
                .collect(),
            max_packet_bytes: u32::MAX as usize,
            packing: options.packing,
            ..StreamOptions::for_cpu(target.class, 0)
        };
        let file = writer.new_stream_path(name_of(path), target.class)?;
        let mut reader = trace
            .stream(target.stream, options.into())
            .map_err(|error| CreateError::new(path, CreateErrorKind::Read(error.kind)))?;
        let mut open = || new_file(&file);
        recode::stream(&mut reader, writer.plan(), stream, &mut open).map_err(|kind| CreateError::new(path, kind))?;
    }
    Ok(())
}

impl From<ConvertOptions> for crate::Options {
    fn from(options: ConvertOptions) -> crate::Options {
        crate::Options {
            key: options.key,
            ..crate::Options::default()
        }
    }
}
