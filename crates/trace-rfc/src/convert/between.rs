//! Which dialect a trace is converted from and to, and how.

use super::target::{Target, name_of};
use super::unsaid::{self, Unsaid};
use super::{from_rfc, idle, repack, to_rfc};
use crate::content::{Compression, Packing};
use crate::create::create;
use backtrail_trace::constants::METADATA_FILE;
use backtrail_trace::{CreateError, CreateErrorKind, Dialect, EncodeError, Options, StreamOptions, Trace, TraceWriter};
use std::path::Path;

/// Creates the directory (or takes an empty one) and writes the trace into it in another dialect.
/// Returns the parts of the description that the other dialect cannot express; leaving them out
/// changes nothing in the events.
///
/// The streams of 1.8 and 2 have the same bytes and are copied, damaged or not. Packets of the RFC
/// differ: to and from them, packet headers and events are written anew. From the RFC to itself,
/// only `packing` changes.
///
/// `packing` is what is done to the content of the RFC's packets.
///
/// # Errors
///
/// The trace cannot be read or written, or the other dialect cannot express what the events need;
/// the error names it.
pub fn convert(
    trace: &Trace,
    directory: &Path,
    dialect: Dialect,
    packing: Packing,
) -> Result<Vec<Unsaid>, CreateError> {
    convert_part(trace, directory, dialect, packing, Options::default()).map(|(unsaid, _)| unsaid)
}

/// The same for the events between [`Options::begin`] and [`Options::end`]. Also returns the number
/// of events outside that had to remain in packets of 1.8 or 2, because of their fields' alignment.
///
/// # Errors
///
/// Those of [`convert`]; a part of a trace of the RFC cannot be written in its own dialect.
pub fn convert_part(
    trace: &Trace,
    directory: &Path,
    dialect: Dialect,
    packing: Packing,
    options: Options,
) -> Result<(Vec<Unsaid>, u64), CreateError> {
    let is_part = options.begin.is_some() || options.end.is_some();
    let mut outside = 0;
    if dialect != Dialect::Rfc1_1 && (packing.encryption.is_some() || packing.compression != Compression::None) {
        return Err(CreateError::new(
            directory,
            CreateErrorKind::Encode(EncodeError::Packing),
        ));
    }
    let mut left_out = Vec::new();
    match (trace.dialect(), dialect) {
        (Dialect::Rfc1_1, Dialect::Rfc1_1) if is_part => {
            let kind = CreateErrorKind::Encode(EncodeError::Unwritable);
            return Err(CreateError::new(directory, kind));
        }
        (Dialect::Rfc1_1, Dialect::Rfc1_1) => repacked(trace, directory, packing)?,
        (_, Dialect::Rfc1_1) => {
            let mut described = to_rfc::described(trace)?;
            let idle = idle::leave_out(trace, &mut described)?;
            let writer = create(directory, described.description, packing)?;
            recoded(trace, &writer, &described.targets, options)?;
            let parts = [
                (described.unused, Unsaid::UnusedStreams),
                (idle, Unsaid::IdleEvents),
                (described.unnamed_cpus, Unsaid::Cpus),
            ];
            left_out.extend(parts.into_iter().filter(|(is, _)| *is).map(|(_, what)| what));
        }
        (Dialect::Rfc1_1, _) => {
            let (description, targets) = from_rfc::described(trace);
            let writer = TraceWriter::create(directory, description.adapted_to(dialect), dialect)?;
            recoded(trace, &writer, &targets, options)?;
        }
        _ if is_part => outside = backtrail_trace::convert_part(trace, directory, dialect, options)?,
        _ => backtrail_trace::convert(trace, directory, dialect)?,
    }
    left_out.extend(unsaid::of(trace, dialect));
    Ok((left_out, outside))
}

fn repacked(trace: &Trace, directory: &Path, packing: Packing) -> Result<(), CreateError> {
    let metadata = trace.directory().join(METADATA_FILE);
    let bytes = backtrail_trace::regular::read(&metadata)
        .map_err(|error| CreateError::new(&metadata, CreateErrorKind::Io(error)))?;
    TraceWriter::with_metadata(directory, trace.description().clone(), &bytes)?;
    for (index, stream) in trace.streams().iter().enumerate() {
        let target = directory.join(stream.file_name().unwrap_or_default());
        repack::stream(trace, index, &target, packing).map_err(|kind| CreateError::new(stream, kind))?;
    }
    Ok(())
}

fn recoded(trace: &Trace, writer: &TraceWriter, targets: &[Target], part: Options) -> Result<(), CreateError> {
    for target in targets {
        let path = &trace.streams()[target.stream];
        let cpu = target.cpu.map(|cpu| ("cpu_id".to_owned(), u64::from(cpu)));
        let options = StreamOptions {
            instance_id: target.instance,
            context: cpu.into_iter().collect(),
            max_packet_bytes: u32::MAX as usize,
            ..StreamOptions::for_cpu(target.class, 0)
        };
        let mut reader = trace
            .stream(target.stream, part)
            .map_err(|error| CreateError::new(path, CreateErrorKind::Read(error.kind)))?;
        writer.rewrite(&mut reader, name_of(path), options)?;
    }
    Ok(())
}
