//! The starts of functions that neither symbols nor call frame information show: the targets of
//! direct calls, and on x86-64 code whose address is taken.
//!
//! Compilers that optimize for size do not align functions, so nothing shows where a function ends
//! in a call that never returns. On x86-64, every byte that may begin such an instruction is read
//! as one. In small files, few other bytes lead into the code by accident.

use backtrail_arch::Cpu;
use backtrail_elf::Image;

use crate::a64;

/// Larger files are not searched: too many of their bytes would look like calls into the code.
const MOST_BYTES: u64 = 8 << 20;

/// Targets of direct calls and taken addresses (svma), in order. Empty for large files and other
/// CPUs.
pub fn called(image: &Image<'_>) -> Vec<u64> {
    let ranges = image.code_ranges();
    let size = ranges.iter().fold(0u64, |sum, range| {
        sum.saturating_add(range.end.saturating_sub(range.start))
    });
    if size > MOST_BYTES {
        return Vec::new();
    }
    let mut found = Vec::new();
    for range in &ranges {
        let code = image.data_in(range.clone()).unwrap_or_default();
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let code = &code[..len.min(code.len())];
        let is_code = |target: &u64| ranges.iter().any(|range| range.contains(target));
        match image.arch().cpu {
            Cpu::X86_64 => found.extend(targets(code, range.start).filter(is_code)),
            Cpu::Aarch64 => found.extend(called_by_words(code, range.start).filter(is_code)),
            Cpu::S390x => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The targets of `bl` in AArch64's code at `start`.
fn called_by_words(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    let words = (start..).step_by(4).zip(a64::words(code));
    words.filter_map(|(at, word)| Some(at.wrapping_add_signed(a64::call(word)?.wrapping_mul(4))))
}

/// The targets in x86-64's code at `start`, if every byte begins an instruction.
fn targets(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    (0..code.len()).zip(start..).filter_map(|(offset, at)| {
        let (len, word) = match *code.get(offset..)? {
            // `call rel32`
            [0xe8, a, b, c, d, ..] => (5, [a, b, c, d]),
            // `lea register, [rip + distance]`
            [0x48 | 0x4c, 0x8d, modrm, a, b, c, d, ..] if modrm & 0xc7 == 5 => (7, [a, b, c, d]),
            // `mov register, address`
            [0x48 | 0x49, 0xc7, 0xc0..=0xc7, a, b, c, d, ..] => return Some(u32::from_le_bytes([a, b, c, d]).into()),
            _ => return None,
        };
        let distance = i32::from_le_bytes(word);
        Some(at.wrapping_add(len).wrapping_add_signed(distance.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_elf::FileBytes;

    #[test]
    fn calls_and_addresses_lead_forwards_and_backwards() {
        // nop; call +0x10; call -10; half a call
        let code = [0x90, 0xe8, 0x10, 0, 0, 0, 0xe8, 0xf6, 0xff, 0xff, 0xff, 0xe8, 0, 0];
        assert_eq!(targets(&code, 0x1000).collect::<Vec<_>>(), [0x1016, 0x1001]);
        // lea rdi, [rip+0x10]; mov rdi, 0x401234; lea rdi, [rax+0x10]
        let code = [
            0x48, 0x8d, 0x3d, 0x10, 0, 0, 0, 0x48, 0xc7, 0xc7, 0x34, 0x12, 0x40, 0, 0x48, 0x8d, 0xb8, 0x10, 0, 0, 0,
        ];
        assert_eq!(targets(&code, 0x1000).collect::<Vec<_>>(), [0x1017, 0x40_1234]);
    }

    #[test]
    fn calls_are_words_on_aarch64() {
        // nop; bl +8; b +8; bl -12
        let code = [0xd503_201f_u32, 0x9400_0002, 0x1400_0002, 0x97ff_fffd].map(u32::to_le_bytes);
        let found = called_by_words(code.as_flattened(), 0x1000);
        assert_eq!(found.collect::<Vec<_>>(), [0x100c, 0x1000]);
    }

    #[test]
    fn functions_of_a_small_file_are_found_and_of_a_large_one_none() {
        let own = FileBytes::open(std::env::current_exe().expect("a path")).expect("this program");
        let image = Image::of(&own).expect("ELF");
        let found = called(&image);
        let size: u64 = image.code_ranges().iter().map(|range| range.end - range.start).sum();
        assert!(found.is_sorted());
        assert_eq!(
            found.len() > 100,
            size <= MOST_BYTES && image.arch().cpu != Cpu::S390x,
            "{size} bytes"
        );
    }
}
