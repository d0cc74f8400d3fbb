//! Times in which threads do not have the CPU: from the sample when one leaves it to the report
//! that it has it again, with the stack of the thread that woke it.

use backtrail_process::perf::Sample;
use backtrail_recording::{Frame, Stop, Wait, WaitKind, Waker};
use rustc_hash::{FxHashMap, FxHashSet};

/// The most threads that wait at once; of others, the waits are not known.
const MOST: usize = 1 << 18;

/// A walked stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walked {
    pub(crate) frames: Vec<Frame>,
    pub(crate) stop: Option<Stop>,
    /// Whether outer frames were read apart, and proved.
    pub(crate) live: bool,
}

/// A thread that does not have the CPU.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) pid: u32,
    /// When it left the CPU.
    since: u64,
    preempted: bool,
    pub(crate) stack: Walked,
    /// When it was woken, and by whom.
    woken: Option<(u64, Woken)>,
}

/// A waker.
#[derive(Debug)]
pub(crate) struct Woken {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    interrupt: bool,
    pub(crate) stack: Walked,
}

/// The threads that do not have the CPU.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    by_thread: FxHashMap<u32, Waiting>,
    /// Threads whose end was reported, and that leave the CPU once more.
    ended: FxHashSet<u32>,
    /// Whether the kernel only reports that threads leave the CPU, without samples.
    pub(crate) have_no_stacks: bool,
}

impl Waits {
    /// A thread leaves the CPU with this stack.
    pub(crate) fn leave(&mut self, time: u64, sample: &Sample<'_>, stack: Walked) {
        self.begin_wait(time, (sample.pid, sample.tid), stack);
    }

    fn begin_wait(&mut self, time: u64, (pid, tid): (u32, u32), stack: Walked) {
        // Idle CPUs, and threads that nobody can ask for any more, have no stacks.
        let is_thread = tid != 0 && tid != u32::MAX;
        let has_ended = self.ended.remove(&tid);
        let has_room = self.by_thread.len() < MOST || self.by_thread.contains_key(&tid);
        if is_thread && !has_ended && has_room {
            let waiting = Waiting {
                pid,
                since: time,
                preempted: false,
                stack,
                woken: None,
            };
            self.by_thread.insert(tid, waiting);
        }
    }

    /// It has left.
    pub(crate) fn left(&mut self, time: u64, (pid, tid): (u32, u32), preempted: bool) {
        if self.have_no_stacks {
            self.begin_wait(time, (pid, tid), Walked::default());
        }
        if let Some(waiting) = self.by_thread.get_mut(&tid) {
            waiting.preempted = preempted;
        }
    }

    /// Whether a thread waits to be woken.
    pub(crate) fn is_blocked(&self, tid: u32) -> bool {
        let waiting = self.by_thread.get(&tid);
        waiting.is_some_and(|waiting| !waiting.preempted && waiting.woken.is_none())
    }

    /// A thread is woken by the thread of this sample.
    pub(crate) fn wake(&mut self, time: u64, woken: u32, interrupt: bool, sample: &Sample<'_>, stack: Walked) {
        if let Some(waiting) = self.by_thread.get_mut(&woken) {
            let by = Woken {
                pid: sample.pid,
                tid: sample.tid,
                interrupt,
                stack,
            };
            waiting.woken = Some((time, by));
        }
    }

    /// A thread exits.
    pub(crate) fn exit(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
        if self.ended.len() >= MOST {
            self.ended.clear();
        }
        self.ended.insert(tid);
    }

    /// There is a new thread with this number.
    pub(crate) fn begin(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
        self.ended.remove(&tid);
    }

    /// What threads did since is not known: a time that is too long would be worse than none.
    pub(crate) fn records_lost(&mut self) {
        self.by_thread.clear();
    }

    /// A thread has the CPU again.
    pub(crate) fn end(&mut self, tid: u32) -> Option<Waiting> {
        self.by_thread.remove(&tid)
    }

    /// Those that still wait.
    pub(crate) fn drain(&mut self) -> Vec<(u32, Waiting)> {
        let mut all: Vec<_> = self.by_thread.drain().collect();
        all.sort_by_key(|(tid, _)| *tid);
        all
    }
}

impl Waiting {
    /// Who woke it.
    pub(crate) fn waker(&self) -> Option<&Woken> {
        self.woken.as_ref().map(|(_, by)| by)
    }

    /// What is recorded when it goes on, or when the recording ends.
    pub(crate) fn wait(&self, until: u64, is_over: bool) -> Wait<'_> {
        let kind = match (self.preempted, is_over) {
            (true, _) => WaitKind::Preempted,
            (false, true) => WaitKind::Blocked,
            (false, false) => WaitKind::Unfinished,
        };
        Wait {
            kind,
            duration: until.saturating_sub(self.since),
            ready: self.woken.as_ref().map_or(0, |(time, _)| until.saturating_sub(*time)),
            waker: self.waker().map(|by| Waker {
                pid: by.pid,
                tid: by.tid,
                interrupt: by.interrupt,
                frames: &by.stack.frames,
                stop: by.stack.stop,
            }),
        }
    }
}
