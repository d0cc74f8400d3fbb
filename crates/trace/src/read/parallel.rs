//! Decodes and renders the events of several streams in time order on several threads.
//!
//! Each stream is a sequence of parts, runs of packets that can be decoded without the previous
//! ones; a part is decoded by one thread at a time, in batches. The calling thread merges the
//! batches of the first parts, and also decodes while the batch that it needs is missing.
//!
//! Many streams are combined: neighbours form a group that one thread at a time merges as it
//! decodes, and the group replaces its streams, with one part. Batches for each of them would be
//! small, and all of them together too large for the processor's caches.

use super::event::Event;
use super::merge::Events;
use super::split::Totals;
use super::stream::StreamReader;
use crate::error::TraceError;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Events of a batch: enough to make the cost of passing it on negligible.
const BATCH_EVENTS: usize = 4096;

/// A batch ends with the event that makes it longer than this, or than its share of
/// [`ALL_BATCHES`].
const BATCH_BYTES: usize = 256 << 10;

/// The size of all batches of first parts: their data should still be in a cache when it is merged.
const ALL_BATCHES: usize = 2 << 20;

/// Batches of a stream's first part: two wait, one is merged, one is filled.
const BATCHES: usize = 4;

/// With more streams than this per thread, streams are grouped.
const STREAMS_PER_THREAD: usize = 4;

/// The number of groups per thread.
const GROUPS_PER_THREAD: usize = 2;

/// Bytes of all parts after the first ones that may wait.
const AHEAD_BYTES: usize = 16 << 20;

/// A part ends with the packet that makes it longer than this.
const PART_BYTES: u64 = 256 << 10;

/// The result of [`render`].
#[derive(Debug)]
pub struct Rendered {
    /// The streams, for their statistics. If not all events were taken, the streams may be ahead of
    /// the last one taken.
    pub streams: Vec<StreamReader>,
    /// Why reading ended before the last event; `None` if it did not, or if `take` ended it.
    pub error: Option<TraceError>,
}

/// Reads all events of the streams with up to this many threads, including the calling one. `make`
/// turns each event into bytes, on any thread; `take` gets its time and its bytes in the order of
/// [`Events`].
pub fn render(
    streams: Vec<StreamReader>,
    threads: usize,
    make: impl Fn(&Event<'_>, &mut Vec<u8>) + Sync,
    mut take: impl FnMut(Option<i64>, &[u8]) -> ControlFlow<()>,
) -> Rendered {
    if threads < 2 {
        return render_here(streams, make, take);
    }
    let shared = Shared::new(streams, threads);
    let error = thread::scope(|scope| {
        for _ in 1..threads {
            // With fewer threads it takes longer.
            let work = || shared.work(&make);
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        let result = shared.merge(&make, &mut take);
        shared.lock().stop = true;
        shared.work.notify_all();
        result.err()
    });
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let streams = state.slots.into_iter().flat_map(Slot::into_streams).collect();
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
    /// There may be something to do.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    /// A batch ends with the event that makes it longer than this.
    batch_bytes: usize,
    /// The most parts after the first ones.
    most_ahead: usize,
}

struct State {
    slots: Vec<Slot>,
    /// Merged batches and readers of finished parts, for reuse of their memory.
    batches: Vec<Batch>,
    readers: Vec<StreamReader>,
    /// Nobody wants more.
    stop: bool,
}

/// A stream or a group of them.
struct Slot {
    /// The reader that parts are split off from; `None` during a split, and when it has become the
    /// last part.
    whole: Option<Box<StreamReader>>,
    /// Whether there may be more parts.
    splits: bool,
    parts: VecDeque<Part>,
    /// The number of earlier parts.
    merged: usize,
    totals: Totals,
    /// The streams of a group that is completely merged.
    group: Vec<StreamReader>,
}

/// The reader of a part.
enum Reader {
    Stream(Box<StreamReader>),
    Group(Box<Events>),
}

struct Part {
    /// `None` while a thread decodes.
    reader: Option<Reader>,
    ready: VecDeque<Batch>,
    /// The memory of the batches.
    bytes: usize,
    /// The last batch was made.
    done: bool,
    /// It contains the whole rest of the stream, and its reader is that of the stream.
    is_rest: bool,
}

/// A task for a thread.
enum Job {
    /// Makes the next batch of a part, which is that many parts after the stream's first.
    Decode(usize, usize, Reader, Batch),
    /// Splits off a part of a stream.
    Split(usize, Box<StreamReader>, Option<Box<StreamReader>>),
}

/// A sequence of events, each with the time at which it is due.
trait Rows {
    fn next_due(&mut self) -> Result<Option<(Option<i64>, Event<'_>)>, TraceError>;
}

impl Rows for StreamReader {
    fn next_due(&mut self) -> Result<Option<(Option<i64>, Event<'_>)>, TraceError> {
        Ok(self.advance()?.then(|| (self.merge_time(), self.event())))
    }
}

impl Rows for Events {
    fn next_due(&mut self) -> Result<Option<(Option<i64>, Event<'_>)>, TraceError> {
        Events::next_due(self)
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
    /// The time at which the event is due.
    merge: Option<i64>,
    time: Option<i64>,
    /// End of its bytes.
    end: usize,
}

impl Slot {
    fn new(mut streams: Vec<StreamReader>) -> Slot {
        let mut slot = Slot {
            whole: None,
            splits: false,
            parts: VecDeque::new(),
            merged: 0,
            totals: Totals::default(),
            group: Vec::new(),
        };
        match streams.len() {
            1 => {
                slot.whole = streams.pop().map(Box::new);
                slot.splits = true;
            }
            _ => {
                let events = Reader::Group(Box::new(Events::new(streams)));
                slot.parts.push_back(Part::new(events, true));
            }
        }
        slot
    }

    /// Whether all of it was decoded.
    fn is_done(&self) -> bool {
        !self.splits && self.parts.iter().all(|part| part.done)
    }

    /// Removes the first parts that are completely merged; returns whether there were any.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn retire(&mut self, readers: &mut Vec<StreamReader>) -> bool {
        let before = self.merged;
        while let Some(part) = self
            .parts
            .pop_front_if(|part| part.done && part.ready.is_empty() && part.reader.is_some())
        {
            self.merged += 1;
            readers.extend(self.close(part).map(|reader| *reader));
        }
        self.merged > before
    }

    /// Adds the counts of a part; returns its reader, unless that is the stream's.
    fn close(&mut self, part: Part) -> Option<Box<StreamReader>> {
        match part.reader? {
            Reader::Group(events) => self.group = events.into_streams(),
            Reader::Stream(reader) if part.is_rest => self.whole = Some(reader),
            Reader::Stream(reader) => {
                self.totals.add(&reader);
                return Some(reader);
            }
        }
        None
    }

    /// The streams' readers, with the counts of all parts.
    fn into_streams(mut self) -> Vec<StreamReader> {
        while let Some(part) = self.parts.pop_front() {
            self.close(part);
        }
        if let Some(mut reader) = self.whole {
            reader.absorb(self.totals);
            self.group.push(*reader);
        }
        self.group
    }
}

impl Part {
    fn new(reader: Reader, is_rest: bool) -> Part {
        Part {
            reader: Some(reader),
            ready: VecDeque::new(),
            bytes: 0,
            done: false,
            is_rest,
        }
    }
}

impl Batch {
    /// Decodes the next events; returns whether there are more.
    fn fill(&mut self, reader: &mut Reader, most: usize, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) -> bool {
        self.records.clear();
        self.bytes.clear();
        match reader {
            Reader::Stream(stream) => self.fill_from(&mut **stream, most, make),
            Reader::Group(events) => self.fill_from(&mut **events, most, make),
        }
    }

    fn fill_from(&mut self, rows: &mut impl Rows, most: usize, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) -> bool {
        while self.records.len() < BATCH_EVENTS && self.bytes.len() < most {
            match rows.next_due() {
                Ok(Some((merge, event))) => {
                    make(&event, &mut self.bytes);
                    self.records.push(Record {
                        merge,
                        time: event.time(),
                        end: self.bytes.len(),
                    });
                }
                Ok(None) => return false,
                Err(error) => {
                    self.error = Some(error);
                    return false;
                }
            }
        }
        true
    }

    /// Its memory.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn size(&self) -> usize {
        self.bytes.len() + self.records.len() * size_of::<Record>()
    }
}

impl State {
    /// The most useful next task. Parts at the front come first, and among these those with the
    /// least to merge: first of all those of the stream that is waited for.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn next_job(&mut self, shared: &Shared, wanted: Option<usize>) -> Option<Job> {
        let ahead: usize = self.slots.iter().map(|slot| slot.parts.len().saturating_sub(1)).sum();
        let may_split = ahead < shared.most_ahead;
        let mut best = None;
        for (index, slot) in self.slots.iter().enumerate() {
            let parts = slot.parts.iter().enumerate();
            let decodable = parts.filter_map(|(place, part)| {
                let most = match place {
                    0 => (BATCHES - 2) * shared.batch_bytes,
                    _ => AHEAD_BYTES / shared.most_ahead.max(1),
                };
                let is_open = part.reader.is_some() && !part.done && part.bytes < most;
                is_open.then_some((place, part.bytes, wanted != Some(index), index, false))
            });
            let splittable = slot.splits && slot.whole.is_some() && (slot.parts.is_empty() || may_split);
            let split = splittable.then_some((slot.parts.len(), 0, wanted != Some(index), index, true));
            best = decodable.chain(split).chain(best).min();
        }
        let (place, _, _, index, splits) = best?;
        let slot = &mut self.slots[index];
        if splits {
            let old = self.readers.pop().map(Box::new);
            return slot.whole.take().map(|whole| Job::Split(index, whole, old));
        }
        let reader = slot.parts.get_mut(place)?.reader.take()?;
        let batch = self.batches.pop().unwrap_or_default();
        Some(Job::Decode(index, slot.merged + place, reader, batch))
    }
}

impl Shared {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn new(streams: Vec<StreamReader>, threads: usize) -> Shared {
        let slots: Vec<Slot> = groups(streams, threads).into_iter().map(Slot::new).collect();
        Shared {
            batch_bytes: BATCH_BYTES.min(ALL_BATCHES / (BATCHES * slots.len().max(1))),
            most_ahead: 2 * threads,
            state: Mutex::new(State {
                slots,
                batches: Vec::new(),
                readers: Vec::new(),
                stop: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked leaves nothing incomplete under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of each thread but the calling one.
    fn work(&self, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) {
        let mut state = self.lock();
        loop {
            if state.stop || state.slots.iter().all(Slot::is_done) {
                return;
            }
            match state.next_job(self, None) {
                Some(job) => {
                    drop(state);
                    state = self.run(job, make);
                    self.done.notify_one();
                }
                None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn run(&self, job: Job, make: &impl Fn(&Event<'_>, &mut Vec<u8>)) -> MutexGuard<'_, State> {
        match job {
            Job::Decode(index, part, mut reader, mut batch) => {
                let goes_on = batch.fill(&mut reader, self.batch_bytes, make);
                let mut state = self.lock();
                let slot = &mut state.slots[index];
                // It cannot have been removed while it had no reader.
                if let Some(part) = part
                    .checked_sub(slot.merged)
                    .and_then(|place| slot.parts.get_mut(place))
                {
                    part.reader = Some(reader);
                    part.bytes += batch.size();
                    part.ready.push_back(batch);
                    part.done = !goes_on;
                }
                match goes_on {
                    true => self.work.notify_one(),
                    // It may have been the last one.
                    false => self.work.notify_all(),
                }
                state
            }
            Job::Split(index, mut whole, old) => {
                let part = whole.split(PART_BYTES, old.map(|old| *old));
                let mut state = self.lock();
                let slot = &mut state.slots[index];
                match part {
                    Some(part) => {
                        slot.splits = !whole.is_at_end();
                        slot.parts.push_back(Part::new(Reader::Stream(Box::new(part)), false));
                        slot.whole = Some(whole);
                    }
                    None => {
                        slot.splits = false;
                        slot.parts.push_back(Part::new(Reader::Stream(whole), true));
                    }
                }
                self.work.notify_all();
                state
            }
        }
    }

    /// The next batch of a stream, in exchange for the merged one; `None` at the stream's end.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn next_batch(
        &self,
        index: usize,
        merged: Option<Batch>,
        make: &impl Fn(&Event<'_>, &mut Vec<u8>),
    ) -> Option<Batch> {
        let mut state = self.lock();
        state.batches.extend(merged);
        loop {
            let State { slots, readers, .. } = &mut *state;
            let slot = &mut slots[index];
            if slot.retire(readers) {
                self.work.notify_all();
            }
            match slot.parts.front_mut() {
                Some(part) => {
                    if let Some(batch) = part.ready.pop_front() {
                        part.bytes -= batch.size();
                        self.work.notify_one();
                        return Some(batch);
                    }
                }
                None if !slot.splits => return None,
                None => {}
            }
            match state.next_job(self, Some(index)) {
                Some(job) => {
                    drop(state);
                    state = self.run(job, make);
                }
                None => state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "indexes and sums of its own lists, which are in memory"
    )]
    fn merge(
        &self,
        make: &impl Fn(&Event<'_>, &mut Vec<u8>),
        take: &mut impl FnMut(Option<i64>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), TraceError> {
        let count = self.lock().slots.len();
        let mut streams: Vec<Merged> = (0..count).map(|_| Merged::default()).collect();
        let mut heap = BinaryHeap::with_capacity(count);
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Some(merge) = self.due(index, stream, make)? {
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
            match self.due(index, stream, make)? {
                Some(merge) => first.0.0 = merge,
                None => {
                    PeekMut::pop(first);
                }
            }
        }
        Ok(())
    }

    /// The time at which the next event of a stream is due; gets the next batch if needed.
    fn due(
        &self,
        index: usize,
        stream: &mut Merged,
        make: &impl Fn(&Event<'_>, &mut Vec<u8>),
    ) -> Result<Option<Option<i64>>, TraceError> {
        loop {
            if let Some(record) = stream.batch.records.get(stream.next) {
                return Ok(Some(record.merge));
            }
            if let Some(error) = stream.batch.error.take() {
                return Err(error);
            }
            let Some(batch) = self.next_batch(index, Some(std::mem::take(&mut stream.batch)), make) else {
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

/// Each stream alone, or, if there are many, groups of neighbours with about the same amount of
/// data.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and sums of its own lists, which are in memory"
)]
fn groups(streams: Vec<StreamReader>, threads: usize) -> Vec<Vec<StreamReader>> {
    if streams.len() <= STREAMS_PER_THREAD * threads {
        return streams.into_iter().map(|stream| vec![stream]).collect();
    }
    let most = GROUPS_PER_THREAD * threads;
    let mut left: u64 = streams.iter().map(StreamReader::file_bytes).sum();
    let mut groups: Vec<Vec<StreamReader>> = Vec::with_capacity(most);
    // The room in the last group.
    let mut room = 0;
    for stream in streams {
        let bytes = stream.file_bytes();
        let more = most - groups.len();
        match groups.last_mut() {
            Some(group) if more == 0 || bytes / 2 < room => group.push(stream),
            _ => {
                room = left / more as u64;
                groups.push(vec![stream]);
            }
        }
        room = room.saturating_sub(bytes);
        left -= bytes;
    }
    groups
}

/// A stream on the merging thread.
#[derive(Default)]
struct Merged {
    batch: Batch,
    next: usize,
    /// Start of the next record's bytes.
    start: usize,
}
