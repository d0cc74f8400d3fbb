//! What the instructions of compiled x86-64 code do to its frame.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{Compiled, Frame, Instructions, RECORD_BYTES, Step};
use crate::prologue::immediate;

/// Bytes of the return address, which the call has pushed.
const RA_BYTES: i64 = 8;
/// Bytes of an entry's first instruction, if a jump may have replaced it.
const ENTRY_BYTES: usize = 7;

/// The frame at a method's entry.
pub(super) const AT_ENTRY: Frame = Frame {
    bytes: Some(RA_BYTES),
    is_linked: false,
    copy: None,
};

/// The instructions of compiled code.
pub(super) struct Decoded<'c> {
    compiled: Compiled<'c>,
    decoder: Decoder<'c>,
    instruction: Instruction,
}

impl<'c> Decoded<'c> {
    pub(super) fn new(compiled: Compiled<'c>) -> Self {
        Decoded {
            compiled,
            decoder: Decoder::with_ip(64, compiled.code, compiled.start, DecoderOptions::NONE),
            instruction: Instruction::default(),
        }
    }

    /// The frame after the first instruction of a method that must not be entered any more: a jump
    /// has replaced five of its seven bytes.
    fn patched_entry(&self, frame: Frame) -> Option<Frame> {
        const JUMP_BYTES: usize = 5;
        let instruction = &self.instruction;
        let is_jump = instruction.flow_control() == FlowControl::UnconditionalBranch && instruction.len() == JUMP_BYTES;
        let at = instruction.ip().checked_sub(self.compiled.start).filter(|_| is_jump)? as usize;
        match self.compiled.code.get(at + JUMP_BYTES..at + ENTRY_BYTES)? {
            // The rest of `mov [rsp-0x14000], eax`, which touches the pages below the stack.
            [0xfe, 0xff] => Some(frame),
            // The rest of `sub rsp, SIZE`.
            [0, 0] => Some(Frame {
                bytes: Some(self.compiled.frame_bytes.into()),
                ..frame
            }),
            _ => None,
        }
    }
}

impl Instructions for Decoded<'_> {
    fn at(&self) -> u64 {
        self.decoder.ip()
    }

    fn step(&mut self, frame: &mut Frame, is_complete: bool) -> Option<Step> {
        let at = self.decoder.ip();
        if !self.decoder.can_decode() {
            return None;
        }
        self.decoder.decode_out(&mut self.instruction);
        if self.instruction.is_invalid() {
            return None;
        }
        if !is_complete && let Some(patched) = self.patched_entry(*frame) {
            *frame = patched;
            let position = (at - self.compiled.start) as usize + ENTRY_BYTES;
            self.decoder.set_position(position).ok()?;
            self.decoder.set_ip(at.wrapping_add(ENTRY_BYTES as u64));
            return Some(Step {
                jump: None,
                goes_on: true,
            });
        }
        take(&self.instruction, frame);
        let flow = self.instruction.flow_control();
        let is_jump = matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        let goes_on = matches!(
            flow,
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call | FlowControl::IndirectCall
        ) && self.instruction.mnemonic() != Mnemonic::Hlt;
        Some(Step {
            jump: is_jump.then(|| self.instruction.near_branch_target()),
            goes_on,
        })
    }
}

fn take(instruction: &Instruction, frame: &mut Frame) {
    let register = |operand: u32| match instruction.op_count() > operand {
        true if instruction.op_kind(operand) == OpKind::Register => instruction.op_register(operand).full_register(),
        _ => Register::None,
    };
    let (first, second) = (register(0), register(1));
    let is_saved_slot = |operand: u32, frame: &Frame| {
        instruction.op_kind(operand) == OpKind::Memory
            && instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && frame.bytes.is_some_and(|bytes| {
                bytes.wrapping_sub(instruction.memory_displacement64().cast_signed()) == RECORD_BYTES
            })
    };
    let moved = |frame: &Frame, sign: i64| frame.bytes?.checked_add(sign.wrapping_mul(immediate(instruction)?));
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => {
            frame.bytes = frame.bytes.and_then(|bytes| bytes.checked_add(8));
            frame.is_linked |= first == Register::RBP && frame.bytes == Some(RECORD_BYTES);
        }
        Mnemonic::Pop | Mnemonic::Popfq => {
            frame.is_linked &= !(first == Register::RBP && frame.bytes == Some(RECORD_BYTES));
            frame.bytes = frame
                .bytes
                .filter(|_| first != Register::RSP)
                .map(|bytes| bytes.wrapping_sub(8));
        }
        Mnemonic::Leave => {
            *frame = Frame {
                bytes: Some(RA_BYTES),
                is_linked: false,
                copy: None,
            };
        }
        Mnemonic::Sub if first == Register::RSP => frame.bytes = moved(frame, 1),
        Mnemonic::Add if first == Register::RSP => frame.bytes = moved(frame, -1),
        Mnemonic::Mov if first == Register::RSP => {
            frame.bytes = frame
                .copy
                .filter(|(copy, _)| *copy == second as u32)
                .map(|(_, bytes)| bytes);
        }
        Mnemonic::Mov if second == Register::RSP && first != Register::None => {
            frame.copy = frame.bytes.map(|bytes| (first as u32, bytes)).or(frame.copy);
        }
        Mnemonic::Mov if second == Register::RBP && is_saved_slot(0, frame) => frame.is_linked = true,
        Mnemonic::Mov if first == Register::RBP && is_saved_slot(1, frame) => frame.is_linked = false,
        // A call of the next instruction pushes its address.
        Mnemonic::Call
            if instruction.op0_kind() == OpKind::NearBranch64
                && instruction.near_branch_target() == instruction.next_ip() =>
        {
            frame.bytes = frame.bytes.and_then(|bytes| bytes.checked_add(8));
        }
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Call => {}
        _ => {
            let exchanges = matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd);
            if first == Register::RSP || exchanges && second == Register::RSP {
                frame.bytes = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;

    fn compiled(code: &[u8], frame_bytes: u32, complete: u64) -> Compiled<'_> {
        Compiled {
            code,
            start: START,
            frame_bytes,
            complete: START + complete,
            second_entry: None,
        }
    }

    /// Bytes from the stack pointer to the CFA, and whether the frame pointer is saved.
    fn found(compiled: &Compiled<'_>, at: u64, is_return: bool) -> Option<(i32, bool)> {
        let rule = compiled.rule(&ARCH, START + at, is_return)?;
        Some((rule.cfa.offset, rule.fp.is_some()))
    }

    /// mov [rsp-0x14000], eax; push rbp; sub rsp, 0x20; jmp +0; call rax; add rsp, 0x20; pop rbp;
    /// cmp rsp, [r15+8]; ja to the poll; ret; call next; sub qword [rsp], 5; jmp;
    /// the poll: lea r10, [rip]; jmp
    const CODE: &[u8] = &[
        0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, 0x55, 0x48, 0x83, 0xec, 0x20, 0xeb, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4,
        0x20, 0x5d, 0x49, 0x3b, 0x67, 0x08, 0x77, 16, 0xc3, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0x2c, 0x24, 0x05, 0xe9, 0, 1,
        0, 0, 0x4c, 0x8d, 0x15, 0, 0, 0, 0, 0xe9, 0, 1, 0, 0,
    ];

    #[test]
    fn every_instruction_of_a_compiled_method() {
        let code = compiled(CODE, 48, 12);
        for (at, wanted) in [
            (0, (8, false)),
            (7, (8, false)),
            (8, (16, true)),
            (12, (48, true)),
            (16, (48, true)),
            (20, (16, true)),
            (21, (8, false)),
            (27, (8, false)),
            (28, (48, true)),
            (33, (56, true)),
            (43, (8, false)),
            (50, (8, false)),
        ] {
            assert_eq!(found(&code, at, false), Some(wanted), "{at}");
        }
        assert_eq!(
            found(&code, 28, true),
            Some((48, true)),
            "a return address that was replaced"
        );
        assert_eq!(found(&code, 9, false), None, "no instruction begins there");
    }

    #[test]
    fn an_entry_that_was_replaced() {
        let mut replaced = CODE.to_vec();
        replaced[..5].copy_from_slice(&[0xe9, 0, 1, 0, 0]);
        assert_eq!(found(&compiled(&replaced, 48, 12), 14, false), Some((48, true)));
        // jmp, over sub rsp, 0x18; mov [rsp+0x10], rbp; nop
        let code = [0xe9, 0, 1, 0, 0, 0, 0, 0x48, 0x89, 0x6c, 0x24, 0x10, 0x90];
        assert_eq!(found(&compiled(&code, 32, 12), 12, false), Some((32, true)));
        assert_eq!(found(&compiled(&code, 40, 12), 12, false), None, "another slot");
    }

    #[test]
    fn what_does_not_fit_is_not_said() {
        assert_eq!(found(&compiled(CODE, 56, 12), 14, false), None, "another size");
        assert_eq!(
            found(&compiled(CODE, 48, 11), 14, false),
            None,
            "no instruction begins there"
        );
        assert_eq!(found(&compiled(CODE, 48, 8), 14, false), None, "too early");
        assert_eq!(found(&compiled(CODE, 48, 12), 55, false), None, "the end");
        assert_eq!(found(&compiled(CODE, 48, 12), 56, false), None, "past the end");
    }

    #[test]
    fn a_second_entry_makes_a_frame_of_its_own() {
        // push rbp; sub rsp, 0x10; nop; ret; push rbp; sub rsp, 0x10; nop
        let code = [
            0x55, 0x48, 0x83, 0xec, 0x10, 0x90, 0xc3, 0x55, 0x48, 0x83, 0xec, 0x10, 0x90,
        ];
        let once = compiled(&code, 32, 5);
        let twice = Compiled {
            second_entry: Some(START + 7),
            ..once
        };
        assert_eq!(found(&twice, 7, false), Some((8, false)));
        assert_eq!(found(&twice, 8, false), Some((16, true)));
        assert_eq!(found(&twice, 12, false), Some((32, true)));
        assert_eq!(found(&once, 12, false), Some((56, true)));
    }

    #[test]
    fn a_stack_pointer_that_was_aligned_comes_back() {
        // sub rsp, 0x18; mov [rsp+8], rbp; mov r12, rsp; and rsp, -16; call rax; mov rsp, r12; nop
        let code = [
            0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x6c, 0x24, 0x10, 0x49, 0x89, 0xe4, 0x48, 0x83, 0xe4, 0xf0, 0xff, 0xd0,
            0x4c, 0x89, 0xe4, 0x90,
        ];
        let code = compiled(&code, 32, 9);
        assert_eq!(found(&code, 4, false), Some((32, false)));
        assert_eq!(found(&code, 12, false), Some((32, true)));
        assert_eq!(found(&code, 18, false), None);
        assert_eq!(found(&code, 21, false), Some((32, true)));
    }
}
