//! Which registers instructions write.

use backtrail_arch::{Arch, InstructionSet};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Whether the function with this code, which begins at `start`, leaves `register` alone, and calls nothing that might not:
/// assembly code has helpers of its own that keep more than the calling convention asks for.
pub fn keeps(arch: &Arch, code: &[u8], start: u64, register: backtrail_arch::Register) -> bool {
    match arch.instructions {
        InstructionSet::X86_64 => keeps_x86_64(code, start, register),
        InstructionSet::Aarch64 | InstructionSet::S390x => false,
    }
}

fn keeps_x86_64(code: &[u8], start: u64, register: backtrail_arch::Register) -> bool {
    let end = start.saturating_add(code.len() as u64);
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let leaves = match instruction.mnemonic() {
            Mnemonic::Ret | Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop => false,
            _ if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 => {
                instruction.mnemonic() == Mnemonic::Call || !(start..end).contains(&instruction.near_branch_target())
            }
            // What writes registers that no operand names is not among these.
            mnemonic if is_plain(mnemonic) => {
                dwarf_number(instruction.op0_register()) == Some(register.0)
                    && instruction.op0_kind() == OpKind::Register
            }
            _ => instruction.op0_kind() != OpKind::Register || !is_vector(instruction.op0_register()),
        };
        if instruction.is_invalid() || leaves {
            return false;
        }
    }
    !code.is_empty()
}

/// Instructions that write their first operand and nothing else.
pub(crate) fn is_plain(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Movbe
            | Mnemonic::Lea
            | Mnemonic::Add
            | Mnemonic::Adc
            | Mnemonic::Sub
            | Mnemonic::Sbb
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Not
            | Mnemonic::Neg
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rorx
            | Mnemonic::Bswap
            | Mnemonic::Pop
            | Mnemonic::Prefetcht0
            | Mnemonic::Movdqa
            | Mnemonic::Movdqu
            | Mnemonic::Movaps
            | Mnemonic::Movups
            | Mnemonic::Vmovdqa
            | Mnemonic::Vmovdqu
            | Mnemonic::Vmovaps
            | Mnemonic::Vmovups
            | Mnemonic::Vzeroupper
            | Mnemonic::Vzeroall
    )
}

fn is_vector(register: Register) -> bool {
    (Register::XMM0..=Register::ZMM31).contains(&register)
}

/// The DWARF number of a general register or a part of one.
pub(crate) fn dwarf_number(register: Register) -> Option<u8> {
    const BY_ENCODING: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    let encoding = match register {
        Register::AH => return Some(0),
        Register::CH => return Some(2),
        Register::DH => return Some(1),
        Register::BH => return Some(3),
        Register::AL | Register::CL | Register::DL | Register::BL => register as u32 - Register::AL as u32,
        Register::SPL | Register::BPL | Register::SIL | Register::DIL => 4 + register as u32 - Register::SPL as u32,
        _ if (Register::R8L..=Register::R15L).contains(&register) => 8 + register as u32 - Register::R8L as u32,
        _ if (Register::AX..=Register::R15W).contains(&register) => register as u32 - Register::AX as u32,
        _ if (Register::EAX..=Register::R15D).contains(&register) => register as u32 - Register::EAX as u32,
        _ if (Register::RAX..=Register::R15).contains(&register) => register as u32 - Register::RAX as u32,
        _ => return None,
    };
    BY_ENCODING.get(encoding as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;

    #[test]
    fn helpers_keep_what_they_do_not_write() {
        let keeps = |code: &[u8], register| keeps(&ARCH, code, START, backtrail_arch::Register(register));
        let (rax, rbx) = (0, 3);
        // vpxor xmm0, xmm0, xmm0; movbe r13, [r14+8]; lea r14, [r14+0x60]; mov [rsp+8], r13; ret
        let helper = [
            0xc5, 0xf9, 0xef, 0xc0, 0x4d, 0x0f, 0x38, 0xf0, 0x6e, 0x08, 0x4d, 0x8d, 0x76, 0x60, 0x4c, 0x89, 0x6c, 0x24,
            0x08, 0xc3,
        ];
        assert!(keeps(&helper, rax) && keeps(&helper, rbx));
        assert!(!keeps(&helper, 13) && !keeps(&helper, 14));
        // xor eax, eax; mov bl, 1; mov ah, 1
        assert!(!keeps(&[0x31, 0xc0, 0xc3], rax) && keeps(&[0x31, 0xc0, 0xc3], rbx));
        assert!(!keeps(&[0xb3, 0x01, 0xc3], rbx) && !keeps(&[0xb4, 0x01, 0xc3], rax));
        // A call, a jump out of the function, mul, nothing, half an instruction.
        for code in [&[0xe8, 0, 0, 0, 0][..], &[0xeb, 0x7f], &[0xf7, 0xe1], &[], &[0x48]] {
            assert!(!keeps(code, rbx), "{code:x?}");
        }
    }
}
