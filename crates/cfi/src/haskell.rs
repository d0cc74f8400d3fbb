//! Code of GHC, on the stack of the C function that runs it; x86-64 only.
//!
//! Compiled Haskell keeps its own stack, of continuations, in the heap, and never moves the
//! machine's stack pointer except around calls of C. `StgRun` of the run-time system makes one
//! frame, of a fixed size, and jumps into such code, which ends in a jump to the code after it. So
//! the caller of all Haskell code, wherever it is, is the caller of `StgRun`.
//!
//! The frame's size is read from the instructions that remove it. What is found with it is accepted
//! only if the call before the return address leads to `StgRun`.

use std::hash::Hash;
use std::ops::Range;

use backtrail_arch::Cpu;
use backtrail_sframe::{Location, Rule};
use rustc_hash::FxHashMap;

use crate::process_code::ProcessCode;

/// `StgRun` makes room for callee-saved registers, and then for C code that Haskell calls:
/// `sub rsp, 0x30; mov rax, rsp; sub rsp, imm32`.
const ENTERS: [u8; 10] = [0x48, 0x83, 0xec, 0x30, 0x48, 0x89, 0xe0, 0x48, 0x81, 0xec];
/// What follows `add rsp, imm32` where it ends: `rbx`, `rbp` and `r12` to `r15` are loaded;
/// `add rsp, 0x30; ret`.
const LEAVES: [u8; 34] = [
    0x48, 0x8b, 0x1c, 0x24, 0x48, 0x8b, 0x6c, 0x24, 0x08, 0x4c, 0x8b, 0x64, 0x24, 0x10, 0x4c, 0x8b, 0x6c, 0x24, 0x18,
    0x4c, 0x8b, 0x74, 0x24, 0x20, 0x4c, 0x8b, 0x7c, 0x24, 0x28, 0x48, 0x83, 0xc4, 0x30, 0xc3,
];
const ADD_RSP: [u8; 3] = [0x48, 0x81, 0xc4];
/// Bytes of the callee-saved registers.
const SAVED: i32 = 0x30;
/// The slot of `rbp`, from the CFA.
const SAVED_RBP: i32 = -0x30;
const RSP: u8 = 7;
/// Sizes of the room for C code that are believed.
const ROOM: std::ops::Range<i32> = 0x800..0x10_0000;
/// Bytes of the largest mapping that is searched.
const LARGEST: u64 = 1 << 28;
/// Bytes that are read at a time: they are searched while they are in the CPU's cache.
const CHUNK: u64 = 64 << 10;
/// Mappings that are remembered; beyond this number all are forgotten.
const MOST_MAPPINGS: usize = 1 << 12;

/// The mappings with Haskell code that are known, by where they begin.
#[derive(Debug)]
pub(crate) struct Haskell<P> {
    rooms: FxHashMap<P, Option<i32>>,
}

impl<P> Default for Haskell<P> {
    fn default() -> Self {
        Haskell {
            rooms: FxHashMap::default(),
        }
    }
}

impl<P: Copy + Eq + Hash> Haskell<P> {
    /// How to leave the code at `pc`, which has no call frame information, in this mapping, if that
    /// is Haskell code.
    pub(crate) fn frame<C: ProcessCode<Place = P>>(
        &mut self,
        process: &C,
        mapping: C::Mapping,
        (pc, is_return): (u64, bool),
    ) -> Option<Rule> {
        // GHC's programs have call frame information for their parts in C.
        if process.arch().cpu != Cpu::X86_64 || !process.is_file(mapping) || !process.has_call_frames(mapping) {
            return None;
        }
        let range = process.range(mapping);
        let place = process.place(mapping, range.start);
        if self.rooms.len() >= MOST_MAPPINGS && !self.rooms.contains_key(&place) {
            self.rooms.clear();
        }
        let room = (*self.rooms.entry(place).or_insert_with(|| room_for_c(process, range)))?;
        let room = room + if is_return { passed(process, pc) } else { 0 };
        Some(Rule {
            fp: Some(Location::saved(SAVED_RBP)),
            ..Rule::new(Location::register(RSP, room + SAVED + 8), Location::saved(-8))
        })
    }
}

/// Bytes of alignment, and of arguments, that the call of a C function before `pc` has put on the
/// stack: `add rsp, imm8` removes them.
fn passed(process: &impl ProcessCode, pc: u64) -> i32 {
    let mut code = [0; 4];
    match (process.read(pc, &mut code), code) {
        (4, [0x48, 0x83, 0xc4, bytes @ 0..0x80]) => bytes.into(),
        _ => 0,
    }
}

/// Whether a call of `target` is one of `StgRun`.
pub(crate) fn is_run(process: &impl ProcessCode, target: u64) -> bool {
    let mut code = [0; ENTERS.len()];
    process.arch().cpu == Cpu::X86_64 && process.read(target, &mut code) == code.len() && code == ENTERS
}

/// The room that `StgRun` makes for C code, if it is in this range.
fn room_for_c(process: &impl ProcessCode, range: Range<u64>) -> Option<i32> {
    const BEFORE: usize = ADD_RSP.len() + 4;
    const OVERLAP: u64 = (BEFORE + LEAVES.len()) as u64;
    if range.end.saturating_sub(range.start) > LARGEST {
        return None;
    }
    let mut bytes = vec![0; CHUNK.min(range.end.saturating_sub(range.start)) as usize];
    let finder = memchr::memmem::Finder::new(&LEAVES);
    let mut start = range.start;
    while start < range.end {
        let len = (range.end - start).min(CHUNK) as usize;
        let read = process.read(start, bytes.get_mut(..len)?);
        let read = bytes.get(..read)?;
        let found = finder.find_iter(read).find_map(|at| {
            let before = read.get(at.checked_sub(BEFORE)?..at)?;
            let room = before.strip_prefix(&ADD_RSP)?.first_chunk::<4>()?;
            Some(i32::from_le_bytes(*room)).filter(|room| ROOM.contains(room))
        });
        if found.is_some() {
            return found;
        }
        if read.len() < len || len as u64 <= OVERLAP {
            return None;
        }
        start += len as u64 - if start + (len as u64) < range.end { OVERLAP } else { 0 };
    }
    None
}
