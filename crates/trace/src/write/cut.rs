//! Writes the part of a trace between two times, in CTF 1.8 or 2. Packets inside are copied; those
//! at the ends are cut.

use super::header::FixedLayout;
use super::trace::{TraceWriter, new_file};
use crate::description::Role;
use crate::dialect::Dialect;
use crate::error::{CreateError, CreateErrorKind, EncodeError, TraceError};
use crate::plan::{FieldId, Plan};
use crate::read::{Options, Packet, StreamReader, Trace};
use std::io::Write;
use std::path::Path;

/// As [`super::convert`], but only the events between [`Options::begin`] and [`Options::end`].
/// Returns the number of other events that had to remain, because their packet's fields are aligned
/// such that it cannot be cut between them.
///
/// # Errors
///
/// Those of [`super::convert`]; a packet cannot be read, or its header has no sizes to be changed.
pub fn convert_part(trace: &Trace, directory: &Path, dialect: Dialect, options: Options) -> Result<u64, CreateError> {
    if trace.dialect() == Dialect::Rfc1_1 {
        let kind = CreateErrorKind::OtherDialect(Dialect::Rfc1_1);
        return Err(CreateError::new(trace.directory(), kind));
    }
    let description = trace.description().clone().adapted_to(dialect);
    TraceWriter::create(directory, description, dialect)?;
    let mut outside = 0;
    for (index, path) in trace.streams().iter().enumerate() {
        let reader = trace.stream(index, options);
        let mut reader = reader.map_err(|error| CreateError::new(path, CreateErrorKind::Read(error.kind)))?;
        let target = directory.join(path.file_name().unwrap_or_default());
        outside += stream(&mut reader, trace.plan(), &target).map_err(|kind| CreateError::new(path, kind))?;
    }
    Ok(outside)
}

fn stream(reader: &mut StreamReader, plan: &Plan, target: &Path) -> Result<u64, CreateErrorKind> {
    let read = |error: TraceError| CreateErrorKind::Read(error.kind);
    // A file without a packet is not a stream for all readers.
    let mut file = None;
    let mut outside = 0;
    while reader.next_packet().map_err(read)? {
        let Some(packet) = reader.packet().copied() else {
            continue;
        };
        let head = reader.event_bits().1;
        let mut kept: Option<Kept> = None;
        // The end of the last event, wanted or not, and the number of those that are not.
        let (mut end, mut unwanted) = (head, 0);
        while let Some(is_wanted) = reader.next_of_packet_wanted().map_err(read)? {
            let (start, after) = reader.event_bits();
            let cycles = reader.event_cycles();
            end = after;
            if !is_wanted {
                unwanted += 1;
                continue;
            }
            let kept = kept.get_or_insert(Kept {
                start,
                end: after,
                first: cycles,
                last: cycles,
                before: unwanted,
                between: 0,
            });
            (kept.end, kept.last, kept.between) = (after, cycles, unwanted - kept.before);
        }
        let mut bytes = reader.content_bytes().to_vec();
        bytes.resize((packet.packet_bits / 8) as usize, 0);
        match kept {
            None if unwanted > 0 => continue,
            Some(kept) if unwanted > 0 => {
                outside += cut(plan, &packet, &mut bytes, (head, end), &kept).map_err(CreateErrorKind::Encode)?;
            }
            _ => {}
        }
        let file = match &mut file {
            Some(file) => file,
            None => file.insert(new_file(target).map_err(CreateErrorKind::Io)?),
        };
        file.write_all(&bytes).map_err(CreateErrorKind::Io)?;
    }
    Ok(outside)
}

/// The events of a packet that are kept. Places are bits from the packet's start.
struct Kept {
    start: u64,
    end: u64,
    /// The clock at the first and the last one.
    first: Option<u64>,
    last: Option<u64>,
    /// Unwanted events before them, and between them.
    before: u64,
    between: u64,
}

/// Removes the events before and after those that are kept, and changes the packet's header.
/// Returns the number of unwanted events that remain.
fn cut(
    plan: &Plan,
    packet: &Packet,
    bytes: &mut Vec<u8>,
    (head, end): (u64, u64),
    kept: &Kept,
) -> Result<u64, EncodeError> {
    let class = plan.streams.get(packet.stream_class).ok_or(EncodeError::Unwritable)?;
    let roots = [plan.packet_header, class.packet_context];
    let roots: Vec<FieldId> = roots.into_iter().flatten().collect();
    let roles = [Role::ContentSize, Role::PacketSize, Role::Timestamp, Role::TimestampEnd];
    let layout = FixedLayout::of_packet(plan, &roots, &roles)?;
    // Each field must keep its alignment, which counts from the packet's start.
    let align = plan.fields.iter().map(|field| field.align).max().unwrap_or(1).max(8);
    let moves = head.is_multiple_of(8) && (kept.start - head).is_multiple_of(align);
    let (start, before) = if moves { (kept.start, 0) } else { (head, kept.before) };
    let removed = start - head;
    bytes.drain((head / 8) as usize..((head + removed) / 8) as usize);
    let content = kept.end - removed;
    debug_assert!(kept.end <= end);
    let size = content.next_multiple_of(8);
    bytes.truncate((size / 8) as usize);
    let mut put = |role, value: Option<u64>| match (layout.slot(role), value) {
        (Some(slot), Some(value)) => slot.put(bytes, value),
        _ => Ok(()),
    };
    let sizes = [Role::ContentSize, Role::PacketSize];
    if sizes.iter().all(|&role| layout.slot(role).is_none()) {
        return Err(EncodeError::Unwritable);
    }
    put(Role::ContentSize, Some(content))?;
    put(Role::PacketSize, Some(size))?;
    if removed > 0 {
        put(Role::Timestamp, kept.first)?;
    }
    if kept.end < end {
        put(Role::TimestampEnd, kept.last)?;
    }
    Ok(before + kept.between)
}

/// Removes the padding after a packet's content, if its header has sizes that can be changed;
/// returns whether it did.
pub fn remove_padding(plan: &Plan, packet: &Packet, bytes: &mut Vec<u8>) -> bool {
    let size = packet.content_bits.next_multiple_of(8);
    if size >= packet.packet_bits || bytes.len() as u64 != packet.packet_bits / 8 {
        return false;
    }
    let Some(class) = plan.streams.get(packet.stream_class) else {
        return false;
    };
    let roots = [plan.packet_header, class.packet_context];
    let roots: Vec<FieldId> = roots.into_iter().flatten().collect();
    let roles = [Role::ContentSize, Role::PacketSize, Role::PacketBytes, Role::Checksum];
    let Ok(layout) = FixedLayout::of_packet(plan, &roots, &roles) else {
        return false;
    };
    // The RFC's header may be authenticated as a whole.
    let is_plain = layout.slot(Role::PacketBytes).is_none() && layout.slot(Role::Checksum).is_none();
    let Some(slot) = layout.slot(Role::PacketSize).filter(|_| is_plain) else {
        return false;
    };
    if layout.slot(Role::ContentSize).is_none() || slot.put(bytes, size).is_err() {
        return false;
    }
    bytes.truncate((size / 8) as usize);
    true
}
