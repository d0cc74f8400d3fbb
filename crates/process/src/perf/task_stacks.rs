//! Copies of the stacks of tasks that a run-time system schedules by itself, while its thread is on
//! its own stack for them: Erlang's processes, whose stacks are in their heaps.
//!
//! The thread keeps the address of its current task at a fixed place, and the task's structure has
//! the stack pointer that it has left, and the end of its stack.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::part::part_copier;
use super::program::{Code, END, FRAME, Jumps, NEXT, PAGE, SP, Target, op};
use super::threads::Threads;

/// Words of a map's value.
const WORDS: i16 = 5;
/// The most records of a stack.
const PARTS: usize = 4;
/// Pages below the left stack pointer: it may be older than the last frames.
const PAGES_BELOW: i32 = 2;

/// Places in the program's frame; the first are those of the words of a map's value.
mod place {
    pub(super) const LOW: i16 = -104;
    pub(super) const HIGH: i16 = -96;
    pub(super) const CURRENT: i16 = -88;
    pub(super) const STACK: i16 = -80;
    pub(super) const STACK_END: i16 = -72;
    pub(super) const TASK: i16 = -64;
    pub(super) const LEFT: i16 = -56;
    pub(super) const LEFT_END: i16 = -48;
}

/// A thread that runs tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskThread {
    /// Its own stack.
    pub stack: Range<u64>,
    /// Where it keeps the address of its current task.
    pub current: u64,
    /// Bytes from the task's address to the stack pointer that it has left, and to the end of its
    /// stack.
    pub offsets: (u64, u64),
}

/// The threads whose tasks' stacks are copied.
#[derive(Clone, Debug)]
pub struct TaskStacks {
    threads: Threads,
}

impl TaskStacks {
    pub(super) fn new() -> io::Result<TaskStacks> {
        Threads::new(WORDS).map(|threads| TaskStacks { threads })
    }

    /// Copies the stack of a thread's task from now on.
    pub fn add(&self, tid: u32, thread: &TaskThread) -> io::Result<()> {
        let TaskThread {
            stack,
            current,
            offsets,
        } = thread;
        let words: [u64; WORDS as usize] = [stack.start, stack.end, *current, offsets.0, offsets.1];
        self.threads.add(tid, words)
    }

    /// No longer does so.
    pub fn remove(&self, tid: u32) {
        self.threads.remove(tid);
    }
}

/// Copies the stacks of these threads' tasks. Continues with the next program.
pub(super) fn copier(sp_offset: i16, stacks: &TaskStacks, target: Target<'_>, next: (BorrowedFd<'_>, u32)) -> Code {
    let mut code = Code::default();
    let (mut out, mut calls) = (Jumps::default(), Jumps::default());
    code.begin();
    code.find_words(&mut out, &stacks.threads, place::LOW);
    code.load_sp(sp_offset);
    code.outside(&mut out, SP, place::LOW, place::HIGH);
    code.take_buffer(&mut out, target);
    code.push(op::LOAD, 3, FRAME, place::CURRENT, 0);
    code.read(&mut out, place::TASK, 8);
    for (offset, to) in [(place::STACK_END, place::LEFT_END), (place::STACK, place::LEFT)] {
        code.push(op::LOAD, 3, FRAME, place::TASK, 0);
        code.push(op::LOAD, 1, FRAME, offset, 0);
        code.push(op::ADD_REGISTER, 3, 1, 0, 0);
        code.push(op::STORE, FRAME, 3, offset, 0);
        code.read(&mut out, to, 8);
    }
    // The word with the stack pointer.
    code.copy_structure(&mut out, &mut calls, place::STACK, 8);
    // What is above it on its page, and on the following ones.
    let page = |code: &mut Code, to: u8| {
        code.push(op::LOAD, to, FRAME, place::LEFT, 0);
        code.push(op::AND, to, 0, 0, -PAGE);
    };
    page(&mut code, NEXT);
    code.push(op::LOAD, END, FRAME, place::LEFT_END, 0);
    let mut copied = Jumps::default();
    for _ in 0..PARTS {
        code.copy_part(&mut copied, &mut calls);
    }
    code.land(copied);
    page(&mut code, END);
    page(&mut code, NEXT);
    code.push(op::ADD, NEXT, 0, 0, -PAGES_BELOW * PAGE);
    code.copy_part(&mut out, &mut calls);
    code.land(out);
    code.continue_with(next.0, next.1);
    code.exit();
    part_copier(&mut code, calls, target);
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::part;

    #[test]
    fn the_kernel_accepts_the_program() {
        part::accepted(TaskStacks::new, copier);
    }
}
