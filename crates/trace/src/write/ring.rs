//! Prepares the layout of ring buffers, and turns the rings of dead writers into streams.

use super::packet::{StreamOptions, StreamWriter};
use super::trace::new_file;
use crate::description::{Role, compact_event_header, large_event_header};
use crate::error::{CreateError, CreateErrorKind, EncodeError, TraceError};
use crate::plan::Plan;
use crate::read::{Trace, packets_of_ring};
use crate::ring::{MAX_HEADER_BYTES, RingLayout};
use backtrail_wire::Endian;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl RingLayout {
    /// The layout for a stream of a class with LTTng's headers in the byte order of this machine:
    /// [`crate::description::packet_header`], [`crate::description::packet_context`], and
    /// [`compact_event_header`] or [`large_event_header`]. The sizes in the options are ignored.
    ///
    /// # Errors
    ///
    /// The class has other headers ([`EncodeError::Unwritable`]), or cannot be written.
    pub fn new(plan: &Arc<Plan>, options: StreamOptions) -> Result<RingLayout, EncodeError> {
        let writer = StreamWriter::new(plan.clone(), options)?;
        let class = &plan.description().streams[writer.stream];
        let clock = class.clock.unwrap_or(0);
        let header = class.event_header.as_ref();
        let compact = header == Some(&compact_event_header(Endian::NATIVE, clock));
        let mut template = Vec::new();
        writer.put_header(&mut template, 0, 0)?;
        if !(compact || header == Some(&large_event_header(Endian::NATIVE, clock))) || template.len() > MAX_HEADER_BYTES
        {
            return Err(EncodeError::Unwritable);
        }
        let place = |role| {
            let slot = writer.layout.slot(role).ok_or(EncodeError::Unwritable)?;
            match slot.size == 64 && slot.order == Endian::NATIVE && slot.bit.is_multiple_of(64) {
                true => Ok((slot.bit / 8) as usize),
                false => Err(EncodeError::Unwritable),
            }
        };
        let mut layout = RingLayout {
            template: [0; MAX_HEADER_BYTES],
            header: template.len(),
            begin: place(Role::Timestamp)?,
            end: place(Role::TimestampEnd)?,
            content_size: place(Role::ContentSize)?,
            packet_size: place(Role::PacketSize)?,
            sequence_number: place(Role::SequenceNumber)?,
            discarded: place(Role::EventsDiscarded)?,
            compact,
        };
        layout.template[..template.len()].copy_from_slice(&template);
        Ok(layout)
    }
}

/// Converts the rings that a dead writer left in its trace's directory into streams: each file
/// `.NAME.ring`, the mapped memory of a [`crate::Ring`], becomes the stream `NAME`, unless that
/// file exists. The rings stay. Returns the new streams.
///
/// Files whose name begins with a dot are not part of a trace, so the directory was a valid trace
/// before.
///
/// # Errors
///
/// The trace or a ring cannot be read, or a stream cannot be written.
pub fn salvage(directory: &Path) -> Result<Vec<PathBuf>, CreateError> {
    let unread = |error: TraceError| CreateError::new(&error.path, CreateErrorKind::Read(error.kind));
    let trace = Trace::open(directory).map_err(unread)?;
    let mut made = Vec::new();
    for (ring, path) in trace.ring_files().map_err(unread)? {
        let memory = crate::regular::read(&ring).map_err(|error| CreateError::io(&ring, error))?;
        let packets = packets_of_ring(trace.plan(), &memory);
        if packets.is_empty() {
            continue;
        }
        write_new(&path, &packets.concat()).map_err(|error| CreateError::io(&path, error))?;
        made.push(path);
    }
    Ok(made)
}

/// Writes a file that must not exist, under a hidden name until it is complete.
fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = path.with_file_name(format!(".{name}.part"));
    let _ = fs::remove_file(&hidden);
    let written = new_file(&hidden)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::hard_link(&hidden, path));
    let removed = fs::remove_file(&hidden);
    written.and(removed)
}
