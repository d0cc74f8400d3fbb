//! The stack of a sampled thread, as it was at the moment of the sample.
//!
//! The copy that comes with a sample is all that is known of that moment: the process has run on since, and what its
//! memory holds later belongs to another stack. The kernel copies without page faults, so the copy ends at the first page
//! that is not present; [`touch`] makes such pages present, for the samples that follow.

use std::ops::Range;

use backtrail_unwind::Memory;

use crate::{proc, sys};

/// The copy of a stack that came with a sample.
#[derive(Clone, Copy, Debug)]
pub struct SampledStack<'a> {
    /// Address of the copy's first byte: the stack pointer.
    start: u64,
    copy: &'a [u8],
}

impl<'a> SampledStack<'a> {
    /// A copy of the bytes from `start` on.
    pub fn new(start: u64, copy: &'a [u8]) -> Self {
        SampledStack { start, copy }
    }
}

impl Memory for SampledStack<'_> {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.wrapping_sub(self.start)).ok()?;
        let word = self.copy.get(offset..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*word))
    }
}

/// The private memory without a file that holds `address` in a process: a stack, as far as anybody can say from outside.
pub fn mapping_of_stack(pid: u32, address: u64) -> Option<Range<u64>> {
    let maps = proc::maps(pid).ok()?;
    let map = maps.into_iter().find(|map| (map.start..map.end).contains(&address))?;
    (map.inode == 0).then_some(map.start..map.end)
}

/// Makes the pages of a range present that never were, by reading a byte of each. They cost no memory: untouched pages all
/// share one page of zeroes.
pub fn touch(pid: u32, range: Range<u64>) {
    sys::touch_pages(pid as i32, range);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_copy() {
        let copy: Vec<u8> = (0..16_u64).flat_map(|word| word.to_ne_bytes()).collect();
        let start = 0x7ffe_0000;
        let mut stack = SampledStack::new(start, &copy);
        assert_eq!(stack.word(start), Some(0));
        assert_eq!(stack.word(start + 15 * 8), Some(15));
        assert!(stack.is(start + 80, u64::MAX, 10) && !stack.is(start + 80, u64::MAX, 11));
        for outside in [start - 8, start + 16 * 8, start + 15 * 8 + 1, 0, u64::MAX - 3] {
            assert_eq!(stack.word(outside), None, "{outside:#x}");
            assert!(!stack.is(outside, u64::MAX, 0), "{outside:#x}");
        }
    }

    #[test]
    fn the_own_stack_is_found() {
        let here = 0_u8;
        let address = std::ptr::from_ref(&here).addr() as u64;
        let mapping = mapping_of_stack(std::process::id(), address).expect("it is mapped");
        assert!(mapping.contains(&address));
        let file = mapping_of_stack as *const () as u64;
        assert_eq!(mapping_of_stack(std::process::id(), file), None, "code of a file");
        assert_eq!(mapping_of_stack(std::process::id(), 8), None);
    }
}
