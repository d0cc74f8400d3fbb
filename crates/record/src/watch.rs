//! Stacks deeper than their copies: what lies beyond, read beforehand and watched.
//!
//! When a stack reaches beyond its copy, the word that the walk could not read is watched by a debug register, and then the
//! memory from there on is read. A later sample that has a frame with its return address in that word, while nobody has
//! written there, has had that frame all the time, and with it all frames outside: frames that wait for a call to return
//! do not change. So these are known for the moment of the sample, though they were read before it.

use std::ops::Range;

use backtrail_target::perf::monotonic_ns;
use backtrail_target::stack::{Beyond, Watchpoint, mapping_of_own_stack};
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
const MOST_DOUBLINGS: u32 = 4;

/// Words of one thread that are watched at a time: CPUs have four debug registers, and debuggers want one too. A stack that
/// grows and shrinks passes an outer one again when the inner ones have gone.
const MOST_WATCHES: usize = 3;

/// A watched word, and the memory from there on.
#[derive(Debug)]
struct Watch {
    point: Watchpoint,
    anchor: u64,
    start: u64,
    bytes: Vec<u8>,
    /// From when on samples may use it, and up to when it is known that nobody has written to the word.
    valid: Range<u64>,
}

impl Watch {
    /// Whether nobody has written to the word up to `time`.
    fn is_valid_at(&mut self, time: u64) -> bool {
        if time >= self.valid.end {
            let now = monotonic_ns();
            if self.point.was_met() {
                return false;
            }
            self.valid.end = now;
        }
        true
    }
}

/// What is known of a thread's deep stack.
#[derive(Debug, Default)]
struct DeepStack {
    /// The last one that was of use, or is new, comes first.
    watches: Vec<Watch>,
    /// Watches in a row that began and were of no use.
    useless: u32,
    /// The mapping of the last word.
    mapping: Range<u64>,
    /// When the last one began, and when the next one may.
    begun: u64,
    next: u64,
}

/// The deep stacks of threads.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_thread: FxHashMap<u32, DeepStack>,
}

impl Watches {
    /// Forgets the words of this thread that were written to before `time`, and returns how many are left.
    pub(crate) fn renew(&mut self, tid: u32, time: u64) -> usize {
        let Some(stack) = self.by_thread.get_mut(&tid) else {
            return 0;
        };
        stack.watches.retain_mut(|watch| watch.is_valid_at(time));
        stack.watches.len()
    }

    /// What one of the words that are [left](Watches::renew) says of a sample of this thread that was taken at `time`.
    pub(crate) fn beyond(&self, tid: u32, time: u64, index: usize) -> Option<Beyond<'_>> {
        let watch = self.by_thread.get(&tid)?.watches.get(index)?;
        (time >= watch.valid.start).then_some(Beyond {
            anchor: watch.anchor,
            start: watch.start,
            bytes: &watch.bytes,
        })
    }

    /// This word has made a stack whole.
    pub(crate) fn was_useful(&mut self, tid: u32, index: usize) {
        if let Some(stack) = self.by_thread.get_mut(&tid)
            && index < stack.watches.len()
        {
            stack.useless = 0;
            stack.watches[..=index].rotate_right(1);
        }
    }

    /// Watches the word at `anchor`, which the walk of a sample that was taken at `time` could not read, and reads what lies
    /// beyond up to the end of the stack. Returns whether that word is, or was lately, one of the thread's own stack.
    pub(crate) fn begin(&mut self, pid: u32, tid: u32, time: u64, anchor: u64) -> bool {
        let now = monotonic_ns();
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&tid) {
            return false;
        }
        let stack = self.by_thread.entry(tid).or_default();
        // What was sampled before the last watch began says nothing of that one.
        if now < stack.next || time < stack.begun || stack.watches.iter().any(|watch| watch.anchor == anchor) {
            return stack.mapping.contains(&anchor);
        }
        stack.next = now.saturating_add(FIRST_PAUSE << stack.useless.min(MOST_DOUBLINGS));
        stack.useless = stack.useless.saturating_add(1);
        if !stack.mapping.contains(&anchor) {
            stack.mapping = mapping_of_own_stack(pid, tid, anchor).unwrap_or_default();
        }
        if !stack.mapping.contains(&anchor) {
            return false;
        }
        stack.watches.truncate(MOST_WATCHES - 1);
        if let Some(watch) = watch(pid, tid, anchor, stack.mapping.end) {
            stack.begun = watch.valid.start;
            stack.watches.insert(0, watch);
        }
        true
    }

    /// The thread has ended.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
    }
}

/// Watches first, and reads then. `None` where there is no debug register to be had.
fn watch(pid: u32, tid: u32, anchor: u64, stack_end: u64) -> Option<Watch> {
    let point = Watchpoint::new(tid, anchor).ok()?;
    let start = anchor.saturating_sub(BELOW);
    let len = stack_end.saturating_sub(start).min(MOST_BYTES);
    let mut bytes = vec![0; len as usize];
    let read = sys::read_process(pid as i32, start, &mut bytes).ok()?;
    bytes.truncate(read);
    let ready = monotonic_ns();
    Some(Watch {
        point,
        anchor,
        start,
        bytes,
        valid: ready..ready,
    })
}
