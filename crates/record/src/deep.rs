//! Threads whose stacks are deeper than the copies that samples have room for: the kernel copies
//! more of these, if it may.

use std::ops::Range;

use backtrail_process::perf::{DeepStacks, Edges, MOST_EDGES, Sampler};
use backtrail_process::stack::{room_of_stack, touch};
use rustc_hash::FxHashMap;

use crate::left::Left;

/// The most threads to remember; with more, all are forgotten.
const MOST_THREADS: usize = 1 << 13;
/// The first pause in nanoseconds between two searches for a thread's stack, which doubles: a
/// thread may run on many stacks.
const FIRST_PAUSE: u64 = 1_000_000;
const MOST_DOUBLINGS: u32 = 10;

/// Whether more can be copied.
#[derive(Debug, Default)]
enum Copying {
    #[default]
    Unknown,
    /// To be found out after the current samples.
    Wanted,
    Possible(DeepStacks),
    Impossible,
}

/// The time in nanoseconds after which an edge that no walk has met again may be replaced.
const LATELY: u64 = 20_000_000;
/// The least distance between edges: what is copied at one is not copied at another.
const LEAST_APART: u64 = 16 << 10;
/// Bytes below an edge that are copied too: a frame's saved registers lie next to its return
/// address.
const BELOW: u64 = 256;
/// The smallest page: copies end where one is not present.
const PAGE: u64 = 4096;
/// Samples of a thread whose stacks can't be walked to the end, until no more of it is copied.
const MOST_SEEN: u32 = 4;
/// Nanoseconds after a thread's first sample within which it is taken for new: a child that `fork`
/// has made mostly runs another program by then, on another stack.
const YOUNG: u64 = 3_000_000;
/// Bytes that a stack may become deeper before its mapping must be looked up, and those from the
/// last frame's stack pointer to the end of its words.
const ROOM: u64 = 1 << 20;
const LAST_FRAME: u64 = 256;

/// A thread's stack.
#[derive(Debug, Default)]
struct Stack {
    mapping: Range<u64>,
    /// Whether the kernel knows what to copy; before, it copies a little of any stack.
    is_known: bool,
    /// Samples until then, and the time of the first one.
    seen: u32,
    first: u64,
    /// Whether what lies below the stack pointer is copied.
    below: bool,
    attempts: u32,
    /// The time from which it may be searched again.
    next: u64,
    /// Words where walks ended because they had not been copied, and when one was last met. Beyond
    /// the frames that a program makes for its largest buffers, each is met again and again.
    edges: Vec<(u64, u64)>,
    left: Left,
}

/// A thread on a stack that is deep, or nearly so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeepSample {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// When the sample was taken.
    pub(crate) time: u64,
    pub(crate) sp: u64,
}

/// The threads with deep stacks.
#[derive(Debug, Default)]
pub(crate) struct DeepThreads {
    copying: Copying,
    by_thread: FxHashMap<u32, Stack>,
    /// Threads that wait until it is known whether more can be copied.
    waiting: Vec<DeepSample>,
}

impl DeepThreads {
    /// A walk has ended at this word, which was not copied: later copies contain what follows it.
    /// Returns whether that is new.
    pub(crate) fn cut(&mut self, sample: DeepSample, address: u64) -> bool {
        if let Some(stack) = self.by_thread.get_mut(&sample.tid)
            && !stack.mapping.contains(&address)
        {
            stack.mapping = 0..0;
        }
        self.begin(sample);
        let (Copying::Possible(stacks), Some(stack)) = (&self.copying, self.by_thread.get_mut(&sample.tid)) else {
            return false;
        };
        stack.add_edge(stacks, sample, address)
    }

    /// A walk has read in this piece, which is not of the stack that the thread was on. If it is of
    /// the one that the thread has left, later samples have a part of that one.
    pub(crate) fn was_left(&mut self, sample: DeepSample, piece: u64) {
        let Some(stack) = self.by_thread.get(&sample.tid) else {
            return;
        };
        if stack.mapping.contains(&piece) && !stack.mapping.contains(&sample.sp) {
            self.leave(sample, piece);
        }
    }

    /// A walk has ended at this word, which was not copied, far from the stack pointer. If it lies
    /// in another stack, later samples have a part of that one, too. Returns whether that is new.
    pub(crate) fn leave(&mut self, sample: DeepSample, address: u64) -> bool {
        self.make_room(sample.tid);
        let Copying::Possible(stacks) = &self.copying else {
            return false;
        };
        let left = &mut self.by_thread.entry(sample.tid).or_default().left;
        left.cut((sample.pid, sample.time), sample.sp, address) && stacks.add_left(sample.tid, left.stacks()).is_ok()
    }

    /// A walk has needed a word below the stack pointer. Returns whether that is new.
    pub(crate) fn look_below(&mut self, sample: DeepSample) -> bool {
        self.begin(sample);
        match (&self.copying, self.by_thread.get_mut(&sample.tid)) {
            (Copying::Possible(stacks), Some(stack)) if !stack.below => {
                stack.below = true;
                stack.mapping.contains(&sample.sp) && stack.publish(stacks, sample)
            }
            _ => false,
        }
    }

    /// Whether the kernel knows what to copy of a thread's stack.
    pub(crate) fn is_known(&self, tid: u32) -> bool {
        match self.copying {
            Copying::Possible(_) => self.by_thread.get(&tid).is_some_and(|stack| stack.is_known),
            _ => true,
        }
    }

    /// The thread's stack was walked, to its outermost frame with the stack pointer `end` if there
    /// is one: from now on, nothing beyond it is copied.
    pub(crate) fn know(&mut self, sample: DeepSample, end: Option<u64>) {
        self.make_room(sample.tid);
        if let Copying::Possible(stacks) = &self.copying {
            self.by_thread.entry(sample.tid).or_default().know(stacks, sample, end);
        }
    }

    /// Wants more to be copied, of any thread.
    pub(crate) fn want(&mut self) {
        if let Copying::Unknown = self.copying {
            self.copying = Copying::Wanted;
        }
    }

    fn make_room(&mut self, tid: u32) {
        if let Copying::Possible(stacks) = &self.copying
            && self.by_thread.len() >= MOST_THREADS
            && !self.by_thread.contains_key(&tid)
        {
            self.by_thread.drain().for_each(|(tid, _)| stacks.remove(tid));
        }
    }

    /// A walk has read beyond the copy of this sample, in one of these pieces.
    pub(crate) fn was_useful(&mut self, tid: u32, time: u64, address: u64) {
        if let Some(stack) = self.by_thread.get_mut(&tid)
            && let Some(edge) = stack.edges.iter_mut().find(|edge| edge.0 == address)
        {
            edge.1 = time;
        }
    }

    /// Has more copied of the thread's later stacks.
    pub(crate) fn begin(&mut self, sample: DeepSample) {
        self.make_room(sample.tid);
        match &self.copying {
            Copying::Impossible => {}
            Copying::Unknown | Copying::Wanted => {
                self.copying = Copying::Wanted;
                self.waiting.retain(|waiting| waiting.tid != sample.tid);
                self.waiting.push(sample);
            }
            Copying::Possible(stacks) => {
                let stack = self.by_thread.entry(sample.tid).or_default();
                stack.follow(stacks, sample);
            }
        }
    }

    /// Finds out whether more can be copied, if that is wanted.
    pub(crate) fn prepare(&mut self, sampler: &mut Sampler) {
        if let Copying::Wanted = self.copying {
            self.copying = sampler.deep_stacks().map_or(Copying::Impossible, Copying::Possible);
            for sample in std::mem::take(&mut self.waiting) {
                self.begin(sample);
            }
        }
    }

    /// The thread has ended, or runs another program.
    pub(crate) fn forget(&mut self, tid: u32) {
        if let Copying::Possible(stacks) = &self.copying
            && self.by_thread.remove(&tid).is_some()
        {
            stacks.remove(tid);
        }
    }
}

impl Stack {
    fn follow(&mut self, stacks: &DeepStacks, sample: DeepSample) {
        if self.mapping.contains(&sample.sp) || sample.time < self.next {
            return;
        }
        self.next = sample
            .time
            .saturating_add(FIRST_PAUSE << self.attempts.min(MOST_DOUBLINGS));
        self.attempts += 1;
        let Some(mapping) = room_of_stack(sample.pid, sample.sp) else {
            return;
        };
        self.edges = outermost(&mapping, sample.time);
        let known = std::mem::replace(&mut self.mapping, mapping.clone());
        if !self.publish(stacks, sample) {
            self.mapping = known;
            return;
        }
        // A page that is not present would end the copies.
        let end = sample
            .sp
            .saturating_add(2 * u64::from(stacks.most_bytes()))
            .min(mapping.end);
        touch(sample.pid, sample.sp..end);
        self.is_known = true;
    }

    fn know(&mut self, stacks: &DeepStacks, sample: DeepSample, end: Option<u64>) {
        if self.seen == 0 {
            self.first = sample.time;
        }
        self.seen += 1;
        if sample.time.saturating_sub(self.first) < YOUNG {
            return;
        }
        let range = match end {
            Some(end) if end >= sample.sp => sample.sp.saturating_sub(ROOM)..end.saturating_add(LAST_FRAME),
            _ if self.seen >= MOST_SEEN => 0..0,
            _ => return,
        };
        self.edges = outermost(&range, sample.time);
        self.mapping = range;
        self.is_known = self.publish(stacks, sample);
    }

    fn add_edge(&mut self, stacks: &DeepStacks, sample: DeepSample, address: u64) -> bool {
        let mut edge = address.saturating_sub(BELOW) & !7;
        let is_known = |edge: u64| self.edges.iter().any(|known| known.0 == edge);
        // What is below it may lie in another page, which is not present: nothing is copied then.
        if is_known(edge) {
            edge = edge.max(address & !(PAGE - 1));
        }
        if is_known(edge) || !self.mapping.contains(&sample.sp) || !self.mapping.contains(&edge) {
            return false;
        }
        let is_near = |known: &(u64, u64)| known.0.abs_diff(edge) < LEAST_APART;
        let is_old = |known: &(u64, u64)| known.1.saturating_add(LATELY) < sample.time;
        // The stack below an edge has changed if walks end close to it.
        match self.edges.iter().position(is_near) {
            Some(near) => drop(self.edges.remove(near)),
            None if self.edges.len() < MOST_EDGES => {}
            None => {
                let oldest = (0..self.edges.len()).min_by_key(|&index| self.edges[index].1);
                match oldest.filter(|&index| is_old(&self.edges[index])) {
                    Some(oldest) => drop(self.edges.remove(oldest)),
                    None => return false,
                }
            }
        }
        self.edges.push((edge, sample.time));
        self.edges.sort_unstable();
        self.publish(stacks, sample)
    }

    fn publish(&self, stacks: &DeepStacks, DeepSample { tid, sp, .. }: DeepSample) -> bool {
        let mut edges = Edges::default();
        edges.iter_mut().zip(&self.edges).for_each(|(to, known)| *to = known.0);
        stacks.add(tid, &self.mapping, sp, self.below, edges).is_ok()
    }
}

/// The first edges of a stack: its end has what lies outside of a large frame that is met for the
/// first time.
fn outermost(stack: &Range<u64>, time: u64) -> Vec<(u64, u64)> {
    /// Bytes that are copied at an edge.
    const AT_EDGE: u64 = 60 << 10;
    let edges = [2, 1].map(|back| (stack.end.saturating_sub(back * AT_EDGE) & !7, time));
    edges.into_iter().filter(|edge| edge.0 > stack.start).collect()
}
