//! What the instructions of compiled AArch64 code do to its frame.

use super::{Compiled, Frame, Instructions, RECORD_BYTES, Step};
use crate::a64::{self, SP, addition, is, writeback};

const INSTRUCTION: usize = 4;

/// The frame at a method's entry: the return address is in its register.
pub(super) const AT_ENTRY: Frame = Frame {
    bytes: Some(0),
    is_linked: false,
    copy: None,
};

/// The instructions of compiled code.
pub(super) struct Words<'c> {
    compiled: Compiled<'c>,
    next: usize,
}

impl<'c> Words<'c> {
    pub(super) fn new(compiled: Compiled<'c>) -> Self {
        Words { compiled, next: 0 }
    }
}

impl Instructions for Words<'_> {
    fn at(&self) -> u64 {
        self.compiled.start.wrapping_add(self.next as u64)
    }

    fn step(&mut self, frame: &mut Frame, is_complete: bool) -> Option<Step> {
        let (at, bytes) = (self.at(), self.compiled.code.get(self.next..)?);
        let word = u32::from_le_bytes(*bytes.first_chunk()?);
        self.next += INSTRUCTION;
        take(word, frame, i64::from(self.compiled.frame_bytes), is_complete);
        let by = |distance: i64| at.wrapping_add_signed(distance.wrapping_mul(INSTRUCTION as i64));
        let ends = a64::is_return(word) || a64::is_jump(word) || a64::is_jump_to_register(word);
        Some(Step {
            jump: a64::branch(word).map(by),
            goes_on: !ends,
        })
    }
}

fn take(word: u32, frame: &mut Frame, whole: i64, is_complete: bool) {
    if let Some(add) = addition(word) {
        let from = match add.from {
            SP => frame.bytes,
            from => frame.copy.filter(|(copy, _)| *copy == from).map(|(_, bytes)| bytes),
        };
        let bytes = from.and_then(|bytes| bytes.checked_sub(add.bytes));
        match add.to {
            SP => frame.bytes = bytes,
            to if add.from == SP => frame.copy = bytes.map(|bytes| (to, bytes)).or(frame.copy),
            _ => {}
        }
        return;
    }
    match record(word) {
        Some(Access { at, moves, is_load }) => {
            let address = frame.bytes.and_then(|bytes| bytes.checked_sub(at));
            frame.is_linked = match address {
                Some(RECORD_BYTES) => !is_load,
                _ => frame.is_linked,
            };
            frame.bytes = frame.bytes.and_then(|bytes| bytes.checked_sub(moves));
        }
        None if let Some((SP, moves)) = writeback(word) => {
            frame.bytes = frame.bytes.and_then(|bytes| bytes.checked_sub(moves));
        }
        None if is(word, SUBTRACTS) || is(word, ADDS) => {
            // The size is in a register, because it is a large number.
            frame.bytes = match (frame.bytes, is(word, ADDS)) {
                (Some(RECORD_BYTES), false) if !is_complete && frame.is_linked => Some(whole),
                (Some(bytes), true) if bytes == whole => Some(RECORD_BYTES),
                _ => None,
            };
        }
        None if a64::may_set_sp(word) => frame.bytes = None,
        None => {}
    }
}

/// `sub sp, sp, xN` and `add sp, sp, xN`.
const SUBTRACTS: (u32, u32) = (0xffe0_ffff, 0xcb20_63ff);
const ADDS: (u32, u32) = (0xffe0_ffff, 0x8b20_63ff);

/// An access to a frame record by the stack pointer.
struct Access {
    /// From the stack pointer to the record, in bytes.
    at: i64,
    /// By how many bytes the stack pointer is moved.
    moves: i64,
    is_load: bool,
}

/// `stp` and `ldp` of x29 and x30 by the stack pointer.
fn record(word: u32) -> Option<Access> {
    const OFFSET: u32 = 0b10;
    const BEFORE: u32 = 0b11;
    const AFTER: u32 = 0b01;
    if !is(word, (0xfe00_7fff, 0xa800_7bfd)) {
        return None;
    }
    let bytes = a64::signed(word, 15, 7) << 3;
    let (at, moves) = match word >> 23 & 0b11 {
        OFFSET => (bytes, 0),
        BEFORE => (bytes, bytes),
        AFTER => (0, bytes),
        _ => return None,
    };
    Some(Access {
        at,
        moves,
        is_load: word >> 22 & 1 == 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::aarch64::ARCH;
    use backtrail_sframe::Base;

    const START: u64 = 0x1000;
    const NOP: u32 = a64::NOP;
    const RET: u32 = 0xd65f_03c0;
    const CALL: u32 = 0x9400_0010;
    /// stp x29, x30, [sp, #-16]!
    const PUSH: u32 = 0xa9bf_7bfd;

    /// Bytes from the stack pointer to the CFA, and whether the frame record is saved.
    fn found(words: &[u32], frame_bytes: u32, complete: u64, at: u64, is_return: bool) -> Option<(i32, bool)> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let compiled = Compiled {
            code: &code,
            start: START,
            frame_bytes,
            complete: START + 4 * complete,
            second_entry: None,
        };
        let rule = compiled.rule(&ARCH, START + 4 * at, is_return)?;
        assert_eq!(rule.cfa.base, Base::Register(ARCH.sp.0));
        assert_eq!(rule.fp.is_some(), rule.ra.deref);
        Some((rule.cfa.offset, rule.fp.is_some()))
    }

    #[test]
    fn every_instruction_of_a_compiled_method() {
        // nop; sub x9, sp, #0x10, lsl #12; str xzr, [x9]; sub sp, sp, #0x30;
        // stp x29, x30, [sp, #32]; bl; ldp x29, x30, [sp, #32]; add sp, sp, #0x30;
        // ldr x8, [x28, #1096]; cmp sp, x8; b.hi to the poll; ret; bl; the poll: adr x8; str; b
        let code = [
            NOP,
            0xd140_43e9,
            0xf900_013f,
            0xd100_c3ff,
            0xa902_7bfd,
            CALL,
            0xa942_7bfd,
            0x9100_c3ff,
            0xf942_2788,
            0xeb28_63ff,
            0x5400_0068,
            RET,
            CALL,
            0x10ff_ff88,
            0xf902_2b88,
            0x1400_0100,
        ];
        let states = [
            [(0, false); 4].as_slice(),
            &[(48, false), (48, true), (48, true), (48, false)],
            &[(0, false); 4],
            &[(48, true)],
            &[(0, false); 3],
        ]
        .concat();
        for (at, wanted) in (0..).zip(states) {
            assert_eq!(found(&code, 48, 5, at, false), Some(wanted), "{at}");
        }
        assert_eq!(found(&code, 48, 5, 6, true), Some((48, true)));
        assert_eq!(found(&code, 48, 5, 8, true), None, "no call keeps its register");
        assert_eq!(found(&code, 64, 5, 6, false), None, "another size");
        assert_eq!(found(&code, 48, 4, 6, false), None, "too early");
        assert_eq!(found(&code, 48, 5, 16, false), None, "the end");
        // A jump in place of the first instruction: the method must not be entered any more.
        let replaced = [&[0x1400_1000], &code[1..]].concat();
        assert_eq!(found(&replaced, 48, 5, 6, false), Some((48, true)));
    }

    #[test]
    fn large_frames() {
        // push; mov x8, #0x1010; sub sp, sp, x8; bl; mov x8, #0x1010; add sp, sp, x8;
        // ldp x29, x30, [sp], #16; ret
        let code = [
            PUSH,
            0xd282_0208,
            0xcb28_63ff,
            CALL,
            0xd282_0208,
            0x8b28_63ff,
            0xa8c1_7bfd,
            RET,
        ];
        let states = [
            (0, false),
            (16, true),
            (16, true),
            (0x1020, true),
            (0x1020, true),
            (0x1020, true),
            (16, true),
            (0, false),
        ];
        for (at, wanted) in (0..).zip(states) {
            assert_eq!(found(&code, 0x1020, 3, at, false), Some(wanted), "{at}");
        }
    }

    #[test]
    fn what_is_pushed_and_what_is_aligned() {
        // push; stp x0, x1, [sp, #-32]!; ldp x0, x1, [sp], #32; and sp, x9, #-16; nop
        let code = [PUSH, NOP, 0xa9be_07e0, 0xa8c2_07e0, 0x927c_ed3f, NOP];
        assert_eq!(found(&code, 16, 1, 3, false), Some((48, true)));
        assert_eq!(found(&code, 16, 1, 4, false), Some((16, true)));
        assert_eq!(found(&code, 16, 1, 5, false), None);
        // mov x20, sp; and sp, x9, #-16; mov sp, x20; nop
        let code = [PUSH, 0x9100_03f4, 0x927c_ed3f, 0x9100_029f, NOP];
        assert_eq!(found(&code, 16, 1, 3, false), None);
        assert_eq!(found(&code, 16, 1, 4, false), Some((16, true)));
    }
}
