//! Fixed-size records.

use crate::{Bytes, Endian, Result};

/// `N` bytes whose length was checked once, so that reads at constant offsets cannot fail.
///
/// Borrowed rather than copied: compilers load a copy in other pieces than it was stored in, and
/// the loads then wait for the stores.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a, const N: usize> {
    raw: &'a [u8; N],
    endian: Endian,
}

macro_rules! fields {
    ($($name:ident: $type:ty, $bytes:literal;)*) => {
        $(
            #[doc = concat!("The `", stringify!($type), "` at byte `AT`; does not compile where that is past the end.")]
            #[inline(always)]
            pub fn $name<const AT: usize>(&self) -> $type {
                const { assert!(AT + $bytes <= N) };
                let raw = match self.raw.get(AT..).and_then(|tail| tail.first_chunk()) {
                    Some(raw) => *raw,
                    None => [0; $bytes],
                };
                match self.endian {
                    Endian::Little => <$type>::from_le_bytes(raw),
                    Endian::Big => <$type>::from_be_bytes(raw),
                }
            }
        )*
    };
}

impl<const N: usize> Record<'_, N> {
    /// Byte `AT`. An offset past the end does not compile.
    #[expect(clippy::indexing_slicing, reason = "the compiler has checked it")]
    #[inline(always)]
    pub const fn u8<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) };
        self.raw[AT]
    }

    fields! {
        u16: u16, 2; i16: i16, 2;
        u32: u32, 4; i32: i32, 4;
        u64: u64, 8; i64: i64, 8;
    }
}

impl<'a> Bytes<'a> {
    /// The `N` bytes at `offset`.
    #[inline(always)]
    pub fn record<const N: usize>(&self, offset: usize) -> Result<Record<'a, N>> {
        match self.data.get(offset..).and_then(|tail| tail.first_chunk()) {
            Some(raw) => Ok(Record {
                raw,
                endian: self.endian,
            }),
            None => Err(self.truncated(offset, N)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_both_byte_orders() {
        let raw = [1, 2, 3, 4, 5, 6, 7, 0x88, 9];
        let little = Bytes::new(&raw, Endian::Little).record::<8>(1).unwrap();
        let big = Bytes::new(&raw, Endian::Big).record::<8>(1).unwrap();
        assert_eq!(little.u16::<0>(), 0x0302);
        assert_eq!(big.u16::<6>(), 0x8809);
        assert_eq!(little.u8::<6>(), 0x88);
        assert_eq!(big.u64::<0>(), 0x0203_0405_0607_8809);
        assert_eq!(little.u32::<4>(), 0x0988_0706);
        assert!(Bytes::new(&raw, Endian::Big).record::<8>(2).is_err());
    }
}
