//! Calls and jumps, read from the code. gcc does not describe calls of unknown functions with
//! unknown arguments, nor which copy of a function is called.

use std::ops::Range;

use backtrail_args::abi::Abi;
use backtrail_elf::Image;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

/// A call, or a jump with a known target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// The address of the instruction.
    pub(super) at: u64,
    /// The address after the instruction.
    pub(super) behind: u64,
    /// The target, if the instruction gives it.
    pub(super) to: Option<u64>,
    pub(super) is_call: bool,
}

/// The calls and jumps in a piece of code, by ascending address.
pub(super) fn transfers(image: &Image<'_>, piece: &Range<u64>, abi: Abi) -> Vec<Transfer> {
    let len = usize::try_from(piece.end.saturating_sub(piece.start)).unwrap_or(usize::MAX);
    let code = image.data_in(piece.clone()).unwrap_or_default();
    let code = &code[..len.min(code.len())];
    match abi {
        Abi::SysvX86_64 => x86_64(code, piece.start),
        Abi::Aapcs64 => aarch64(code, piece.start),
    }
}

fn x86_64(code: &[u8], start: u64) -> Vec<Transfer> {
    let instructions = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter();
    let transfers = instructions.filter_map(|instruction| {
        let is_call = instruction.mnemonic() == Mnemonic::Call;
        let is_near = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
        (is_call || is_near).then(|| Transfer {
            at: instruction.ip(),
            behind: instruction.next_ip(),
            to: is_near.then(|| instruction.near_branch_target()),
            is_call,
        })
    });
    transfers.collect()
}

fn aarch64(code: &[u8], start: u64) -> Vec<Transfer> {
    let words = code.chunks_exact(4).zip((start..).step_by(4));
    let transfers = words.filter_map(|(bytes, at)| {
        let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        // `b` and `bl`; `blr`, and its forms that authenticate the address.
        let is_direct = word >> 26 & 0b011111 == 0b000101;
        let is_indirect = word & 0xfeff_f000 == 0xd63f_0000;
        (is_direct || is_indirect).then(|| Transfer {
            at,
            behind: at + 4,
            to: is_direct.then(|| at.wrapping_add_signed(i64::from((word << 6) as i32 >> 4))),
            is_call: is_indirect || word >> 31 == 1,
        })
    });
    transfers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(found: &[Transfer]) -> Vec<(u64, u64, Option<u64>, bool)> {
        let all = found.iter();
        all.map(|one| (one.at, one.behind, one.to, one.is_call)).collect()
    }

    #[test]
    fn calls_and_jumps_are_found() {
        // call +5; jne +0x10 (near); call *%rax; jmp *%rax; jmp -2; ret
        let code = [
            0xe8, 5, 0, 0, 0, 0x0f, 0x85, 0x10, 0, 0, 0, 0xff, 0xd0, 0xff, 0xe0, 0xeb, 0xfe, 0xc3,
        ];
        assert_eq!(
            fields(&x86_64(&code, 0x100)),
            [
                (0x100, 0x105, Some(0x10a), true),
                (0x105, 0x10b, Some(0x11b), false),
                (0x10b, 0x10d, None, true),
                (0x10f, 0x111, Some(0x10f), false),
            ]
        );
        // bl +8; b -4; blr x1; ret
        let words: [u32; 4] = [0x9400_0002, 0x17ff_ffff, 0xd63f_0020, 0xd65f_03c0];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            fields(&aarch64(&code, 0x100)),
            [
                (0x100, 0x104, Some(0x108), true),
                (0x104, 0x108, Some(0x100), false),
                (0x108, 0x10c, None, true),
            ]
        );
    }
}
