//! Watches stacks deeper than their copies, so that their outer frames are known in advance.
//!
//! When a stack reaches beyond its copy, a debug register watches the word that the walk could not
//! read, and then the memory from there on is read. If a later sample has a frame with its return
//! address in that word, and nobody has written there meanwhile, the frame has existed all the
//! time, and so have all frames outside it: frames that wait for a call to return do not change.
//! Thus they are known for the moment of the sample, although they were read before it.
//!
//! The word to watch is a guess that only samples prove right. The innermost word serves the
//! deepest stacks but changes first, so return addresses further outside are watched too.

use std::ops::Range;

use backtrail_process::perf::monotonic_ns;
use backtrail_process::stack::{Beyond, mapping_of_own_stack};
use backtrail_process::sys;
use backtrail_process::watchpoint::Watchpoint;
use rustc_hash::FxHashMap;

/// The most threads watched at a time.
const MOST_THREADS: usize = 64;
/// The most bytes read of a stack.
const MOST_BYTES: u64 = 2 << 20;
/// Bytes below the watched word that are read too: a frame's saved registers lie next to its return
/// address.
const BELOW: u64 = 256;
/// The pause in nanoseconds after a useless watch, which doubles.
const FIRST_PAUSE: u64 = 1_000_000;
const MOST_DOUBLINGS: u32 = 4;

/// The most words watched per thread: CPUs have four debug registers, and debuggers need one too.
const MOST_WATCHES: usize = 3;
/// The distance between them: less than a copy, so that a walk that misses one reaches the next.
const APART: u64 = 40 << 10;
const LEAST_APART: u64 = 16 << 10;
/// Writes to a useless word before no more are requested.
const MOST_UNUSED: u32 = 64;
/// The shortest time that a watch remains after it was useful, in nanoseconds.
const LATELY: u64 = 10_000_000;
/// The most stack bytes that each write brings.
const MOST_COPIED: u64 = 60 << 10;
/// The age below which a sample's words are watched at once; otherwise a newer one may follow.
const FRESH: u64 = 500_000;

/// The word where a walk reached the end of its copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// When the sample was taken.
    pub(crate) time: u64,
    pub(crate) address: u64,
}

/// A watched word, and the memory from there on.
#[derive(Debug)]
struct Watch {
    point: Watchpoint,
    anchor: u64,
    start: u64,
    bytes: Vec<u8>,
    /// The time from which samples may use it, until the time up to which nobody has written to the
    /// word.
    valid: Range<u64>,
    /// When it was last useful, and the writes since then.
    used: u64,
    unused: u32,
}

impl Watch {
    fn beyond(&self) -> Beyond<'_> {
        Beyond {
            anchor: self.anchor,
            start: self.start,
            bytes: &self.bytes,
        }
    }

    /// Follows the writes to the word up to `time`. Returns whether the stack from there on is
    /// still known.
    fn is_valid_at(&mut self, time: u64) -> bool {
        if time < self.valid.end {
            return true;
        }
        let Watch {
            bytes,
            start,
            valid,
            unused,
            anchor,
            ..
        } = self;
        let mut is_whole = true;
        let until = self.point.follow(time, |write| {
            // The write may have come from another stack, or from below the stack pointer.
            is_whole = *anchor >= write.sp && *anchor - write.sp < write.stack.len() as u64;
            bytes.clear();
            bytes.extend_from_slice(write.stack);
            (*start, valid.start) = (write.sp, write.time);
            *unused += 1;
        });
        let Some(until) = until.filter(|_| is_whole) else {
            return false;
        };
        self.valid.end = until;
        self.unused >= MOST_UNUSED || self.point.go_on()
    }
}

/// The watches of a thread's deep stack.
#[derive(Debug, Default)]
struct DeepStack {
    /// The last useful or newest one comes first.
    watches: Vec<Watch>,
    /// Consecutive watches that were useless.
    useless: u32,
    /// The mapping of the last word.
    mapping: Range<u64>,
    /// When the last one began, and when the next one may.
    begun: u64,
    next: u64,
    /// The newest edge that is not watched.
    newest: Option<Edge>,
}

impl DeepStack {
    /// Whether a word close to this one is watched.
    fn is_watched_near(&self, address: u64, distance: u64) -> bool {
        let mut watches = self.watches.iter();
        watches.any(|watch| watch.anchor.abs_diff(address) < distance)
    }

    /// Adds a watch in front. If there are too many, removes the one that has been useless for
    /// longest, but not the outermost, which lasts; removes none if all were useful lately.
    fn add(&mut self, edge: &Edge, anchor: u64) {
        if self.watches.len() >= MOST_WATCHES {
            let outermost = self.watches.iter().map(|watch| watch.anchor).max();
            let may_go =
                |watch: &Watch| Some(watch.anchor) != outermost && watch.used.saturating_add(LATELY) < edge.time;
            match self.watches.iter().rposition(may_go) {
                Some(oldest) => drop(self.watches.remove(oldest)),
                None => return,
            }
        }
        if let Some(watch) = watch(edge.pid, edge.tid, anchor, self.mapping.end) {
            self.begun = watch.valid.start;
            self.watches.insert(0, watch);
        }
    }

    /// Watches an edge, and those return addresses beyond it, found by `outside`, that are far
    /// enough apart.
    fn watch(&mut self, edge: &Edge, outside: impl FnOnce(Beyond<'_>) -> Vec<u64>) {
        self.add(edge, edge.address);
        let Some(innermost) = self.watches.first().filter(|watch| watch.anchor == edge.address) else {
            return;
        };
        let outside = outside(innermost.beyond());
        let outermost = outside.last().copied().unwrap_or(edge.address);
        let apart = (outermost.saturating_sub(edge.address) / 2).clamp(LEAST_APART, APART);
        let mut last = edge.address;
        for anchor in outside {
            if self.watches.len() < MOST_WATCHES && anchor.saturating_sub(last) >= apart {
                last = anchor;
                if !self.is_watched_near(anchor, apart) {
                    self.add(edge, anchor);
                }
            }
        }
    }
}

/// The deep stacks of threads.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_thread: FxHashMap<u32, DeepStack>,
    /// Threads with edges that are not watched.
    unwatched: Vec<u32>,
}

impl Watches {
    /// Forgets this thread's words about which nothing is known at `time` any more, and returns how
    /// many are left; `sp` is the stack pointer then.
    pub(crate) fn renew(&mut self, tid: u32, time: u64, sp: u64) -> usize {
        if self.by_thread.is_empty() {
            return 0;
        }
        let Some(stack) = self.by_thread.get_mut(&tid) else {
            return 0;
        };
        let is_popped = |edge: Edge| edge.address < sp && stack.mapping.contains(&sp);
        if stack.newest.is_some_and(is_popped) {
            stack.newest = None;
        }
        stack.watches.retain_mut(|watch| watch.is_valid_at(time));
        stack.watches.len()
    }

    /// What one of the words that are [left](Watches::renew) proves for a sample of this thread
    /// taken at `time`.
    pub(crate) fn beyond(&self, tid: u32, time: u64, index: usize) -> Option<Beyond<'_>> {
        let watch = self.by_thread.get(&tid)?.watches.get(index)?;
        (time >= watch.valid.start).then(|| watch.beyond())
    }

    /// What the outermost word proves in addition, if it is a different one.
    pub(crate) fn outermost(&self, tid: u32, time: u64, index: usize) -> Option<Beyond<'_>> {
        let watches = &self.by_thread.get(&tid)?.watches;
        let own = watches.get(index)?;
        let outermost = watches.iter().max_by_key(|watch| watch.anchor)?;
        (outermost.anchor > own.anchor && time >= outermost.valid.start).then(|| outermost.beyond())
    }

    /// This word has completed a stack.
    pub(crate) fn was_useful(&mut self, tid: u32, time: u64, index: usize) {
        if let Some(stack) = self.by_thread.get_mut(&tid)
            && index < stack.watches.len()
        {
            stack.useless = 0;
            (stack.watches[index].used, stack.watches[index].unused) = (time, 0);
            stack.watches[..=index].rotate_right(1);
        }
    }

    /// Watches a word that a walk could not read, and return addresses beyond it, which `outside`
    /// finds in the memory read from there up to the end of the stack. Returns whether the word is,
    /// or was lately, in the thread's own stack.
    pub(crate) fn begin(&mut self, edge: Edge, outside: impl FnOnce(Beyond<'_>) -> Vec<u64>) -> bool {
        let Edge {
            pid,
            tid,
            time,
            address,
        } = edge;
        let now = monotonic_ns();
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&tid) {
            return false;
        }
        let stack = self.by_thread.entry(tid).or_default();
        if now.saturating_sub(time) > FRESH && stack.mapping.contains(&address) {
            stack.newest = Some(edge);
            self.unwatched.push(tid);
        }
        // Samples from before the last watch began prove nothing about it.
        if now < stack.next || time < stack.begun || stack.is_watched_near(address, 1) {
            return stack.mapping.contains(&address);
        }
        stack.next = now.saturating_add(FIRST_PAUSE << stack.useless.min(MOST_DOUBLINGS));
        stack.useless = stack.useless.saturating_add(1);
        if !stack.mapping.contains(&address) {
            stack.mapping = mapping_of_own_stack(pid, tid, address).unwrap_or_default();
        }
        if !stack.mapping.contains(&address) {
            return false;
        }
        stack.watch(&edge, outside);
        true
    }

    /// Watches the newest edges once there is no newer sample: frames of earlier edges may have
    /// been popped long ago.
    pub(crate) fn begin_newest(&mut self) {
        for tid in self.unwatched.drain(..) {
            let Some(stack) = self.by_thread.get_mut(&tid) else {
                continue;
            };
            if let Some(edge) = stack.newest.take()
                && !stack.is_watched_near(edge.address, 1)
            {
                stack.add(&edge, edge.address);
            }
        }
    }

    /// The thread has ended.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
    }
}

/// Starts to watch, and then reads. `None` if no debug register is available.
fn watch(pid: u32, tid: u32, anchor: u64, stack_end: u64) -> Option<Watch> {
    let copied = stack_end.saturating_sub(anchor).saturating_add(BELOW) & !7;
    let copied = copied.min(MOST_COPIED);
    let point = Watchpoint::new(tid, anchor, copied as u32).ok()?;
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
        used: 0,
        unused: 0,
    })
}
