//! Rewrites streams that were read by one plan by another.

use super::packet::{StreamOptions, StreamWriter};
use super::trace::{TraceWriter, new_file};
use crate::error::{CreateError, CreateErrorKind, TraceError};
use crate::plan::Plan;
use crate::read::{Packet, StreamReader};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

impl TraceWriter {
    /// Reads a stream to its end and writes its events by this trace's description: one packet per
    /// packet, and one more if the RFC could not count the discarded events otherwise. Times become
    /// nanoseconds.
    ///
    /// # Errors
    ///
    /// The stream cannot be read, this trace's classes cannot express its events, or the file
    /// cannot be written.
    pub fn rewrite(
        &self,
        reader: &mut StreamReader,
        file_name: &str,
        options: StreamOptions,
    ) -> Result<(), CreateError> {
        let file = self.new_stream_path(file_name, options.class_id)?;
        let mut open = || new_file(&file);
        let result = stream(reader, self.plan(), self.with_own_content(options), &mut open);
        result.map_err(|kind| CreateError::new(reader.path(), kind))
    }
}

fn stream(
    reader: &mut StreamReader,
    plan: &Arc<Plan>,
    options: StreamOptions,
    open: &mut dyn FnMut() -> std::io::Result<File>,
) -> Result<(), CreateErrorKind> {
    let read = |error: TraceError| CreateErrorKind::Read(error.kind);
    let counts_before = plan.description().session.is_some();
    let mut writer = StreamWriter::for_recoding(plan.clone(), options).map_err(CreateErrorKind::Encode)?;
    let mut output = Output { open, file: None };
    let mut last: Option<Source> = None;
    while reader.next_packet().map_err(read)? {
        let Some(packet) = reader.packet().copied() else {
            continue;
        };
        let source = Source::of(&packet, last.as_ref());
        if let Some(last) = &last {
            let discarded = if counts_before { last.before } else { source.discarded };
            finish(&mut writer, reader, last, discarded, &mut output)?;
        }
        writer.begin_recoding(time(reader, packet.begin)?);
        while let Some(event) = reader.next_of_packet().map_err(read)? {
            let time = event.time().and_then(|time| u64::try_from(time).ok());
            let time = time.ok_or(CreateErrorKind::Time)?;
            writer.recode(&event, time).map_err(CreateErrorKind::Encode)?;
        }
        last = Some(source);
    }
    let Some(mut last) = last else { return Ok(()) };
    let discarded = if counts_before { last.before } else { last.discarded };
    finish(&mut writer, reader, &last, discarded, &mut output)?;
    if counts_before && last.discarded > last.before {
        writer.begin_recoding(None);
        last.number += 1;
        finish(&mut writer, reader, &last, last.discarded, &mut output)?;
    }
    Ok(())
}

struct Output<'o> {
    open: &'o mut dyn FnMut() -> std::io::Result<File>,
    file: Option<File>,
}

/// The counters of a packet.
struct Source {
    end: Option<u64>,
    /// Its number, of which all bits are significant.
    number: u64,
    /// Its counter of discarded events.
    discarded: u64,
    /// The same counter of the previous packet.
    before: u64,
}

impl Source {
    fn of(packet: &Packet, last: Option<&Source>) -> Source {
        let discarded = packet.events_discarded.unwrap_or(0);
        let number = match (packet.sequence_number, last) {
            (None, last) => last.map_or(0, |last| last.number + 1),
            (Some(number), None) => number,
            (Some(number), Some(last)) if packet.sequence_number_bits < 64 => {
                let mask = (1 << packet.sequence_number_bits) - 1;
                last.number.wrapping_add(number.wrapping_sub(last.number) & mask)
            }
            (Some(number), Some(_)) => number,
        };
        Source {
            end: packet.end,
            number,
            discarded,
            // A stream that starts in the middle has counted before.
            before: last.map_or(if number == 0 { 0 } else { discarded }, |last| last.discarded),
        }
    }
}

fn finish(
    writer: &mut StreamWriter,
    reader: &StreamReader,
    packet: &Source,
    discarded: u64,
    output: &mut Output<'_>,
) -> Result<(), CreateErrorKind> {
    let end = time(reader, packet.end)?;
    let bytes = writer.finish_recoding(end, packet.number, discarded);
    let bytes = bytes.map_err(CreateErrorKind::Encode)?;
    let file = match &mut output.file {
        Some(file) => file,
        None => output.file.insert((output.open)().map_err(CreateErrorKind::Io)?),
    };
    file.write_all(bytes).map_err(CreateErrorKind::Io)
}

/// A time of a packet in nanoseconds from the clock's origin.
fn time(reader: &StreamReader, cycles: Option<u64>) -> Result<Option<u64>, CreateErrorKind> {
    let Some(cycles) = cycles else { return Ok(None) };
    let time = reader.nanoseconds_at(cycles).and_then(|time| u64::try_from(time).ok());
    time.map(Some).ok_or(CreateErrorKind::Time)
}
