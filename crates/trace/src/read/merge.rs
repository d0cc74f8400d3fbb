//! Merges the events of several streams in time order.

use super::event::Event;
use super::stream::{Statistics, StreamReader};
use crate::error::TraceError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Events of several streams, earliest first; among equal times, those of the first stream first.
/// Events without a time come before all others. A stream whose packet claims to begin later than
/// its first event waits for that time, as in babeltrace2.
#[derive(Debug)]
pub struct Events {
    streams: Vec<StreamReader>,
    /// Streams that have an event, by its time.
    heap: BinaryHeap<Reverse<(Option<i64>, usize)>>,
    /// Streams that are not yet in the heap.
    pending: Vec<usize>,
    /// Whether the event of the heap's first stream was returned, so that the next one is due.
    returned: bool,
}

impl Events {
    /// Merges streams, also those of several traces.
    pub fn new(streams: Vec<StreamReader>) -> Events {
        Events {
            heap: BinaryHeap::with_capacity(streams.len()),
            pending: (0..streams.len()).collect(),
            returned: false,
            streams,
        }
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    ///
    /// A stream cannot be read. The others go on with the next call.
    #[allow(clippy::should_implement_trait)] // Events borrow its buffers.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        Ok(self.next_due()?.map(|(_, event)| event))
    }

    /// The next event, and the time at which it is due.
    #[expect(clippy::indexing_slicing, reason = "the heap has indexes of `streams`")]
    pub(super) fn next_due(&mut self) -> Result<Option<(Option<i64>, Event<'_>)>, TraceError> {
        while let Some(index) = self.pending.pop() {
            if self.streams[index].advance()? {
                self.heap.push(Reverse((self.streams[index].merge_time(), index)));
            }
        }
        if std::mem::take(&mut self.returned)
            && let Some(mut first) = self.heap.peek_mut()
        {
            let index = first.0.1;
            let advanced = self.streams[index].advance();
            // It mostly remains the first one, which costs next to nothing.
            match advanced {
                Ok(true) => first.0.0 = self.streams[index].merge_time(),
                _ => {
                    PeekMut::pop(first);
                }
            }
            advanced?;
        }
        let Some(&Reverse((due, index))) = self.heap.peek() else {
            return Ok(None);
        };
        self.returned = true;
        Ok(Some((due, self.streams[index].event())))
    }

    /// The streams in their current state.
    pub fn into_streams(self) -> Vec<StreamReader> {
        self.streams
    }

    /// The streams, for their statistics.
    pub fn streams(&self) -> &[StreamReader] {
        &self.streams
    }

    /// The sum over all streams.
    #[expect(clippy::arithmetic_side_effects, reason = "the sums saturate")]
    pub fn statistics(&self) -> Statistics {
        self.streams
            .iter()
            .map(StreamReader::statistics)
            .fold(Statistics::default(), |sum, one| sum + one)
    }
}
