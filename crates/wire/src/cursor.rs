//! Sequential reads.

use crate::{Bytes, Error, ErrorKind, Result, leb128};

/// A position in [`Bytes`] that moves with every read. A failed read leaves it where it was.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: Bytes<'a>,
    offset: usize,
}

macro_rules! integers {
    ($($name:ident: $type:ty;)*) => {
        $(
            #[doc = concat!("Reads the next `", stringify!($type), "`.")]
            #[inline]
            pub fn $name(&mut self) -> Result<$type> {
                let value = self.bytes.$name(self.offset)?;
                self.offset += size_of::<$type>();
                Ok(value)
            }
        )*
    };
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a read that succeeded ends within the data"
)]
impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: Bytes<'a>, offset: usize) -> Self {
        Cursor { bytes, offset }
    }

    /// Offset of the next read, in bytes from the start of the data.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of bytes left.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.offset)
    }

    /// Whether nothing is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    integers! {
        u8: u8; i8: i8; u16: u16; i16: i16; u32: u32; i32: i32; u64: u64; i64: i64;
    }

    /// Borrows the next `len` bytes.
    #[inline]
    pub fn slice(&mut self, len: usize) -> Result<&'a [u8]> {
        let slice = self.bytes.slice(self.offset, len)?;
        self.offset += len;
        Ok(slice)
    }

    /// The next unsigned LEB128 number (DWARF 5, section 7.6).
    pub fn uleb128(&mut self) -> Result<u64> {
        let (value, len) = leb128::read_unsigned(self.bytes, self.offset)?;
        self.offset += len;
        Ok(value)
    }

    /// The next signed LEB128 number (DWARF 5, section 7.6).
    pub fn sleb128(&mut self) -> Result<i64> {
        let (value, len) = leb128::read_signed(self.bytes, self.offset)?;
        self.offset += len;
        Ok(value)
    }

    /// The next bytes up to a zero byte, which is consumed but not returned.
    pub fn c_str(&mut self) -> Result<&'a [u8]> {
        let tail = self.bytes.slice(self.offset, self.remaining())?;
        let Some(len) = tail.iter().position(|&byte| byte == 0) else {
            return Err(Error {
                kind: ErrorKind::Unterminated,
                offset: self.offset as u64,
            });
        };
        self.offset += len + 1;
        Ok(&tail[..len])
    }
}

#[cfg(test)]
mod tests {
    use crate::{Bytes, Endian};

    #[test]
    fn a_failed_read_does_not_move() {
        let mut cursor = Bytes::new(b"ab\0cd", Endian::Big).cursor(0);
        assert_eq!(cursor.c_str().unwrap(), b"ab");
        assert_eq!(cursor.offset(), 3);
        assert!(cursor.c_str().is_err());
        assert!(cursor.u32().is_err());
        assert_eq!(cursor.u16().unwrap(), u16::from_be_bytes(*b"cd"));
        assert!(cursor.is_empty());
        assert!(Bytes::new(b"", Endian::Big).cursor(9).c_str().is_err());
    }
}
