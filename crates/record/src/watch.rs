//! Stacks deeper than their copies: what lies beyond, read beforehand and watched.
//!
//! When a stack reaches beyond its copy, the word that the walk could not read is watched by a debug register, and then the
//! memory from there on is read. A later sample that has a frame with its return address in that word, while nobody has
//! written there, has had that frame all the time, and with it all frames outside: frames that wait for a call to return
//! do not change. So these are known for the moment of the sample, though they were read before it.

use std::ops::Range;

use backtrail_target::perf::monotonic_ns;
use backtrail_target::stack::{Beyond, Watchpoint};
use backtrail_target::sys;
use rustc_hash::FxHashMap;

/// Threads that are watched at a time.
const MOST_THREADS: usize = 64;
/// The most that is read of a stack.
const MOST_BYTES: u64 = 2 << 20;
/// Bytes below the watched word that are read too: a frame's saved registers lie next to its return address.
const BELOW: u64 = 256;
/// The pause in nanoseconds after a watch that was of no use, which doubles.
const FIRST_PAUSE: u64 = 1_000_000;
const MOST_DOUBLINGS: u32 = 8;

/// What is known of a deep stack.
#[derive(Debug)]
struct Watch {
    point: Option<Watchpoint>,
    anchor: u64,
    start: u64,
    bytes: Vec<u8>,
    /// From when on samples may use it, and up to when it is known that nobody has written to the word.
    valid: Range<u64>,
    /// Watches of this thread in a row that were of no use.
    useless: u32,
    next: u64,
}

/// The deep stacks of threads.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_thread: FxHashMap<u32, Watch>,
}

impl Watches {
    /// What is known to lie beyond the copy of a sample of this thread that was taken at `time`.
    pub(crate) fn beyond(&mut self, tid: u32, time: u64) -> Option<Beyond<'_>> {
        let watch = self.by_thread.get_mut(&tid)?;
        if time < watch.valid.start {
            return None;
        }
        if time >= watch.valid.end {
            let now = monotonic_ns();
            if watch.point.as_ref()?.was_met() {
                watch.point = None;
                return None;
            }
            watch.valid.end = now;
        }
        Some(Beyond {
            anchor: watch.anchor,
            start: watch.start,
            bytes: &watch.bytes,
        })
    }

    /// The last answer was of use.
    pub(crate) fn was_useful(&mut self, tid: u32) {
        if let Some(watch) = self.by_thread.get_mut(&tid) {
            watch.useless = 0;
        }
    }

    /// Watches the word at `anchor`, which the walk of a sample that was taken at `time` could not read, and reads what lies
    /// beyond up to the end of the stack.
    pub(crate) fn begin(&mut self, pid: u32, tid: u32, time: u64, anchor: u64, stack_end: u64) {
        let now = monotonic_ns();
        let old = self.by_thread.get(&tid);
        // What was sampled before the last watch began says nothing of that one.
        if old.is_some_and(|old| now < old.next || time < old.valid.start)
            || old.is_none() && self.by_thread.len() >= MOST_THREADS
        {
            return;
        }
        let useless = old.map_or(0, |old| old.useless);
        // Two watchpoints of one thread would take two of the CPU's few.
        self.by_thread.remove(&tid);
        let point = Watchpoint::new(tid, anchor).ok();
        let mut bytes = Vec::new();
        let start = anchor.saturating_sub(BELOW);
        if point.is_some() {
            let len = stack_end.saturating_sub(start).min(MOST_BYTES);
            bytes.resize(len as usize, 0);
            let read = sys::read_process(pid as i32, start, &mut bytes).unwrap_or(0);
            bytes.truncate(read);
        }
        let ready = monotonic_ns();
        self.by_thread.insert(
            tid,
            Watch {
                point,
                anchor,
                start,
                bytes,
                valid: ready..ready,
                useless: useless + 1,
                next: now.saturating_add(FIRST_PAUSE << useless.min(MOST_DOUBLINGS)),
            },
        );
    }

    /// The thread has ended.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
    }
}
