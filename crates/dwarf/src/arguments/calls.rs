//! Calls as the code has them. gcc tells nothing of calls of what it does not know with arguments that it does not know.

use std::ops::Range;

use backtrail_args::abi::Abi;
use backtrail_elf::Image;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

/// The addresses behind the calls in a piece of code, rising.
pub(super) fn return_addresses(image: &Image<'_>, piece: &Range<u64>, abi: Abi) -> Vec<u64> {
    let len = usize::try_from(piece.end.saturating_sub(piece.start)).unwrap_or(usize::MAX);
    let code = image.data_at(piece.start).unwrap_or_default();
    let code = &code[..len.min(code.len())];
    match abi {
        Abi::SysvX86_64 => {
            let instructions = Decoder::with_ip(64, code, piece.start, DecoderOptions::NONE).into_iter();
            let calls = instructions.filter(|instruction| instruction.mnemonic() == Mnemonic::Call);
            calls.map(|call| call.next_ip()).collect()
        }
        Abi::Aapcs64 => {
            let words = code.chunks_exact(4).zip((piece.start + 4..).step_by(4));
            let calls = words.filter(|(bytes, _)| {
                let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                // bl; blr, and its forms that check the address
                word >> 26 == 0b100101 || word & 0xfeff_f000 == 0xd63f_0000
            });
            calls.map(|(_, behind)| behind).collect()
        }
    }
}
