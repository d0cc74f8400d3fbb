//! Call instructions, read backwards from the return addresses that they leave.

use crate::{Arch, Cpu};

/// A call instruction that ends at a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// To this address.
    Direct(u64),
    /// To an address in a register or in memory.
    Indirect,
}

impl Arch {
    /// The longest call instruction, in bytes.
    pub const LONGEST_CALL: usize = 8;

    /// The call that leaves `ra`; `before` contains the bytes up to `ra`. `None` if no call ends
    /// there.
    pub fn call_before(&self, ra: u64, before: &[u8]) -> Option<Call> {
        match self.cpu {
            Cpu::X86_64 => x86_64(ra, before),
            Cpu::Aarch64 => aarch64(ra, before),
            Cpu::S390x => s390x(ra, before),
        }
    }
}

/// `call rel32` (E8), and `call r/m64` (FF /2) in each of its lengths.
fn x86_64(ra: u64, before: &[u8]) -> Option<Call> {
    if let Some([0xe8, offset @ ..]) = before.last_chunk::<5>() {
        let target = ra.wrapping_add_signed(i64::from(i32::from_le_bytes(*offset)));
        return Some(Call::Direct(target));
    }
    let is_indirect = (2..=7).any(|len| {
        let start = before.len().checked_sub(len);
        let Some([0xff, operand @ ..]) = start.and_then(|start| before.get(start..)) else {
            return false;
        };
        operand_len(operand) == Some(operand.len())
    });
    is_indirect.then_some(Call::Indirect)
}

/// Length of a call's operand: ModRM, SIB and displacement.
fn operand_len(operand: &[u8]) -> Option<usize> {
    let modrm = *operand.first()?;
    if modrm >> 3 & 7 != 2 {
        return None;
    }
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let (sib, base) = match (mode, rm) {
        (0..=2, 4) => (1, *operand.get(1)? & 7),
        _ => (0, rm),
    };
    let displacement: usize = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(displacement.saturating_add(sib).saturating_add(1))
}

/// `bl`, `blr` and its forms that authenticate the address.
fn aarch64(ra: u64, before: &[u8]) -> Option<Call> {
    let word = u32::from_le_bytes(*before.last_chunk()?);
    if word >> 26 == 0b100101 {
        let offset = i64::from((word << 6).cast_signed() >> 4);
        return Some(Call::Direct(ra.wrapping_sub(4).wrapping_add_signed(offset)));
    }
    (word & 0xfeff_f000 == 0xd63f_0000).then_some(Call::Indirect)
}

/// `brasl`, `bras` and `basr`.
fn s390x(ra: u64, before: &[u8]) -> Option<Call> {
    if let Some([0xc0, registers, offset @ ..]) = before.last_chunk::<6>()
        && registers & 15 == 5
    {
        let offset = i64::from(i32::from_be_bytes(*offset)) << 1;
        return Some(Call::Direct(ra.wrapping_sub(6).wrapping_add_signed(offset)));
    }
    if let Some([0xa7, registers, offset @ ..]) = before.last_chunk::<4>()
        && registers & 15 == 5
    {
        let offset = i64::from(i16::from_be_bytes(*offset)) << 1;
        return Some(Call::Direct(ra.wrapping_sub(4).wrapping_add_signed(offset)));
    }
    let [opcode, _] = before.last_chunk()?;
    (*opcode == 0x0d).then_some(Call::Indirect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{aarch64, s390x, x86_64};

    #[test]
    fn calls_of_x86_64() {
        let call = |before: &[u8]| x86_64::ARCH.call_before(0x1000, before);
        assert_eq!(call(&[0x90, 0xe8, 0x10, 0, 0, 0]), Some(Call::Direct(0x1010)));
        assert_eq!(call(&[0xe8, 0xfb, 0xff, 0xff, 0xff]), Some(Call::Direct(0xffb)));
        // As GNU as encodes rax, [rax], [rsp], [r12+8], [rip+4], [rax+rcx*8+0x100], [0x1000] with a
        // SIB byte.
        for indirect in [
            &[0xff, 0xd0][..],
            &[0xff, 0x10],
            &[0xff, 0x14, 0x24],
            &[0x41, 0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x15, 4, 0, 0, 0],
            &[0xff, 0x94, 0xc8, 0, 1, 0, 0],
            &[0xff, 0x14, 0x25, 0, 0x10, 0, 0],
        ] {
            assert_eq!(call(indirect), Some(Call::Indirect), "{indirect:x?}");
        }
        for other in [
            &[][..],
            &[0xe8],
            &[0xff],
            &[0xff, 0xe0],
            &[0xff, 0x14],
            &[0x48, 0x89, 0xe5, 0x90, 0x90, 0x90],
        ] {
            assert_eq!(call(other), None, "{other:x?}");
        }
    }

    #[test]
    fn calls_of_aarch64() {
        let call = |word: u32| aarch64::ARCH.call_before(0x1000, &word.to_le_bytes());
        assert_eq!(call(0x9400_0004), Some(Call::Direct(0x100c)));
        assert_eq!(call(0x97ff_ffff), Some(Call::Direct(0xff8)));
        assert_eq!(call(0xd63f_0200), Some(Call::Indirect));
        // blraaz x8, blraa x8, x9.
        assert_eq!(call(0xd63f_091f), Some(Call::Indirect));
        assert_eq!(call(0xd73f_0909), Some(Call::Indirect));
        assert_eq!(call(0x1400_0004), None, "b");
        assert_eq!(call(0xd61f_0200), None, "br");
        assert_eq!(aarch64::ARCH.call_before(0x1000, &[0; 3]), None);
    }

    #[test]
    fn calls_of_s390x() {
        let call = |before: &[u8]| s390x::ARCH.call_before(0x1000, before);
        assert_eq!(call(&[0xc0, 0xe5, 0, 0, 0, 8]), Some(Call::Direct(0x100a)));
        assert_eq!(call(&[0xa7, 0xe5, 0xff, 0xff]), Some(Call::Direct(0xffa)));
        assert_eq!(call(&[0x0d, 0xe1]), Some(Call::Indirect));
        assert_eq!(call(&[0xc0, 0xe4, 0, 0, 0, 8]), None, "brcl");
        assert_eq!(call(&[0x07, 0xfe]), None);
    }
}
