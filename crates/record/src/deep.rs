//! Threads whose stacks are deeper than the copies that samples have room for: the kernel copies
//! more of these, if it may.

use std::ops::Range;

use backtrail_process::perf::{DeepStacks, Sampler};
use backtrail_process::stack::{room_of_stack, touch};
use rustc_hash::FxHashMap;

/// The most threads to remember; with more, all are forgotten.
const MOST_THREADS: usize = 1 << 10;
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

/// A thread's stack.
#[derive(Debug, Default)]
struct Stack {
    mapping: Range<u64>,
    attempts: u32,
    /// The time from which it may be searched again.
    next: u64,
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
    /// The most bytes that the copy of a thread's stack can have, if plain copies have
    /// `stack_bytes`.
    pub(crate) fn most_bytes(&self, tid: u32, sp: u64, stack_bytes: u32) -> u32 {
        let Copying::Possible(stacks) = &self.copying else {
            return stack_bytes;
        };
        match self.by_thread.get(&tid) {
            Some(stack) if stack.mapping.contains(&sp) => {
                let rest = u32::try_from(stack.mapping.end - sp).unwrap_or(u32::MAX);
                let most = stack_bytes.saturating_add(stacks.most_bytes());
                rest.min(most).max(stack_bytes)
            }
            _ => stack_bytes,
        }
    }

    /// Has more copied of the thread's later stacks.
    pub(crate) fn begin(&mut self, sample: DeepSample) {
        match &self.copying {
            Copying::Impossible => {}
            Copying::Unknown | Copying::Wanted => {
                self.copying = Copying::Wanted;
                self.waiting.retain(|waiting| waiting.tid != sample.tid);
                self.waiting.push(sample);
            }
            Copying::Possible(stacks) => {
                if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&sample.tid) {
                    self.by_thread.drain().for_each(|(tid, _)| stacks.remove(tid));
                }
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
        if stacks.add(sample.tid, &mapping).is_err() {
            return;
        }
        // A page that is not present would end the copies.
        let end = sample
            .sp
            .saturating_add(2 * u64::from(stacks.most_bytes()))
            .min(mapping.end);
        touch(sample.pid, sample.sp..end);
        self.mapping = mapping;
    }
}
