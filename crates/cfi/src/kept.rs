//! The registers that instructions write.

use std::collections::HashSet;

use backtrail_arch::{Arch, Cpu};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};

use crate::a64;
use crate::linked::may_change;
use crate::prologue::Code;

/// Instructions of the longest function that is checked for the registers it preserves.
const LONGEST_HELPER: usize = 1 << 13;

/// Whether the function at `entry` leaves `register` alone on every path, reaches `pc` on one of
/// them, and calls nothing: hand-written code has helpers of its own that preserve more than the
/// calling convention requires.
pub fn keeps(arch: &Arch, code: &Code<'_>, entry: u64, pc: u64, register: backtrail_arch::Register) -> bool {
    let mut info = InstructionInfoFactory::new();
    let mut step = |at: u64| match arch.cpu {
        Cpu::X86_64 if register.0 < 16 => step(code, at, register.0, &mut info),
        Cpu::Aarch64 if register.0 < 31 => step_on_aarch64(code, at, register.0),
        _ => None,
    };
    let (mut ways, mut seen, mut meets) = (vec![entry], HashSet::new(), false);
    while let Some(at) = ways.pop() {
        if !seen.insert(at) {
            continue;
        }
        let Some(next) = step(at).filter(|_| seen.len() < LONGEST_HELPER) else {
            return false;
        };
        meets |= at == pc;
        ways.extend(next.into_iter().flatten());
    }
    meets
}

/// Where an instruction leads: to none after a return. `None` if it may write the register, calls,
/// or leads to an unknown place.
fn step(code: &Code<'_>, at: u64, register: u8, info: &mut InstructionInfoFactory) -> Option<[Option<u64>; 2]> {
    let instruction = code.instruction(at)?;
    if written(info, &instruction) & 1 << register != 0 {
        return None;
    }
    match instruction.flow_control() {
        FlowControl::Next => Some([Some(instruction.next_ip()), None]),
        FlowControl::Return => Some([None, None]),
        FlowControl::UnconditionalBranch => Some([Some(instruction.near_branch_target()), None]),
        FlowControl::ConditionalBranch => Some([Some(instruction.next_ip()), Some(instruction.near_branch_target())]),
        _ => None,
    }
}

/// The same on AArch64.
fn step_on_aarch64(code: &Code<'_>, at: u64, register: u8) -> Option<[Option<u64>; 2]> {
    let offset = usize::try_from(at.checked_sub(code.start)?).ok()?;
    let word = u32::from_le_bytes(*code.bytes.get(offset..)?.first_chunk()?);
    if a64::is_return(word) {
        return Some([None, None]);
    }
    if a64::is_call(word) || a64::is_jump_to_register(word) || may_change(word, register) {
        return None;
    }
    let target = a64::branch(word).map(|words| at.wrapping_add_signed(4 * words));
    Some([Some(at + 4).filter(|_| !a64::is_jump(word)), target])
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
    fn functions_of_aarch64_keep_what_they_do_not_write() {
        use backtrail_arch::aarch64::ARCH;
        let keeps = |words: &[u32], register: u8, at: u64| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let register = backtrail_arch::Register(register);
            keeps(&ARCH, &plain(&bytes), START, START + 4 * at, register)
        };
        // cbz x0, over the next; add x1, x1, #1; stp x0, x1, [x20]; ret; nop
        let code = [0xb400_0040, 0x9100_0421, 0xa900_0680, 0xd65f_03c0, 0xd503_201f];
        assert!(keeps(&code, 20, 0) && keeps(&code, 20, 2) && keeps(&code, 0, 3));
        assert!(!keeps(&code, 1, 0), "one path writes it");
        assert!(!keeps(&code, 20, 4), "after the return");
        // str x0, [x20], #8; ldp x0, x20, [sp]; bl; br x16; nothing
        for word in [0xf800_8680, 0xa940_53e0, 0x9400_0010, 0xd61f_0200] {
            assert!(!keeps(&[word, 0xd65f_03c0], 20, 0), "{word:x}");
        }
        assert!(!keeps(&[0xd503_201f], 20, 0));
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
