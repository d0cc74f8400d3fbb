//! Threads of Go's runtime: the kernel copies the goroutine's stack too when they run on another
//! one, if it may.

use backtrail_arch::{Arch, Registers};
use backtrail_process::perf::{OtherStack, OtherStacks, Sampler};
use backtrail_process::sys;
use backtrail_unwind::Memory;
use backtrail_unwind::goroutine::{GoThread, KEPT_WORDS, held};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::copying::{Copying, Pauses};

/// The most threads to remember; with more, all are forgotten.
const MOST_THREADS: usize = 1 << 12;
/// Of the pause after a search.
const MOST_DOUBLINGS: u32 = 10;
/// In processes of Go, whose threads are found sooner or later.
const MOST_DOUBLINGS_OF_GO: u32 = 4;

/// What is known about a thread.
#[derive(Debug, Default)]
struct Known {
    stack: Option<OtherStack>,
    pauses: Pauses,
}

/// A sample of a thread whose stack continues on one that was not copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutSample<'r> {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
    pub(crate) registers: &'r Registers,
    /// Words of the frame in which it is cut, one of which may be the goroutine's structure.
    pub(crate) kept: [u64; KEPT_WORDS],
}

/// The threads of Go programs.
#[derive(Debug, Default)]
pub(crate) struct Goroutines {
    copying: Copying<OtherStacks>,
    by_thread: FxHashMap<u32, Known>,
    processes: FxHashSet<u32>,
}

impl Goroutines {
    /// The thread's structures, if it is known to be one of Go's.
    pub(crate) fn thread(&self, tid: u32) -> Option<GoThread> {
        let known = self.by_thread.get(&tid)?;
        known.stack.as_ref().map(|stack| stack.thread)
    }

    /// Whether threads of this process are worth a search at their first sample.
    pub(crate) fn is_go(&self, pid: u32) -> bool {
        self.processes.contains(&pid)
    }

    /// A thread of one of Go's programs was met: its other stacks may be copied without more.
    pub(crate) fn met(&mut self) {
        self.copying.stacks();
    }

    /// Has other stacks of this thread copied from now on, if it turns out to be one of Go's.
    /// `signal_slot` returns where the kernel has saved the stack pointer of the code that a signal
    /// has interrupted. The process may have ended: then what was copied may be enough.
    pub(crate) fn begin(
        &mut self,
        sample: CutSample<'_>,
        copied: &mut impl Memory,
        signal_slot: impl FnOnce() -> Option<u64>,
    ) {
        let CutSample {
            pid,
            tid,
            time,
            registers,
            kept,
        } = sample;
        if self.copying.is_impossible() {
            return;
        }
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&tid) {
            self.forget_all();
        }
        let known = self.by_thread.entry(tid).or_default();
        let most_doublings = match self.processes.contains(&pid) {
            true => MOST_DOUBLINGS_OF_GO,
            false => MOST_DOUBLINGS,
        };
        if !known.pauses.are_over(time, most_doublings) {
            return;
        }
        let mut memory = Now { pid };
        let found = known.stack.as_ref().map(|stack| stack.thread);
        let arch = Arch::native();
        // The goroutine of a moment ago may run on another thread now.
        let is_own = |thread: &GoThread| {
            let is_in_stack = |sp| thread.system_stack().contains(&sp);
            registers.get(arch.sp).is_some_and(is_in_stack) || thread.number(&mut Now { pid }) == Some(tid.into())
        };
        let mut candidates = held(arch, registers).into_iter().chain(kept).filter(|g| *g != 0);
        let mut thread = |g| GoThread::of(g, &mut memory).or_else(|| GoThread::of(g, copied));
        let found = found.or_else(|| candidates.find_map(|g| thread(g).filter(is_own)));
        let Some(thread) = found else {
            return;
        };
        let signals = signal_slot().and_then(|slot| {
            let stack = thread.signal_stack(&mut memory)?;
            stack.contains(&slot).then_some((stack, slot))
        });
        let before = known.stack.take().map(|stack| stack.signals);
        known.stack = Some(OtherStack {
            thread,
            signals: signals.or(before).unwrap_or_default(),
        });
        self.processes.insert(pid);
        if let Some(stacks) = self.copying.stacks() {
            known.copy(tid, stacks);
        }
    }

    /// Finds out whether other stacks can be copied, if that is wanted.
    pub(crate) fn prepare(&mut self, sampler: &mut Sampler) {
        if let Some(stacks) = self.copying.prepare(|| sampler.other_stacks()) {
            self.by_thread.iter().for_each(|(&tid, known)| known.copy(tid, stacks));
        }
    }

    /// The thread has ended, or runs another program.
    pub(crate) fn forget(&mut self, tid: u32) {
        if let Some(known) = self.by_thread.remove(&tid) {
            self.processes.remove(&tid);
            if let (Some(stacks), Some(_)) = (self.copying.known(), known.stack) {
                stacks.remove(tid);
            }
        }
    }

    fn forget_all(&mut self) {
        let threads: Vec<u32> = self.by_thread.keys().copied().collect();
        threads.into_iter().for_each(|tid| self.forget(tid));
        self.processes.clear();
    }
}

impl Known {
    fn copy(&self, tid: u32, stacks: &OtherStacks) {
        if let Some(stack) = &self.stack {
            // If it is not accepted, stacks are cut as before.
            let _ = stacks.add(tid, stack);
        }
    }
}

/// A process's memory as it is now: for structures that stay where they are.
struct Now {
    pid: u32,
}

impl Memory for Now {
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        let read = sys::read_process(self.pid as i32, address, &mut word).ok()?;
        (read == word.len()).then(|| u64::from_ne_bytes(word))
    }
}

/// Where a signal's frame at this stack pointer has the stack pointer of the interrupted code.
pub(crate) fn signal_slot(arch: &Arch, sp: u64) -> Option<u64> {
    let saved = arch
        .signal_frame
        .registers
        .iter()
        .find(|(register, _)| *register == arch.sp);
    saved.map(|&(_, offset)| sp.wrapping_add_signed(offset))
}
