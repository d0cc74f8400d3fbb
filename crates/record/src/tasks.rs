//! Threads of Erlang's run-time system: the kernel copies the stack of the process that they run
//! too when they are on their own, if it may.

use std::cmp::Reverse;

use backtrail_arch::{Arch, Registers};
use backtrail_cfi::erlang;
use backtrail_process::perf::{Sampler, TaskStacks, TaskThread};
use backtrail_process::sys;
use backtrail_sframe::{Base, Location};
use rustc_hash::FxHashMap;

use crate::copying::{Copying, Pauses};

/// The most threads to remember; with more, all are forgotten.
const MOST_THREADS: usize = 1 << 12;
/// Of the pause after a search.
const MOST_DOUBLINGS: u32 = 5;
/// The most places of a thread that are remembered.
const MOST_PLACES: usize = 64;
/// Bytes of a process's structure in which its heap and stack are, and what leads to its thread's.
const TASK_BYTES: usize = 1 << 10;
/// Bytes of a thread's structure in which the address of its current process is.
const THREAD_BYTES: usize = 2 << 10;
/// What a thread's own stack may have below the frame in which its process calls C, and above.
const BELOW: u64 = 1 << 20;
const ABOVE: u64 = 64 << 10;

/// What is known about a thread.
#[derive(Debug, Default)]
struct Known {
    thread: Option<TaskThread>,
    /// Places that had the current task's address, each with a score; the best first.
    places: Vec<(u64, i32)>,
    pauses: Pauses,
}

/// A sample of a thread in C that its task has called, cut where the task's stack follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutTask<'r> {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
    /// Those of the frame that has called C.
    pub(crate) registers: &'r Registers,
    /// Where the task's stack pointer is.
    pub(crate) stack: Location,
}

/// The threads of Erlang's run-time systems.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    copying: Copying<TaskStacks>,
    by_thread: FxHashMap<u32, Known>,
}

impl Tasks {
    /// Has the stacks of this thread's tasks copied from now on, if it is found where they are.
    pub(crate) fn begin(&mut self, cut: CutTask<'_>) {
        if self.copying.is_impossible() {
            return;
        }
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&cut.tid) {
            let threads: Vec<u32> = self.by_thread.keys().copied().collect();
            threads.into_iter().for_each(|tid| self.forget(tid));
        }
        let known = self.by_thread.entry(cut.tid).or_default();
        if !known.pauses.are_over(cut.time, MOST_DOUBLINGS) {
            return;
        }
        if let Some((thread, places)) = find(&cut)
            && let Some(current) = known.next_place(&places)
        {
            known.thread = Some(TaskThread { current, ..thread });
            if let Some(stacks) = self.copying.stacks() {
                known.copy(cut.tid, stacks);
            }
        }
    }

    /// Where the word is, of the task with these registers, that comes with each copy of its stack,
    /// if the thread is known.
    pub(crate) fn copied_word(&self, tid: u32, registers: &Registers) -> Option<u64> {
        let thread = self.by_thread.get(&tid)?.thread.as_ref()?;
        registers.get(erlang::PROCESS)?.checked_add(thread.offsets.0)
    }

    /// Finds out whether stacks of tasks can be copied, if that is wanted.
    pub(crate) fn prepare(&mut self, sampler: &mut Sampler) {
        if let Some(stacks) = self.copying.prepare(|| sampler.task_stacks()) {
            self.by_thread.iter().for_each(|(&tid, known)| known.copy(tid, stacks));
        }
    }

    /// The thread has ended, or runs another program.
    pub(crate) fn forget(&mut self, tid: u32) {
        if let Some(known) = self.by_thread.remove(&tid)
            && let (Some(stacks), Some(_)) = (self.copying.known(), known.thread)
        {
            stacks.remove(tid);
        }
    }
}

impl Known {
    /// The place to try next, after a search has found these. The thread may have gone on to
    /// another task before it is searched, and other structures have the addresses of single tasks:
    /// the place that is in use counts less each time, because a stack of another task was copied.
    fn next_place(&mut self, places: &[u64]) -> Option<u64> {
        const OTHER: i32 = 2;
        let used = self.thread.as_ref().map(|thread| thread.current);
        for (place, score) in &mut self.places {
            *score -= if Some(*place) == used { OTHER } else { 0 };
        }
        for place in places {
            match self.places.iter_mut().find(|(known, _)| known == place) {
                Some((_, score)) => *score += 1,
                None => self.places.push((*place, 1)),
            }
        }
        // The first of several.
        self.places.sort_by_key(|(_, score)| Reverse(*score));
        self.places.truncate(MOST_PLACES);
        self.places.first().map(|(place, _)| *place)
    }

    fn copy(&self, tid: u32, stacks: &TaskStacks) {
        if let Some(thread) = &self.thread {
            // If it is not accepted, stacks are cut as before.
            let _ = stacks.add(tid, thread);
        }
    }
}

/// Where the task has its stack, and all places where the thread may have the address of its
/// current task: those with the address of this one.
fn find(cut: &CutTask<'_>) -> Option<(TaskThread, Vec<u64>)> {
    let arch = Arch::native();
    let task = cut.registers.get(erlang::PROCESS)?;
    let words = read(cut.pid, task, TASK_BYTES);
    let saved = (cut.stack.base == Base::Register(erlang::PROCESS.0) && cut.stack.deref).then_some(cut.stack.offset);
    let (left, end) = heap_and_stack(&words, saved.and_then(|offset| usize::try_from(offset / 8).ok()))?;
    let mut places = Vec::new();
    for &structure in words.iter().filter(|word| word.is_multiple_of(8)) {
        let words = read(cut.pid, structure, THREAD_BYTES);
        let found = (0_u64..).zip(&words).filter(|(_, word)| **word == task);
        places.extend(found.map(|(index, _)| structure + 8 * index));
    }
    let own = task..task.saturating_add(TASK_BYTES as u64);
    places.retain(|place| !own.contains(place));
    places.sort_unstable();
    places.dedup();
    let sp = cut.registers.get(arch.sp)?;
    let thread = TaskThread {
        stack: sp.saturating_sub(BELOW)..sp.saturating_add(ABOVE),
        current: 0,
        offsets: (8 * left as u64, 8 * end as u64),
    };
    (!places.is_empty()).then_some((thread, places))
}

/// Which words of a process's structure are its stack pointer and the end of its heap, above which
/// nothing of the stack is: `htop`, `stop`, and some words later, `heap`, `hend`.
fn heap_and_stack(words: &[u64], saved: Option<usize>) -> Option<(usize, usize)> {
    /// Words from the one pair to the other.
    const BETWEEN: usize = 12;
    let pair = |at: usize| Some((*words.get(at)?, *words.get(at + 1)?));
    let tops = (0..words.len()).filter(|at| saved.is_none_or(|saved| saved == at + 1));
    let mut found = tops.filter_map(|at| {
        let (top, stack) = pair(at)?;
        let is_heap = |other: &usize| {
            pair(*other)
                .is_some_and(|(begin, end)| begin != 0 && begin <= top && top <= stack && stack <= end && begin < end)
        };
        let heap = (at + 2..at + BETWEEN).find(is_heap)?;
        Some((at + 1, heap + 1))
    });
    found.next()
}

/// Words of a process's memory as it is now; none if it can't be read.
fn read(pid: u32, address: u64, bytes: usize) -> Vec<u64> {
    let mut memory = vec![0; bytes];
    let read = sys::read_process(pid as i32, address, &mut memory).unwrap_or(0);
    let words = memory[..read].chunks_exact(8);
    words
        .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_not_the_threads_is_left() {
        let mut known = Known::default();
        let try_next = |known: &mut Known, places: &[u64]| {
            let current = known.next_place(places)?;
            known.thread = Some(TaskThread {
                stack: 0..1,
                current,
                offsets: (0, 0),
            });
            Some(current)
        };
        assert_eq!(try_next(&mut known, &[0x10, 0x20]), Some(0x10));
        assert_eq!(try_next(&mut known, &[0x10, 0x20]), Some(0x20));
        // The thread has gone on before it was searched.
        assert_eq!(try_next(&mut known, &[]), Some(0x20));
        assert_eq!(try_next(&mut known, &[0x30, 0x40]), Some(0x30));
        assert_eq!(try_next(&mut known, &[0x20, 0x40]), Some(0x40));
        let many: Vec<u64> = (1..1000).map(|place| place << 12).collect();
        try_next(&mut known, &many);
        assert!(known.places.len() <= MOST_PLACES);
    }

    #[test]
    fn a_process_has_a_heap_with_its_stack() {
        // An id and counts; htop, stop; reductions, a reason, a value; heap, hend; another heap.
        let words = [0x83, 1, 0, 0x1100, 0x1f80, 4000, 0, 0x3b, 0x1000, 0x2000, 0, 512];
        assert_eq!(heap_and_stack(&words, None), Some((4, 9)));
        assert_eq!(heap_and_stack(&words, Some(4)), Some((4, 9)));
        assert_eq!(heap_and_stack(&words, Some(5)), None);
        assert_eq!(heap_and_stack(&words[..9], None), None);
        let mut outside = words;
        outside[4] = 0x2008;
        assert_eq!(heap_and_stack(&outside, None), None);
        assert_eq!(heap_and_stack(&[0; 128], None), None);
    }
}
