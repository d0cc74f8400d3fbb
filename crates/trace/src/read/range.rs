//! Reads the part of a stream between two times: packets that lie outside are skipped by their
//! headers, or by LTTng's index file if the stream has one.

use super::state::Packet;
use super::stream::StreamReader;
use crate::error::TraceError;
use backtrail_wire::{Bytes, Endian};
use std::path::{Path, PathBuf};

/// The start of LTTng's index files.
const INDEX_MAGIC: u32 = 0xc1f1_dcc1;
const INDEX_HEADER: usize = 16;
/// The least length of an entry: up to the time of the packet's end.
const INDEX_ENTRY: u32 = 40;

/// The part of an index entry that finds packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    offset: u64,
    bits: u64,
    begin: u64,
    end: u64,
}

impl StreamReader {
    /// Whether the current event is outside of the times that are wanted. Without a time it is.
    pub(super) fn is_unwanted(&self) -> bool {
        let (begin, end) = (self.options.begin, self.options.end);
        if begin.is_none() && end.is_none() {
            return false;
        }
        self.state
            .time
            .is_none_or(|time| begin.is_some_and(|begin| time < begin) || end.is_some_and(|end| end < time))
    }

    /// Moves to the first packet that does not end before the wanted time, unless a packet was read
    /// already.
    pub(super) fn skip_to_begin(&mut self) -> Result<(), TraceError> {
        let Some(begin) = self.options.begin.filter(|_| !self.sought) else {
            return Ok(());
        };
        if self.next_packet == 0
            && let Some(offset) = self.indexed(begin)
        {
            self.next_packet = offset;
        }
        while self.next_packet < self.end {
            let (packet, _) = self.read_header()?;
            if !self.ends_before(&packet, begin) {
                break;
            }
            self.next_packet = self.next_packet.saturating_add(packet.packet_bits / 8);
        }
        self.sought = true;
        Ok(())
    }

    /// Whether the packet, and with it the rest of the stream, is after the wanted times.
    pub(super) fn is_past_end(&self, packet: &Packet) -> bool {
        let (Some(end), Some(begin)) = (self.options.end, packet.begin) else {
            return false;
        };
        self.time_of(packet, begin).is_some_and(|time| end < time)
    }

    fn ends_before(&self, packet: &Packet, begin: i64) -> bool {
        let end = packet.end.and_then(|end| self.time_of(packet, end));
        end.is_some_and(|end| end < begin)
    }

    fn time_of(&self, packet: &Packet, cycles: u64) -> Option<i64> {
        let class = self.plan.streams.get(packet.stream_class)?;
        class.clock.as_ref()?.nanoseconds_at(cycles)
    }

    /// The offset of the first packet that does not end before `begin`, by the index. An index that
    /// the packets there contradict counts as none.
    fn indexed(&mut self, begin: i64) -> Option<u64> {
        let entries = index_entries(&crate::regular::read(&index_path(&self.path)?).ok()?)?;
        let (first, _) = self.read_header().ok()?;
        let place = entries.partition_point(|entry| {
            let end = self.time_of(&first, entry.end);
            end.is_some_and(|end| end < begin)
        });
        let before = entries.get(place.checked_sub(1)?)?;
        let after = before.offset.checked_add(before.bits / 8)?;
        if entries.get(place).is_some_and(|entry| entry.offset != after) {
            return None;
        }
        self.next_packet = before.offset;
        let found = (before.offset < self.end).then(|| self.read_header());
        self.next_packet = 0;
        let (packet, _) = found?.ok()?;
        let agrees = packet.packet_bits == before.bits
            && (packet.begin, packet.end) == (Some(before.begin), Some(before.end))
            && after <= self.length;
        agrees.then_some(after)
    }
}

/// LTTng keeps the index of `channel_0` in `index/channel_0.idx`.
fn index_path(stream: &Path) -> Option<PathBuf> {
    let mut name = stream.file_name()?.to_owned();
    name.push(".idx");
    Some(stream.parent()?.join("index").join(name))
}

/// The entries of an index file; `None` if it is not one.
pub(crate) fn index_entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let header = Bytes::new(bytes, Endian::Big);
    let (magic, length) = (header.u32(0).ok()?, header.u32(12).ok()?);
    if magic != INDEX_MAGIC || length < INDEX_ENTRY {
        return None;
    }
    let rest = bytes.get(INDEX_HEADER..)?;
    rest.chunks_exact(length as usize)
        .map(|entry| {
            let entry = Bytes::new(entry, Endian::Big);
            let number = |place| entry.u64(place).ok();
            Some(Entry {
                offset: number(0)?,
                bits: number(8)?,
                begin: number(24)?,
                end: number(32)?,
            })
        })
        .collect()
}
