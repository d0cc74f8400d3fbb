//! The function with which programs copy a part of a stack into a record, and write it.

use std::os::fd::BorrowedFd;

use super::program::{Code, Jumps, PAGE, PAGES, Target, helper, op};
use super::records::DEEP_PART;

/// Bytes before the copied ones: the mark (4), the stack pointer, and the first address (8 each).
const HEAD: i32 = 20;
/// Keeps what follows the mark aligned.
const PAD: i32 = 4;
/// Where the record is, in the value that a program keeps for each CPU.
pub(super) const RECORD: i32 = 256;
/// Bytes of such a value.
pub(super) const VALUE_OF_CPU: u32 = (RECORD + PAD + HEAD + PAGES * PAGE) as u32;

/// Places in the value.
pub(super) mod place {
    /// Records that may still be written; 0 after one that found no room.
    pub(in crate::perf) const LEFT: i16 = 0;
    /// Bytes of the current record.
    pub(in crate::perf) const LEN: i16 = 8;
    /// What follows is the program's own.
    pub(in crate::perf) const OWN: i16 = 16;
}

/// Copies a part into the buffer and writes it: a function of the context, the state, the stack
/// pointer, the first address, and the address at which to end; returns where the part ends.
pub(super) fn part_copier(code: &mut Code, calls: Jumps, target: Target<'_>) {
    const CONTEXT: u8 = 6;
    const STATE: u8 = 7;
    const NEXT: u8 = 8;
    /// `BPF_F_CURRENT_CPU`, as 32 bits.
    const THIS_CPU: i32 = -1;
    let (mut empty, mut fillings) = (Jumps::default(), Jumps::default());
    code.land_calls(calls, false);
    code.push(op::COPY, CONTEXT, 1, 0, 0);
    code.push(op::COPY, STATE, 2, 0, 0);
    code.push(op::STORE_HALF_NUMBER, STATE, 0, RECORD as i16 + 4, DEEP_PART as i32);
    code.push(op::STORE, STATE, 3, RECORD as i16 + 8, 0);
    code.push(op::STORE, STATE, 4, RECORD as i16 + 16, 0);
    code.push(op::STORE_NUMBER, STATE, 0, place::LEN, 0);
    code.push(op::COPY, 1, 4, 0, 0);
    code.push(op::COPY, 2, 5, 0, 0);
    code.call_own(&mut fillings);
    code.push(op::COPY, NEXT, 0, 0, 0);
    code.push(op::LOAD, 5, STATE, place::LEN, 0);
    code.jump(&mut empty, op::JUMP_IF_NUMBER, 5, 0, 0);
    // Never, but the verifier does not see it.
    code.push(op::JUMP_IF_AT_MOST, 5, 0, 1, PAGES * PAGE);
    code.push(op::MOV, 5, 0, 0, PAGES * PAGE);
    code.push(op::ADD, 5, 0, 0, HEAD);
    code.push(op::COPY, 1, CONTEXT, 0, 0);
    code.map(2, target.events);
    code.push(op::MOV_HALF, 3, 0, 0, THIS_CPU);
    code.push(op::COPY, 4, STATE, 0, 0);
    code.push(op::ADD, 4, 0, 0, RECORD + PAD);
    code.call(helper::OUTPUT);
    // The ring is full: the sample will not fit either.
    code.push(op::JUMP_IF_NUMBER, 0, 0, 1, 0);
    code.push(op::STORE_NUMBER, STATE, 0, place::LEFT, 0);
    code.land(empty);
    code.push(op::COPY, 0, NEXT, 0, 0);
    code.push(op::EXIT, 0, 0, 0, 0);
    part_filler(code, fillings, target.buffers);
}

/// Copies a part into this CPU's buffer: a function of the first address, and of the address at
/// which to end; returns where the part ends. That is the first page that is not present, or after
/// 14 to 15 pages: up to the end of the first page, and then as many pages as are present, found by
/// halves, and what the last one has.
fn part_filler(code: &mut Code, calls: Jumps, buffers: BorrowedFd<'_>) {
    const END: u8 = 7;
    const NEXT: u8 = 8;
    const AT: u8 = 9;
    /// Counts of pages: each number up to all but one is a sum of some, taken in this order.
    const STEPS: [i32; 4] = [7, 4, 2, 1];
    const { assert!(STEPS[0] + STEPS[1] + STEPS[2] + STEPS[3] == PAGES - 1) };
    let mut done = Jumps::default();
    code.land_calls(calls, true);
    code.push(op::COPY, NEXT, 1, 0, 0);
    code.push(op::COPY, END, 2, 0, 0);
    code.call(helper::CPU);
    code.look_up(&mut done, buffers);
    code.push(op::COPY, AT, 0, 0, 0);
    let beginning = |code: &mut Code| {
        code.push(op::COPY, 1, AT, 0, 0);
        code.push(op::ADD, 1, 0, 0, RECORD + PAD + HEAD);
    };
    code.push(op::COPY, 1, NEXT, 0, 0);
    code.push(op::AND, 1, 0, 0, PAGE - 1);
    code.push(op::MOV, 2, 0, 0, PAGE);
    code.push(op::SUBTRACT_REGISTER, 2, 1, 0, 0);
    code.push(op::COPY, 1, END, 0, 0);
    code.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
    code.push(op::JUMP_IF_NOT_BELOW, 1, 2, 1, 0);
    code.push(op::COPY, 2, 1, 0, 0);
    // Never, but the verifier does not see it.
    code.push(op::JUMP_IF_AT_MOST, 2, 0, 1, PAGE);
    code.push(op::MOV, 2, 0, 0, PAGE);
    let mut present = Jumps::default();
    code.push(op::STORE, AT, 2, place::LEN, 0);
    beginning(code);
    code.push(op::COPY, 3, NEXT, 0, 0);
    code.call(helper::READ_USER);
    code.jump(&mut present, op::JUMP_IF_NUMBER, 0, 0, 0);
    code.push(op::STORE_NUMBER, AT, 0, place::LEN, 0);
    code.jump(&mut done, op::JUMP, 0, 0, 0);
    code.land(present);
    code.push(op::LOAD, 1, AT, place::LEN, 0);
    code.push(op::ADD_REGISTER, NEXT, 1, 0, 0);
    let mut most = PAGE;
    for bytes in STEPS.map(|pages| pages * PAGE) {
        let mut next = Jumps::default();
        code.push(op::COPY, 1, END, 0, 0);
        code.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
        code.jump(&mut next, op::JUMP_IF_AT_MOST, 1, 0, bytes - 1);
        code.push(op::LOAD, 4, AT, place::LEN, 0);
        // Likewise.
        code.push(op::JUMP_IF_AT_MOST, 4, 0, 1, most);
        code.jump(&mut done, op::JUMP, 0, 0, 0);
        beginning(code);
        code.push(op::ADD_REGISTER, 1, 4, 0, 0);
        code.push(op::MOV, 2, 0, 0, bytes);
        code.push(op::COPY, 3, NEXT, 0, 0);
        code.call(helper::READ_USER);
        code.jump(&mut next, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
        code.push(op::LOAD, 1, AT, place::LEN, 0);
        code.push(op::ADD, 1, 0, 0, bytes);
        code.push(op::STORE, AT, 1, place::LEN, 0);
        code.push(op::ADD, NEXT, 0, 0, bytes);
        code.land(next);
        most += bytes;
    }
    // Of the last page: there is a hole, or no room, if more is left.
    code.push(op::COPY, 2, END, 0, 0);
    code.push(op::SUBTRACT_REGISTER, 2, NEXT, 0, 0);
    code.jump(&mut done, op::JUMP_IF_NUMBER, 2, 0, 0);
    code.push(op::JUMP_IF_AT_MOST, 2, 0, 1, PAGE - 1);
    code.jump(&mut done, op::JUMP, 0, 0, 0);
    code.push(op::LOAD, 4, AT, place::LEN, 0);
    code.push(op::JUMP_IF_AT_MOST, 4, 0, 1, (PAGES - 1) * PAGE);
    code.jump(&mut done, op::JUMP, 0, 0, 0);
    beginning(code);
    code.push(op::ADD_REGISTER, 1, 4, 0, 0);
    code.push(op::COPY, 3, NEXT, 0, 0);
    code.call(helper::READ_USER);
    code.jump(&mut done, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
    code.push(op::COPY, 1, END, 0, 0);
    code.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
    code.push(op::LOAD, 2, AT, place::LEN, 0);
    code.push(op::ADD_REGISTER, 2, 1, 0, 0);
    code.push(op::STORE, AT, 2, place::LEN, 0);
    code.push(op::COPY, NEXT, END, 0, 0);
    code.land(done);
    code.push(op::COPY, 0, NEXT, 0, 0);
    code.push(op::EXIT, 0, 0, 0, 0);
}

/// Whether the kernel accepts a program that copies parts, for whatever it needs.
#[cfg(test)]
pub(super) fn accepted<S>(
    needs: impl FnOnce() -> std::io::Result<S>,
    copier: impl FnOnce(i16, &S, Target<'_>, (BorrowedFd<'_>, u32)) -> Code,
) {
    use std::os::fd::AsFd as _;

    use crate::sys::{BpfMap, MapKind};

    let (Some(sp), Ok(needs)) = (super::program::sp_offset(), needs()) else {
        println!("SKIPPED: no programs may be loaded here");
        return;
    };
    let map = |kind, value| BpfMap::new(kind, 4, value, 8).expect("another could be created");
    let (programs, events) = (map(MapKind::Programs, 4), map(MapKind::Events, 4));
    let buffers = map(MapKind::Array, VALUE_OF_CPU);
    let target = Target {
        buffers: buffers.as_fd(),
        events: events.as_fd(),
    };
    let code = copier(sp, &needs, target, (programs.as_fd(), 0));
    code.load().expect("maps could be created");
}
