//! The fuzz target, which also runs as an ordinary test.
#![expect(clippy::arithmetic_side_effects, reason = "small numbers of its own")]

use backtrail_arch::{Arch, REGISTERS, Register, Registers, aarch64, x86_64};

use backtrail_callframe::{Entries, Frame, Search, Source, caller, is_searchable};

/// The address of the bytes, chosen so that small numbers in an input are often addresses in it.
pub const AT: u64 = 0x1_0000;
/// Maximum number of FDEs to look up.
const MOST: usize = 64;

struct Bytes<'b>(&'b [u8]);

impl Source for Bytes<'_> {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        let offset = address.checked_sub(AT).and_then(|offset| usize::try_from(offset).ok());
        let bytes = offset.and_then(|offset| self.0.get(offset..)).unwrap_or_default();
        let there = bytes.as_chunks::<8>().0;
        for (word, bytes) in words.iter_mut().zip(there) {
            *word = u64::from_ne_bytes(*bytes);
        }
        there.len().min(words.len())
    }
}

fn frame(arch: &Arch, pc: u64) -> Frame {
    let mut registers = Registers::new(pc);
    for register in (0..REGISTERS as u8)
        .map(Register)
        .filter(|register| *register != arch.ra)
    {
        registers.set(register, AT + 0x800 + u64::from(register.0) * 64);
    }
    // Frames lie above the bytes.
    registers.set(arch.sp, AT);
    let mut frame = Frame::new(registers);
    // Some registers are only known as left by callees.
    frame.registers.forget(Register(0));
    frame.left.set(Register(0), AT + 0x800);
    frame
}

/// Uses the bytes as `.eh_frame`, and as `.eh_frame_hdr`. Returns how many callers were found.
pub fn callers(data: &[u8]) -> usize {
    let end = AT.saturating_add(data.len() as u64);
    let mut found = 0;
    for arch in [&x86_64::ARCH, &aarch64::ARCH] {
        let mut ask = |search: &Search<'_>, pc: u64| {
            let word = |address: u64| Some(address.rotate_left(7));
            let caller = caller(arch, search, &frame(arch, pc), pc, &mut Bytes(data), word);
            found += usize::from(caller.is_ok());
        };
        let mut source = Bytes(data);
        for (start, fde) in Entries::new(AT, end, &mut source).take(MOST) {
            for pc in [start, start.wrapping_add(5), start.wrapping_add(40)] {
                ask(&Search::List(&[(start, fde)]), pc);
            }
        }
        if is_searchable(AT, &mut Bytes(data)) {
            ask(&Search::Header(AT), AT + 100);
        }
    }
    found
}
