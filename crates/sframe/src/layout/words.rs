//! The words that follow a row's info byte (section 1.4).

use backtrail_wire::{Bytes, Endian};

use crate::constants::WordSize;
use crate::error::Result;

/// Reads the words of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    bytes: Bytes<'a>,
    at: usize,
    size: WordSize,
    count: usize,
}

impl<'a> Words<'a> {
    #[inline]
    pub(crate) fn new(bytes: Bytes<'a>, at: usize, size: WordSize, count: usize) -> Self {
        Words { bytes, at, size, count }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Offset of a word in bytes from the section's start.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "at most 15 words of 4 bytes after an info byte in the section"
    )]
    pub(crate) fn offset(&self, index: usize) -> usize {
        self.at + index * self.size.bytes()
    }

    #[inline]
    pub(crate) fn signed(&self, index: usize) -> Result<i32> {
        let at = self.offset(index);
        if let Some(word) = self.in_highest_bits(at) {
            return Ok(word as i32 >> self.unused_bits());
        }
        Ok(match self.size {
            WordSize::One => self.bytes.i8(at)?.into(),
            WordSize::Two => self.bytes.i16(at)?.into(),
            WordSize::Four => self.bytes.i32(at)?,
        })
    }

    /// Like [`Words::signed`]; `None` near the data's end.
    #[inline(always)]
    pub(crate) fn quick(&self, index: usize) -> Option<i32> {
        let word = self.in_highest_bits(self.offset(index))?;
        Some(word as i32 >> self.unused_bits())
    }

    #[inline]
    pub(crate) fn unsigned(&self, index: usize) -> Result<u32> {
        let at = self.offset(index);
        if let Some(word) = self.in_highest_bits(at) {
            return Ok(word >> self.unused_bits());
        }
        Ok(match self.size {
            WordSize::One => self.bytes.u8(at)?.into(),
            WordSize::Two => self.bytes.u16(at)?.into(),
            WordSize::Four => self.bytes.u32(at)?,
        })
    }

    /// Loads the word into the highest bits, in the same way for all sizes, because a row's word
    /// size can't be predicted. `None` near the data's end.
    #[inline]
    fn in_highest_bits(&self, at: usize) -> Option<u32> {
        let chunk = *self.bytes.data().get(at..)?.first_chunk::<4>()?;
        Some(match self.bytes.endian() {
            Endian::Little => u32::from_le_bytes(chunk) << self.unused_bits(),
            Endian::Big => u32::from_be_bytes(chunk),
        })
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "words have 1, 2 or 4 bytes")]
    fn unused_bits(&self) -> u32 {
        32 - 8 * self.size.bytes() as u32
    }
}

#[cfg(feature = "write")]
pub(crate) use list::{Word, WordList};

#[cfg(feature = "write")]
mod list {
    use super::super::sink::Sink;
    use crate::constants::WordSize;

    /// A word to write.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Word {
        Signed(i32),
        Unsigned(u32),
    }

    impl Word {
        fn bits(self) -> u32 {
            match self {
                Word::Signed(value) => value as u32,
                Word::Unsigned(value) => value,
            }
        }

        fn size(self) -> WordSize {
            let (one, two) = match self {
                Word::Signed(value) => (i8::try_from(value).is_ok(), i16::try_from(value).is_ok()),
                Word::Unsigned(value) => (u8::try_from(value).is_ok(), u16::try_from(value).is_ok()),
            };
            match (one, two) {
                (true, _) => WordSize::One,
                (_, true) => WordSize::Two,
                _ => WordSize::Four,
            }
        }
    }

    /// A control word and an offset for each of CFA, RA and FP.
    const MAX_WORDS: usize = 6;

    /// The words of a row to write.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct WordList {
        words: [u32; MAX_WORDS],
        len: u8,
        size: WordSize,
    }

    impl WordList {
        pub(crate) fn new() -> Self {
            WordList {
                words: [0; MAX_WORDS],
                len: 0,
                size: WordSize::One,
            }
        }

        #[expect(
            clippy::arithmetic_side_effects,
            clippy::indexing_slicing,
            reason = "three locations take six words at most"
        )]
        pub(crate) fn push(&mut self, word: Word) {
            self.words[self.len()] = word.bits();
            self.len += 1;
            self.size = self.size.max(word.size());
        }

        pub(crate) fn len(&self) -> usize {
            self.len.into()
        }

        /// The narrowest size that holds every word.
        pub(crate) fn size(&self) -> WordSize {
            self.size
        }

        #[expect(clippy::indexing_slicing, reason = "it counts the words")]
        pub(crate) fn write(&self, sink: &mut Sink) {
            for &bits in &self.words[..self.len()] {
                match self.size {
                    WordSize::One => sink.u8(bits as u8),
                    WordSize::Two => sink.u16(bits as u16),
                    WordSize::Four => sink.u32(bits),
                }
            }
        }
    }
}
