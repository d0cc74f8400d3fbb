//! Threads for which a program at the event copies other stacks than the sample's.

use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;

use super::part;
use super::program::{CONTEXT, Code, END, FRAME, Jumps, NEXT, SP, Target, helper, op};
use crate::sys::{BpfMap, MapKind};

/// The place in the frame of what the CPU has.
const VALUE: i16 = -16;
/// The most threads.
const MOST_THREADS: u32 = 4096;

/// What the program knows about each thread, by its number: some words.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    map: Rc<BpfMap>,
    words: i16,
}

impl Threads {
    pub(super) fn new(words: i16) -> io::Result<Threads> {
        let map = BpfMap::new(MapKind::Hash, 4, 8 * words as u32, MOST_THREADS)?;
        Ok(Threads {
            map: Rc::new(map),
            words,
        })
    }

    pub(super) fn add<const WORDS: usize>(&self, tid: u32, words: [u64; WORDS]) -> io::Result<()> {
        let words = words.map(u64::to_ne_bytes);
        self.map.set(&tid.to_ne_bytes(), words.as_flattened())
    }

    pub(super) fn remove(&self, tid: u32) {
        // The thread may have ended.
        let _ = self.map.remove(&tid.to_ne_bytes());
    }
}

impl Code {
    /// Begins a program.
    pub(super) fn begin(&mut self) {
        self.push(op::COPY, CONTEXT, 1, 0, 0);
    }

    /// Leaves the words of these threads in the frame, the first one in `place`. Goes `out` for
    /// others.
    pub(super) fn find_words(&mut self, out: &mut Jumps, threads: &Threads, place: i16) {
        self.call(helper::PID_TGID);
        self.look_up(out, threads.map.as_fd());
        for word in 0..threads.words {
            self.push(op::LOAD, 1, 0, 8 * word, 0);
            self.push(op::STORE, FRAME, 1, place + 8 * word, 0);
        }
    }

    /// Takes what the CPU has, in which records are made.
    pub(super) fn take_buffer(&mut self, out: &mut Jumps, target: Target<'_>) {
        self.call(helper::CPU);
        self.look_up(out, target.buffers);
        self.push(op::STORE, FRAME, 0, VALUE, 0);
    }

    /// Writes a record of these bytes at the address in `place`.
    pub(super) fn copy_structure(&mut self, out: &mut Jumps, calls: &mut Jumps, place: i16, bytes: u64) {
        self.push(op::LOAD, NEXT, FRAME, place, 0);
        self.push(op::COPY, END, NEXT, 0, 0);
        self.push(op::ADD, END, 0, 0, bytes as i32);
        self.copy_part(out, calls);
    }

    /// Writes a record of what lies from [`NEXT`] to [`END`], as much as it holds, and moves
    /// [`NEXT`] to what follows. Goes `out` if nothing is left, or the next page is not present.
    pub(super) fn copy_part(&mut self, out: &mut Jumps, calls: &mut Jumps) {
        self.jump(out, op::JUMP_IF_NOT_BELOW, NEXT, END, 0);
        self.push(op::COPY, 1, CONTEXT, 0, 0);
        self.push(op::LOAD, 2, FRAME, VALUE, 0);
        for (argument, value) in (3..).zip([SP, NEXT, END]) {
            self.push(op::COPY, argument, value, 0, 0);
        }
        self.call_own(calls);
        self.push(op::COPY, 1, 0, 0, 0);
        self.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
        // From memory, it is any number for the verifier, which else follows each.
        self.push(op::LOAD, 2, FRAME, VALUE, 0);
        self.push(op::STORE, 2, 0, part::place::LEN, 0);
        self.push(op::LOAD, NEXT, 2, part::place::LEN, 0);
        self.jump(out, op::JUMP_IF_NUMBER, 1, 0, 0);
    }

    /// Jumps if the address in a register is not between the addresses in these places.
    pub(super) fn outside(&mut self, jumps: &mut Jumps, register: u8, low: i16, high: i16) {
        self.push(op::LOAD, 1, FRAME, low, 0);
        self.jump(jumps, op::JUMP_IF_BELOW, register, 1, 0);
        self.push(op::LOAD, 1, FRAME, high, 0);
        self.jump(jumps, op::JUMP_IF_NOT_BELOW, register, 1, 0);
    }
}
