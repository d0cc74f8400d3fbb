//! Events of several streams in the order of time.

use super::event::Event;
use super::stream::{Statistics, StreamReader};
use crate::error::TraceError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of several streams, the earliest first; of equal times those of the first stream first. Events without a time
/// come before all others. A stream whose packet claims to begin later than its first event waits for that time, as in
/// babeltrace2.
#[derive(Debug)]
pub struct Events {
    streams: Vec<StreamReader>,
    /// Streams that have an event, by its time.
    heap: BinaryHeap<Reverse<(Option<i64>, usize)>>,
    /// Streams whose next event was not yet decoded: at the beginning all, then the one that was lent.
    pending: Vec<usize>,
}

impl Events {
    /// Merges streams, also those of several traces.
    pub fn new(streams: Vec<StreamReader>) -> Events {
        Events {
            heap: BinaryHeap::with_capacity(streams.len()),
            pending: (0..streams.len()).collect(),
            streams,
        }
    }

    /// The next event; `None` at the end.
    #[allow(clippy::should_implement_trait)] // It lends its buffers, which an iterator cannot.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        while let Some(index) = self.pending.pop() {
            if self.streams[index].advance()? {
                let time = self.streams[index].merge_time();
                self.heap.push(Reverse((time, index)));
            }
        }
        let Some(Reverse((_, index))) = self.heap.pop() else {
            return Ok(None);
        };
        self.pending.push(index);
        Ok(Some(self.streams[index].event()))
    }

    /// The streams, for their statistics.
    pub fn streams(&self) -> &[StreamReader] {
        &self.streams
    }

    /// The sum over all streams.
    pub fn statistics(&self) -> Statistics {
        self.streams
            .iter()
            .map(StreamReader::statistics)
            .fold(Statistics::default(), |sum, one| Statistics {
                packets: sum.packets + one.packets,
                events: sum.events + one.events,
                discarded: sum.discarded + one.discarded,
                lost_packets: sum.lost_packets + one.lost_packets,
                damaged: sum.damaged + one.damaged,
            })
    }
}
