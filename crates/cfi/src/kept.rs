//! The registers that instructions write.

use std::collections::HashSet;

use backtrail_arch::{Arch, Cpu};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};

use crate::prologue::Code;

/// Instructions of the longest function that is checked for the registers it preserves.
const LONGEST_HELPER: usize = 1 << 13;

/// Whether the function at `entry` leaves `register` alone on every path, reaches `pc` on one of
/// them, and calls nothing: hand-written code has helpers of its own that preserve more than the
/// calling convention requires.
pub fn keeps(arch: &Arch, code: &Code<'_>, entry: u64, pc: u64, register: backtrail_arch::Register) -> bool {
    if arch.cpu != Cpu::X86_64 || register.0 > 15 {
        return false;
    }
    let mut info = InstructionInfoFactory::new();
    let (mut ways, mut seen, mut meets) = (vec![entry], HashSet::new(), false);
    while let Some(mut at) = ways.pop() {
        while seen.insert(at) {
            let Some(instruction) = code.instruction(at).filter(|_| seen.len() < LONGEST_HELPER) else {
                return false;
            };
            meets |= at == pc;
            if written(&mut info, &instruction) & 1 << register.0 != 0 {
                return false;
            }
            at = match instruction.flow_control() {
                FlowControl::Next => instruction.next_ip(),
                FlowControl::Return => break,
                FlowControl::UnconditionalBranch => instruction.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    ways.push(instruction.near_branch_target());
                    instruction.next_ip()
                }
                _ => return false,
            };
        }
    }
    meets
}

/// The general registers of which the instruction may write any part, whether as operands or
/// implicitly: a bit for each DWARF number.
pub(crate) fn written(info: &mut InstructionInfoFactory, instruction: &Instruction) -> u16 {
    let used = info.info(instruction).used_registers().iter();
    used.filter(|used| {
        !matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        )
    })
    .filter_map(|used| dwarf_number(used.register()))
    .fold(0, |all, number| all | 1 << number)
}

/// The DWARF number of a general register or a part of one.
pub(crate) fn dwarf_number(register: Register) -> Option<u8> {
    const BY_ENCODING: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    let whole = register.full_register();
    let encoding = (whole as usize).checked_sub(Register::RAX as usize)?;
    BY_ENCODING.get(encoding).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;

    fn plain(bytes: &[u8]) -> Code<'_> {
        Code {
            bytes,
            start: START,
            functions: &[],
        }
    }

    #[test]
    fn helpers_keep_what_they_do_not_write() {
        let keeps = |code: &[u8], register, pc| {
            let register = backtrail_arch::Register(register);
            keeps(&ARCH, &plain(code), START, START + pc, register)
        };
        let (rax, rbx, r12) = (0, 3, 12);
        // vpxor xmm0, xmm0, xmm0; movbe r13, [r14+8]; lea r14, [r14+0x60]; mov [rsp+8], r13; setae
        // r12b; rep ret
        let helper = [
            0xc5, 0xf9, 0xef, 0xc0, 0x4d, 0x0f, 0x38, 0xf0, 0x6e, 0x08, 0x4d, 0x8d, 0x76, 0x60, 0x4c, 0x89, 0x6c, 0x24,
            0x08, 0x41, 0x0f, 0x93, 0xc4, 0xf3, 0xc3, 0x31, 0xc0,
        ];
        assert!(keeps(&helper, rax, 0) && keeps(&helper, rbx, 23));
        assert!(!keeps(&helper, rax, 25), "after the return");
        assert!(!keeps(&helper, rax, 3) && !keeps(&helper, r12, 0));
        assert!(!keeps(&helper, 13, 0) && !keeps(&helper, 14, 0));
        // xor eax, eax; mov bl, 1; mov ah, 1
        assert!(!keeps(&[0x31, 0xc0, 0xc3], rax, 0) && keeps(&[0x31, 0xc0, 0xc3], rbx, 0));
        assert!(!keeps(&[0xb3, 0x01, 0xc3], rbx, 0) && !keeps(&[0xb4, 0x01, 0xc3], rax, 0));
        // mul ecx writes rax and rdx, which are not operands.
        assert!(!keeps(&[0xf7, 0xe1, 0xc3], rax, 0) && !keeps(&[0xf7, 0xe1, 0xc3], 1, 0));
        assert!(keeps(&[0xf7, 0xe1, 0xc3], rbx, 0));
        // je over `xor ebx, ebx`: one path writes it.
        assert!(!keeps(&[0x74, 0x02, 0x31, 0xdb, 0xc3], rbx, 0));
        // A call, a jump out of the code, jmp rax, no code, half an instruction.
        for code in [
            &[0xe8, 0, 0, 0, 0, 0xc3][..],
            &[0xeb, 0x7f],
            &[0xff, 0xe0],
            &[],
            &[0x48],
        ] {
            assert!(!keeps(code, rbx, 0), "{code:x?}");
        }
    }
}
