//! Copies of parts of stacks that threads have left for another one: a sample's copy has the stack
//! that the stack pointer is in, and no other.
//!
//! For threads of Go's runtime a BPF program at the event copies, at the same moment, the stack of
//! the goroutine that the thread runs and the structures that lead there, if the thread is on its
//! system stack; and what a signal has interrupted, if it is on the stack of signal handlers. Of a
//! thread that the recorder has not met on its system stack yet, the program finds the structures
//! by the register of the current goroutine.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use backtrail_arch::Arch;
use backtrail_unwind::goroutine::{GoThread, g};

use super::part::part_copier;
use super::program::{Code, END, FRAME, GoRegisters, Jumps, NEXT, PAGE, PAGES, SP, Target, op};
use super::threads::Threads;

/// Words of a map's value.
const WORDS: i16 = 8;
/// The most records of a goroutine's stack, each of [`PAGES`] pages.
const PARTS: usize = 4;
/// Bytes of a `g` up to its stack pointer.
const HEAD_OF_G: u64 = g::SCHED_SP + 8;

/// Places in a program's frame; the first are those of the words of a map's value.
mod place {
    pub(super) const SYSTEM_LOW: i16 = -104;
    pub(super) const SYSTEM_HIGH: i16 = -96;
    pub(super) const SIGNAL_LOW: i16 = -88;
    pub(super) const SIGNAL_HIGH: i16 = -80;
    pub(super) const SIGNAL_SLOT: i16 = -72;
    pub(super) const THREAD: i16 = -64;
    pub(super) const CURRENT: i16 = -56;
    pub(super) const SYSTEM: i16 = -48;
    /// The stack pointer, which may be that of interrupted code.
    pub(super) const OUTER_SP: i16 = -112;
    pub(super) const GOROUTINE: i16 = -120;
    /// The beginning of the goroutine's structure.
    pub(super) const G: i16 = -184;
    /// The goroutine in its register.
    pub(super) const HELD: i16 = -192;
}

/// A thread of Go's runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherStack {
    /// The thread.
    pub thread: GoThread,
    /// The stack of its signal handlers, and the address in it where the kernel saves the stack
    /// pointer of interrupted code; 0 if unknown.
    pub signals: (Range<u64>, u64),
}

/// The threads for which parts of other stacks are copied.
#[derive(Clone, Debug)]
pub struct OtherStacks {
    threads: Threads,
}

impl OtherStacks {
    pub(super) fn new() -> io::Result<OtherStacks> {
        Threads::new(WORDS).map(|threads| OtherStacks { threads })
    }

    /// Copies a thread's other stacks from now on.
    pub fn add(&self, tid: u32, stack: &OtherStack) -> io::Result<()> {
        let OtherStack { thread, signals } = stack;
        let (system, (m, current)) = (thread.system_stack(), thread.structure());
        let words: [u64; WORDS as usize] = [
            system.start,
            system.end,
            signals.0.start,
            if signals.1 == 0 { signals.0.start } else { signals.0.end },
            signals.1,
            m,
            m.saturating_add(current),
            thread.system(),
        ];
        self.threads.add(tid, words)
    }

    /// No longer does so.
    pub fn remove(&self, tid: u32) {
        self.threads.remove(tid);
    }
}

/// Copies what samples' own copies of `stack_bytes` lack of these threads' stacks. Continues with
/// the next program.
pub(super) fn copier(
    sp_offset: i16,
    registers: GoRegisters,
    stack_bytes: i32,
    stacks: &OtherStacks,
    target: Target<'_>,
    next: (BorrowedFd<'_>, u32),
) -> Code {
    let (low, high, sp) = (
        place::G + g::STACK_LO as i16,
        place::G + g::STACK_HI as i16,
        place::G + g::SCHED_SP as i16,
    );
    let mut code = Code::default();
    let (mut out, mut calls) = (Jumps::default(), Jumps::default());
    let (mut unknown, mut known) = (Jumps::default(), Jumps::default());
    code.begin();
    code.load_register(1, registers.goroutine);
    code.push(op::STORE, FRAME, 1, place::HELD, 0);
    code.find_words(&mut unknown, &stacks.threads, place::SYSTEM_LOW);
    code.jump(&mut known, op::JUMP, 0, 0, 0);
    code.land(unknown);
    find_thread(&mut code, &mut out);
    code.land(known);
    code.load_sp(sp_offset);
    code.push(op::STORE, FRAME, SP, place::OUTER_SP, 0);
    code.take_buffer(&mut out, target);
    for unknown in [low, high, sp] {
        code.push(op::STORE_NUMBER, FRAME, 0, unknown, 0);
    }
    code.push(op::LOAD, 3, FRAME, place::CURRENT, 0);
    code.read(&mut out, place::GOROUTINE, 8);
    let mut without = Jumps::default();
    code.push(op::LOAD, 3, FRAME, place::GOROUTINE, 0);
    code.jump(&mut without, op::JUMP_IF_NUMBER, 3, 0, 0);
    code.read(&mut out, place::G, HEAD_OF_G as i32);
    code.land(without);

    // In a signal handler: what was interrupted, on the goroutine's stack or on the system's.
    let mut no_signal = Jumps::default();
    code.outside(&mut no_signal, SP, place::SIGNAL_LOW, place::SIGNAL_HIGH);
    code.push(op::LOAD, 3, FRAME, place::SIGNAL_SLOT, 0);
    code.read(&mut out, place::OUTER_SP, 8);
    code.push(op::LOAD, NEXT, FRAME, place::OUTER_SP, 0);
    let (mut on_system, mut found) = (Jumps::default(), Jumps::default());
    code.outside(&mut on_system, NEXT, low, high);
    code.push(op::LOAD, END, FRAME, high, 0);
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(on_system);
    code.outside(&mut out, NEXT, place::SYSTEM_LOW, place::SYSTEM_HIGH);
    code.push(op::LOAD, END, FRAME, place::SYSTEM_HIGH, 0);
    code.land(found);
    code.copy_part(&mut out, &mut calls);
    code.land(no_signal);

    // On the goroutine's stack: what follows the first bytes of it.
    let parts = |code: &mut Code, out: &mut Jumps, calls: &mut Jumps| {
        for _ in 0..PARTS {
            code.copy_part(out, calls);
        }
    };
    let mut on_system = Jumps::default();
    code.push(op::LOAD, NEXT, FRAME, place::OUTER_SP, 0);
    code.outside(&mut on_system, NEXT, low, high);
    code.push(op::ADD, NEXT, 0, 0, stack_bytes);
    code.push(op::LOAD, END, FRAME, high, 0);
    parts(&mut code, &mut out, &mut calls);
    code.jump(&mut out, op::JUMP, 0, 0, 0);
    code.land(on_system);

    // On the system's stack: the structures, and the goroutine's stack.
    code.push(op::LOAD, NEXT, FRAME, place::OUTER_SP, 0);
    code.outside(&mut out, NEXT, place::SYSTEM_LOW, place::SYSTEM_HIGH);
    code.copy_structure(&mut out, &mut calls, place::THREAD, GoThread::M_SIZE);
    code.copy_structure(&mut out, &mut calls, place::SYSTEM, g::SIZE);
    let (mut has_left, mut found) = (Jumps::default(), Jumps::default());
    code.push(op::LOAD, 1, FRAME, place::HELD, 0);
    code.push(op::LOAD, 2, FRAME, place::GOROUTINE, 0);
    code.push(op::SUBTRACT_REGISTER, 1, 2, 0, 0);
    code.jump(&mut has_left, op::JUMP_UNLESS_NUMBER, 1, 0, 0);
    // The goroutine itself is here, as functions that read the clock are: its structure does not
    // have its stack pointer, but a register mostly has.
    code.load_register(NEXT, registers.kept_sp);
    let mut unknown = Jumps::default();
    code.outside(&mut unknown, NEXT, low, high);
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(unknown);
    code.push(op::LOAD, NEXT, FRAME, high, 0);
    code.push(op::ADD, NEXT, 0, 0, -(PAGES - 1) * PAGE);
    code.push(op::LOAD, 1, FRAME, low, 0);
    code.push(op::JUMP_IF_NOT_BELOW, NEXT, 1, 1, 0);
    code.push(op::COPY, NEXT, 1, 0, 0);
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(has_left);
    code.push(op::LOAD, NEXT, FRAME, sp, 0);
    code.land(found);
    code.push(op::LOAD, END, FRAME, high, 0);
    let mut copied = Jumps::default();
    parts(&mut code, &mut copied, &mut calls);
    code.land(copied);
    // The last, because another thread may move the stack: the stack is then not where this says.
    code.copy_structure(&mut out, &mut calls, place::GOROUTINE, g::SIZE);
    code.land(out);
    code.continue_with(next.0, next.1);
    code.exit();
    part_copier(&mut code, calls, target);
    code
}

/// As a power of two, of what addresses are multiples of where those of a `g` begin and end.
const PLACE_LOG: i32 = 16;

/// Finds what a map's value would have, but for the stack of signal handlers: from the goroutine in
/// its register to the thread's structure, and back from there.
fn find_thread(code: &mut Code, out: &mut Jumps) {
    let at = |code: &mut Code, place: i16, offset: u64| {
        code.push(op::LOAD, 3, FRAME, place, 0);
        code.push(op::ADD, 3, 0, 0, offset as i32);
    };
    let compare = |code: &mut Code, jumps: &mut Jumps, jump: u8, place: i16| {
        code.push(op::LOAD, 1, FRAME, place, 0);
        code.push(op::LOAD, 2, FRAME, place::THREAD, 0);
        code.push(op::SUBTRACT_REGISTER, 1, 2, 0, 0);
        code.jump(jumps, jump, 1, 0, 0);
    };
    // Other programs hardly have such addresses there: reading them costs more than all else here.
    let mut likely = Jumps::default();
    for range in GoThread::places(Arch::native()) {
        code.push(op::LOAD, 1, FRAME, place::HELD, 0);
        code.push(op::SHIFT_RIGHT, 1, 0, 0, PLACE_LOG);
        code.push(op::ADD, 1, 0, 0, -((range.start >> PLACE_LOG) as i32));
        let most = ((range.end - range.start) >> PLACE_LOG) as i32 - 1;
        code.jump(&mut likely, op::JUMP_IF_AT_MOST, 1, 0, most);
    }
    code.jump(out, op::JUMP, 0, 0, 0);
    code.land(likely);
    at(code, place::HELD, g::M);
    code.read(out, place::THREAD, 8);
    code.push(op::LOAD, 3, FRAME, place::THREAD, 0);
    code.read(out, place::SYSTEM, 8);
    at(code, place::SYSTEM, g::STACK_LO);
    code.read(out, place::SYSTEM_LOW, 16);
    at(code, place::SYSTEM, g::M);
    code.read(out, place::G, 8);
    compare(code, out, op::JUMP_UNLESS_NUMBER, place::G);
    for none in [place::SIGNAL_LOW, place::SIGNAL_HIGH, place::SIGNAL_SLOT] {
        code.push(op::STORE_NUMBER, FRAME, 0, none, 0);
    }
    let mut found = Jumps::default();
    for current in GoThread::CURRENT {
        let mut next = Jumps::default();
        at(code, place::THREAD, current);
        code.push(op::STORE, FRAME, 3, place::CURRENT, 0);
        code.read(&mut next, place::GOROUTINE, 8);
        at(code, place::GOROUTINE, g::M);
        code.read(&mut next, place::G, 8);
        compare(code, &mut found, op::JUMP_IF_NUMBER, place::G);
        code.land(next);
    }
    code.jump(out, op::JUMP, 0, 0, 0);
    code.land(found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::part;

    #[test]
    fn the_kernel_accepts_the_program() {
        part::accepted(OtherStacks::new, |sp, stacks, target, next| {
            let registers = GoRegisters::offsets().expect("Go's compiler knows this CPU");
            copier(sp, registers, 60 << 10, stacks, target, next)
        });
    }
}
