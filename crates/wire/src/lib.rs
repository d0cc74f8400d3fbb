//! Checked reads of integers, LEB128 and bit ranges in either byte order. Errors carry their
//! position.
//!
//! Everything that Backtrail reads from a file, a process or a trace goes through here first. The
//! promises: no allocation, no unsafe code, no panic, whatever the bytes are. Byte order is a value
//! chosen at run time, so that one compiled reader serves both.
//!
//! ```
//! use backtrail_wire::{Bytes, Endian};
//!
//! let bytes = Bytes::new(&[0x12, 0x34, 0x56, 0x78, 0xe5, 0x8e, 0x26], Endian::Big);
//! let mut cursor = bytes.cursor(0);
//! assert_eq!(cursor.u32(), Ok(0x1234_5678));
//! assert_eq!(cursor.uleb128(), Ok(624_485));
//! assert_eq!(cursor.u8().unwrap_err().offset, 7);
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod bits;
mod cursor;
mod leb128;
mod record;

pub use bits::{read_bits, sign_extend, write_bits};
pub use cursor::Cursor;
pub use leb128::{MAX_LEB128_BYTES, write_sleb128, write_uleb128};
pub use record::Record;

/// The order of the bytes of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The byte order of the machine that this code runs on.
    pub const NATIVE: Endian = if cfg!(target_endian = "big") {
        Endian::Big
    } else {
        Endian::Little
    };

    /// The other byte order.
    pub const fn swapped(self) -> Endian {
        match self {
            Endian::Little => Endian::Big,
            Endian::Big => Endian::Little,
        }
    }
}

/// What was wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The value needs this many bytes more than there are.
    Truncated {
        /// Bytes that are missing.
        missing: u64,
    },
    /// A LEB128 number does not fit into 64 bits.
    LebOverflow,
    /// A string has no terminating zero byte before the end of the data.
    Unterminated,
    /// A bit range is wider than 64 bits.
    BitWidth(u32),
}

/// A failed read: what was wrong, and the byte where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    /// What was wrong.
    pub kind: ErrorKind,
    /// Offset in bytes from the start of the data.
    pub offset: u64,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.kind {
            ErrorKind::Truncated { missing } => {
                write!(f, "data ends {missing} bytes too early")?;
            }
            ErrorKind::LebOverflow => write!(f, "LEB128 number wider than 64 bits")?,
            ErrorKind::Unterminated => write!(f, "unterminated string")?,
            ErrorKind::BitWidth(width) => write!(f, "integer of {width} bits")?,
        }
        write!(f, " at offset {:#x}", self.offset)
    }
}

impl core::error::Error for Error {}

/// An error in the bytes of a format: its kind, with the bad value, and its position. Each format
/// has its own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Located<K> {
    /// What is wrong.
    pub kind: K,
    /// Offset in bytes from the start of the data.
    pub offset: u64,
}

impl<K> Located<K> {
    /// An error at an index of the data.
    #[cold]
    pub fn new(kind: K, offset: usize) -> Self {
        Self::at(kind, offset as u64)
    }

    /// An error at an offset that the data states.
    #[inline]
    pub const fn at(kind: K, offset: u64) -> Self {
        Located { kind, offset }
    }

    /// The same error, at an offset that is `by` bytes larger.
    #[must_use]
    pub fn shifted(self, by: usize) -> Self {
        let offset = self.offset.saturating_add(by as u64);
        Located { offset, ..self }
    }
}

impl<K: From<ErrorKind>> From<Error> for Located<K> {
    #[cold]
    fn from(error: Error) -> Self {
        Self::at(error.kind.into(), error.offset)
    }
}

impl<K: core::fmt::Display> core::fmt::Display for Located<K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} at offset {:#x}", self.kind, self.offset)
    }
}

impl<K: core::fmt::Debug + core::fmt::Display> core::error::Error for Located<K> {}

/// The result of a read.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Bytes and their order: reads at any offset.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    data: &'a [u8],
    endian: Endian,
}

macro_rules! integers {
    ($($name:ident: $type:ty, $bytes:literal;)*) => {
        $(
            #[doc = concat!("Reads `", stringify!($type), "` at byte `offset`.")]
            #[inline]
            pub fn $name(&self, offset: usize) -> Result<$type> {
                let raw: [u8; $bytes] = self.array(offset)?;
                Ok(match self.endian {
                    Endian::Little => <$type>::from_le_bytes(raw),
                    Endian::Big => <$type>::from_be_bytes(raw),
                })
            }
        )*
    };
}

impl<'a> Bytes<'a> {
    /// Views `data` in the given byte order.
    #[inline]
    pub const fn new(data: &'a [u8], endian: Endian) -> Self {
        Bytes { data, endian }
    }

    /// The bytes themselves.
    #[inline]
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Their order.
    #[inline]
    pub const fn endian(&self) -> Endian {
        self.endian
    }

    /// How many bytes there are.
    #[inline]
    pub const fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Copies `N` bytes at `offset`.
    #[inline]
    pub fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        match self.data.get(offset..).and_then(|tail| tail.first_chunk::<N>()) {
            Some(chunk) => Ok(*chunk),
            None => Err(self.truncated(offset, N)),
        }
    }

    /// Borrows `len` bytes at `offset`.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<&'a [u8]> {
        offset
            .checked_add(len)
            .and_then(|end| self.data.get(offset..end))
            .ok_or_else(|| self.truncated(offset, len))
    }

    integers! {
        u8: u8, 1; i8: i8, 1;
        u16: u16, 2; i16: i16, 2;
        u32: u32, 4; i32: i32, 4;
        u64: u64, 8; i64: i64, 8;
    }

    /// A cursor at byte `offset`; reads past the end fail where they happen.
    #[inline]
    pub fn cursor(&self, offset: usize) -> Cursor<'a> {
        Cursor::new(*self, offset)
    }

    #[cold]
    fn truncated(&self, offset: usize, wanted: usize) -> Error {
        let end = (offset as u64).saturating_add(wanted as u64);
        Error {
            kind: ErrorKind::Truncated {
                missing: end.saturating_sub(self.data.len() as u64),
            },
            offset: offset as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders() {
        let raw = [1, 2, 3, 4, 5, 6, 7, 0x88];
        let little = Bytes::new(&raw, Endian::Little);
        let big = Bytes::new(&raw, Endian::Big);
        assert_eq!(little.u16(0).unwrap(), 0x0201);
        assert_eq!(big.u16(0).unwrap(), 0x0102);
        assert_eq!(little.u64(0).unwrap(), 0x8807_0605_0403_0201);
        assert_eq!(little.i8(7).unwrap(), -0x78);
        assert_eq!(big.i32(4).unwrap(), 0x0506_0788);
    }

    #[test]
    fn past_the_end_says_where_and_how_much() {
        let bytes = Bytes::new(&[0; 5], Endian::Little);
        let error = bytes.u32(3).unwrap_err();
        assert_eq!(error.offset, 3);
        assert_eq!(error.kind, ErrorKind::Truncated { missing: 2 });
        assert!(bytes.u8(usize::MAX).is_err());
        assert!(bytes.slice(2, usize::MAX).is_err());
        assert_eq!(bytes.slice(5, 0).unwrap(), &[] as &[u8]);
    }
}
