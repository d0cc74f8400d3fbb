//! Errors of reading and writing, and where they occurred.

use core::fmt;

use crate::{Frame, WordSize};

/// The kind of error found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The data has no information byte.
    Empty,
    /// The information byte contains an unknown version.
    Version(u8),
    /// The information byte contains the reserved word size.
    ReservedWordSize,
    /// The data ends inside an instruction, this many bytes too early.
    Truncated {
        /// The number of missing bytes.
        missing: u64,
    },
    /// The opcode is reserved.
    ReservedOpcode(u8),
    /// `rep` comes before any frame.
    RepWithoutFrame,
    /// An address value is longer than the word (an error only in a strict decoder).
    AddressTooLong {
        /// Its length in bytes.
        bytes: u8,
        /// The word size.
        word: WordSize,
    },
    /// A count is longer than the word (an error only in a strict decoder).
    CountTooLong {
        /// Its length in bytes.
        bytes: u8,
        /// The word size.
        word: WordSize,
    },
    /// The backtrace has more frames than the limit that the caller set.
    FrameLimit(u64),
}

/// A failed read: the kind of error and its offset in bytes from the information byte to the
/// instruction, or to its argument if that is cut off.
pub type Error = backtrail_wire::Located<ErrorKind>;

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

/// The result of a read.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a frame could not be written. Frames written before stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer has no room for the frame and the end after it.
    BufferFull,
    /// The borrowed buffer is too short to begin a backtrace.
    BufferTooShort {
        /// The length in bytes that it must have.
        needed: usize,
    },
    /// The frame's address or count exceeds the largest value of the word.
    WiderThanWord {
        /// The frame.
        frame: Frame,
        /// The word size.
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
