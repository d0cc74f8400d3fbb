//! The machine word: all addresses wrap around at its width.

/// The machine word of the program that the stack belongs to ("General Format", `size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WordSize {
    /// Two bytes.
    Bits16,
    /// Four bytes.
    Bits32,
    /// Eight bytes.
    Bits64,
}

impl WordSize {
    /// All word sizes, ordered by their number in the information byte.
    pub const ALL: [WordSize; 3] = [WordSize::Bits16, WordSize::Bits32, WordSize::Bits64];

    /// The word size of the machine that this code runs on.
    pub const NATIVE: WordSize = if cfg!(target_pointer_width = "64") {
        WordSize::Bits64
    } else if cfg!(target_pointer_width = "32") {
        WordSize::Bits32
    } else {
        WordSize::Bits16
    };

    /// The word size with this many bits; `None` unless `bits` is 16, 32 or 64.
    pub const fn from_bits(bits: u32) -> Option<WordSize> {
        match bits {
            16 => Some(WordSize::Bits16),
            32 => Some(WordSize::Bits32),
            64 => Some(WordSize::Bits64),
            _ => None,
        }
    }

    /// The width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            WordSize::Bits16 => 16,
            WordSize::Bits32 => 32,
            WordSize::Bits64 => 64,
        }
    }

    /// The width in bytes.
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// The largest address, and the largest count of omitted frames.
    #[expect(clippy::arithmetic_side_effects, reason = "at most 64 bits")]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// The largest encoded size of a frame, in bytes.
    pub const fn max_frame_bytes(self) -> usize {
        self.bytes().saturating_add(1)
    }

    /// The largest encoded size of a backtrace of `frames` pushed frames, including the information
    /// byte and the end instruction.
    pub const fn max_encoded_len(self, frames: usize) -> usize {
        frames.saturating_mul(self.max_frame_bytes()).saturating_add(2)
    }

    /// `value` without the bits above the word.
    #[inline]
    pub(crate) const fn wrap(self, value: u64) -> u64 {
        value & self.max()
    }

    #[inline]
    pub(crate) const fn sign_extend(self, value: u64) -> i64 {
        backtrail_wire::sign_extend(value, self.bits())
    }
}
