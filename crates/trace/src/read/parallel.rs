//! Events of several streams in the order of time, decoded and rendered on several threads.
//!
//! A stream is decoded by one thread at a time, in batches; the calling thread merges what the batches hold. So as many threads
//! are of use as there are streams.

use super::event::Event;
use super::merge::Events;
use super::stream::StreamReader;
use crate::error::TraceError;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Events of a batch: enough that handing it over costs nothing.
const BATCH_EVENTS: usize = 1024;

/// A batch ends with the event that makes it longer than this.
const BATCH_BYTES: usize = 64 << 10;

/// Batches of a stream that wait to be merged. One is merged meanwhile, and one made.
const BATCHES_AHEAD: usize = 2;

/// How [`render`] has ended.
#[derive(Debug)]
pub struct Rendered {
    /// The streams, for their statistics. They may be further than what was taken where that has not come to the end.
    pub streams: Vec<StreamReader>,
    /// Why it has ended before all events were taken; also `None` where `take` has broken off.
    pub error: Option<TraceError>,
}

/// Reads all events of the streams with up to so many threads besides the calling one. Each event is turned into bytes by `make`, on any
/// thread; its time and its bytes are given to `take` in the order in which [`Events`] has them.
pub fn render(
    streams: Vec<StreamReader>,
    threads: usize,
    make: impl Fn(&Event<'_>, &mut Vec<u8>) + Sync,
    mut take: impl FnMut(Option<i64>, &[u8]) -> ControlFlow<()>,
) -> Rendered {
    let threads = threads.min(streams.len());
    if threads < 2 {
        return render_here(streams, make, take);
    }
    let shared = Shared {
        state: Mutex::new(State {
            slots: streams.into_iter().map(Slot::new).collect(),
            stop: false,
        }),
        work: Condvar::new(),
        ready: Condvar::new(),
    };
    let error = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| shared.decode(&make));
        }
        let result = shared.merge(&mut take);
        shared.lock().stop = true;
        shared.work.notify_all();
        result.err()
    });
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let streams = state.slots.into_iter().filter_map(|slot| slot.reader).collect();
    Rendered { streams, error }
}

fn render_here(
    streams: Vec<StreamReader>,
    make: impl Fn(&Event<'_>, &mut Vec<u8>),
    mut take: impl FnMut(Option<i64>, &[u8]) -> ControlFlow<()>,
) -> Rendered {
    let mut events = Events::new(streams);
    let mut bytes = Vec::new();
    let error = loop {
        let event = match events.next() {
            Ok(Some(event)) => event,
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        bytes.clear();
        make(&event, &mut bytes);
        if take(event.time(), &bytes).is_break() {
            break None;
        }
    };
    Rendered {
        streams: events.into_streams(),
        error,
    }
}

struct Shared {
    state: Mutex<State>,
    /// There may be something to decode.
    work: Condvar,
    /// There is a batch.
    ready: Condvar,
}

struct State {
    slots: Vec<Slot>,
    /// Nobody wants more.
    stop: bool,
}

struct Slot {
    /// `None` while a thread decodes.
    reader: Option<StreamReader>,
    ready: VecDeque<Batch>,
    /// The last batch was made.
    done: bool,
    /// Batches that were merged, for their memory.
    spare: Vec<Batch>,
}

impl Slot {
    fn new(reader: StreamReader) -> Slot {
        Slot {
            reader: Some(reader),
            ready: VecDeque::new(),
            done: false,
            spare: Vec::new(),
        }
    }
}

#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: Vec<u8>,
    /// What ended the stream.
    error: Option<TraceError>,
}

struct Record {
    /// When the event is due.
    merge: Option<i64>,
    time: Option<i64>,
    /// Where its bytes end.
    end: usize,
}

impl Batch {
    /// Decodes the next events; whether the stream goes on.
    fn fill(&mut self, reader: &mut StreamReader, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) -> bool {
        self.records.clear();
        self.bytes.clear();
        while self.records.len() < BATCH_EVENTS && self.bytes.len() < BATCH_BYTES {
            match reader.advance() {
                Ok(true) => {
                    let event = reader.event();
                    make(&event, &mut self.bytes);
                    self.records.push(Record {
                        merge: reader.merge_time(),
                        time: event.time(),
                        end: self.bytes.len(),
                    });
                }
                Ok(false) => return false,
                Err(error) => {
                    self.error = Some(error);
                    return false;
                }
            }
        }
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked leaves nothing half done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does.
    fn decode(&self, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) {
        let mut state = self.lock();
        loop {
            if state.stop || state.slots.iter().all(|slot| slot.done) {
                return;
            }
            let waiting = |slot: &Slot| slot.reader.is_some() && !slot.done && slot.ready.len() < BATCHES_AHEAD;
            let slots = state.slots.iter_mut().enumerate();
            let next = slots
                .filter(|(_, slot)| waiting(slot))
                .min_by_key(|(_, slot)| slot.ready.len());
            let Some((index, slot)) = next else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(mut reader) = slot.reader.take() else { continue };
            let mut batch = slot.spare.pop().unwrap_or_default();
            drop(state);
            let goes_on = batch.fill(&mut reader, make);
            state = self.lock();
            let slot = &mut state.slots[index];
            slot.reader = Some(reader);
            slot.ready.push_back(batch);
            slot.done = !goes_on;
            self.ready.notify_one();
            if !goes_on {
                self.work.notify_all();
            }
        }
    }

    /// The next batch of a stream, for which it takes the one that was merged; `None` at the stream's end.
    fn next_batch(&self, index: usize, merged: Option<Batch>) -> Option<Batch> {
        let mut state = self.lock();
        state.slots[index].spare.extend(merged);
        loop {
            let slot = &mut state.slots[index];
            if let Some(batch) = slot.ready.pop_front() {
                self.work.notify_one();
                return Some(batch);
            }
            if slot.done {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn merge(&self, take: &mut impl FnMut(Option<i64>, &[u8]) -> ControlFlow<()>) -> Result<(), TraceError> {
        let count = self.lock().slots.len();
        let mut streams: Vec<Merged> = (0..count).map(|_| Merged::default()).collect();
        let mut heap = BinaryHeap::with_capacity(count);
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Some(merge) = self.due(index, stream)? {
                heap.push(Reverse((merge, index)));
            }
        }
        while let Some(mut first) = heap.peek_mut() {
            let index = first.0.1;
            let stream = &mut streams[index];
            let record = &stream.batch.records[stream.next];
            let (start, end) = (stream.start, record.end);
            if take(record.time, &stream.batch.bytes[start..end]).is_break() {
                return Ok(());
            }
            (stream.next, stream.start) = (stream.next + 1, end);
            match self.due(index, stream)? {
                Some(merge) => first.0.0 = merge,
                None => {
                    PeekMut::pop(first);
                }
            }
        }
        Ok(())
    }

    /// When the next event of a stream is due; gets the next batch where one is needed.
    fn due(&self, index: usize, stream: &mut Merged) -> Result<Option<Option<i64>>, TraceError> {
        loop {
            if let Some(record) = stream.batch.records.get(stream.next) {
                return Ok(Some(record.merge));
            }
            if let Some(error) = stream.batch.error.take() {
                return Err(error);
            }
            let Some(batch) = self.next_batch(index, Some(std::mem::take(&mut stream.batch))) else {
                return Ok(None);
            };
            *stream = Merged {
                batch,
                next: 0,
                start: 0,
            };
        }
    }
}

/// A stream as the merging thread has it.
#[derive(Default)]
struct Merged {
    batch: Batch,
    next: usize,
    /// Where the next record's bytes start.
    start: usize,
}
