//! What can be wrong, and where.

use core::fmt;

use crate::{Frame, WordSize};

/// What was wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is not even an information byte.
    Empty,
    /// The information byte tells a version that is not known.
    Version(u8),
    /// The information byte tells the reserved word size.
    ReservedWordSize,
    /// The data ends inside an instruction, this many bytes too early.
    Truncated {
        /// Bytes that are missing.
        missing: u64,
    },
    /// The opcode is reserved.
    ReservedOpcode(u8),
    /// `rep` comes before any frame.
    RepWithoutFrame,
    /// An address value has more bytes than the word (only an error to a strict reader).
    AddressTooLong {
        /// Its bytes.
        bytes: u8,
        /// The word.
        word: WordSize,
    },
    /// A count has more bytes than the word (only an error to a strict reader).
    CountTooLong {
        /// Its bytes.
        bytes: u8,
        /// The word.
        word: WordSize,
    },
    /// There are more frames than the limit that the reader set.
    FrameLimit(u64),
}

/// A failed read: what was wrong, and the byte where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    /// What was wrong.
    pub kind: ErrorKind,
    /// Offset in bytes from the information byte: of the instruction, or of its argument where that
    /// is cut off.
    pub offset: u64,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Empty => write!(f, "no information byte"),
            ErrorKind::Version(version) => write!(f, "version {version} is not known, only 0 is"),
            ErrorKind::ReservedWordSize => write!(f, "reserved word size 3"),
            ErrorKind::Truncated { missing: 1 } => write!(f, "truncated argument, 1 byte missing"),
            ErrorKind::Truncated { missing } => write!(f, "truncated argument, {missing} bytes missing"),
            ErrorKind::ReservedOpcode(opcode) => write!(f, "reserved opcode {opcode:#04x}"),
            ErrorKind::RepWithoutFrame => write!(f, "rep without a frame before it"),
            ErrorKind::AddressTooLong { bytes, word } => {
                write!(f, "address of {bytes} bytes is wider than the {}-bit word", word.bits())
            }
            ErrorKind::CountTooLong { bytes, word } => {
                write!(f, "count of {bytes} bytes is wider than the {}-bit word", word.bits())
            }
            ErrorKind::FrameLimit(limit) => write!(f, "more frames than the limit of {limit}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {:#x}", self.kind, self.offset)
    }
}

impl core::error::Error for Error {}

/// The result of a read.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a frame could not be written. What was written before stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncodeError {
    /// There is no room for the frame and, after it, the end.
    BufferFull,
    /// The lent buffer is too short to begin with.
    BufferTooShort {
        /// Bytes that it must have.
        needed: usize,
    },
    /// The frame's address or count is greater than the word's greatest value.
    WiderThanWord {
        /// The frame.
        frame: Frame,
        /// The word.
        word: WordSize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EncodeError::BufferFull => write!(f, "the buffer is full"),
            EncodeError::BufferTooShort { needed } => write!(f, "the buffer is shorter than {needed} bytes"),
            EncodeError::WiderThanWord { frame, word } => {
                write!(f, "{frame} is wider than the {}-bit word", word.bits())
            }
        }
    }
}

impl core::error::Error for EncodeError {}
