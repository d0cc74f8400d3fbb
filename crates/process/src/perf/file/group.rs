//! Groups of events that are sampled together (`perf record -e '{cycles,instructions}:S'`): samples
//! of the first one contain the counts of all.

use std::collections::HashMap;

use backtrail_wire::Bytes;

use super::layout::Attribute;
use super::{ENDIAN, RECORD_HEADER};
use crate::perf::constants::sample_type::{ADDR, CPU, ID, IDENTIFIER, IP, PERIOD, READ, STREAM_ID, TID, TIME};

/// `PERF_FORMAT_*`.
const TOTAL_TIMES: [u64; 2] = [1, 1 << 1];
const FORMAT_ID: u64 = 1 << 2;
const FORMAT_GROUP: u64 = 1 << 3;
const FORMAT_LOST: u64 = 1 << 4;

/// What the counters of groups had at their last samples.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By the id of the event, and the thread if threads inherit the event under one id.
    last: HashMap<(u64, u32), u64>,
    /// By the offset of the record and the number of an event that it is not of: that of the event
    /// that it is of, and how often the other one has happened.
    counts: HashMap<(u64, u16), (u16, u64)>,
}

impl Groups {
    /// Takes the counts of a sample of event `own`, and returns the numbers of other events that
    /// have happened since the last one.
    pub(super) fn take(
        &mut self,
        record: Bytes<'_>,
        offset: u64,
        (own, layout): (u16, &Attribute),
        by_id: &HashMap<u64, u16>,
    ) -> Vec<u16> {
        let mut happened = Vec::new();
        for (id, tid, value) in values(record, layout).unwrap_or_default() {
            let last = self.last.insert((id, tid), value).unwrap_or(0);
            let count = value.saturating_sub(last);
            let event = by_id.get(&id).copied().filter(|event| *event != own && count > 0);
            if let Some(event) = event {
                self.counts.insert((offset, event), (own, count));
                happened.push(event);
            }
        }
        happened
    }

    /// Of which event the record is, and how often another one has happened.
    pub(super) fn count(&self, offset: u64, event: u16) -> Option<(u16, u64)> {
        self.counts.get(&(offset, event)).copied()
    }
}

/// The ids of the events of a group in a sample, with the thread and the values.
fn values(record: Bytes<'_>, layout: &Attribute) -> Option<Vec<(u64, u32, u64)>> {
    let format = layout.read_format;
    if !layout.is_set(READ) || format & FORMAT_GROUP == 0 || format & FORMAT_ID == 0 {
        return None;
    }
    let words = |bits: &[u64]| bits.iter().filter(|&&bit| layout.is_set(bit)).count() * 8;
    let tid_at = RECORD_HEADER + words(&[IDENTIFIER, IP]) + 4;
    let tid = match layout.is_inherited && layout.is_set(TID) {
        true => record.u32(tid_at).ok()?,
        false => 0,
    };
    let read_at = RECORD_HEADER + words(&[IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD]);
    let count = record.u64(read_at).ok()?;
    let times = TOTAL_TIMES.iter().filter(|&&bit| format & bit != 0).count();
    let words = 2 + usize::from(format & FORMAT_LOST != 0);
    let values = record.slice(
        read_at + 8 * (1 + times),
        record.len().checked_sub(read_at + 8 * (1 + times))?,
    );
    let values = values.ok()?.chunks_exact(8 * words).take(usize::try_from(count).ok()?);
    let value = |bytes: &[u8]| {
        let bytes = Bytes::new(bytes, ENDIAN);
        Some((bytes.u64(8).ok()?, tid, bytes.u64(0).ok()?))
    };
    values.map(value).collect()
}
