//! LEB128 (DWARF 5, section 7.6). Longer encodings than needed are accepted as long as the value
//! fits into 64 bits.
#![expect(clippy::arithmetic_side_effects, reason = "they count bytes in memory")]

use crate::{Bytes, Error, ErrorKind, Result};

/// The longest encoding of a 64-bit number, in bytes.
pub const MAX_LEB128_BYTES: usize = 10;

pub(crate) fn read_unsigned(bytes: Bytes<'_>, start: usize) -> Result<(u64, usize)> {
    let mut value = 0u64;
    let mut shift = 0u32;
    let mut offset = start;
    loop {
        let byte = bytes.u8(offset)?;
        offset += 1;
        let low = u64::from(byte & 0x7f);
        // Bits past the 64th may only be padding.
        if shift < 64 && (low << shift) >> shift == low {
            value |= low << shift;
        } else if low != 0 {
            return Err(overflow(start));
        }
        if byte & 0x80 == 0 {
            return Ok((value, offset - start));
        }
        shift = shift.saturating_add(7);
    }
}

pub(crate) fn read_signed(bytes: Bytes<'_>, start: usize) -> Result<(i64, usize)> {
    let mut value = 0i64;
    let mut shift = 0u32;
    let mut offset = start;
    loop {
        let byte = bytes.u8(offset)?;
        offset += 1;
        let low = byte & 0x7f;
        if shift < 63 {
            value |= i64::from(low) << shift;
        } else if shift == 63 {
            // Only the sign bit is left; the group must be its extension.
            if low != 0 && low != 0x7f {
                return Err(overflow(start));
            }
            value |= i64::from(low & 1) << 63;
        } else if low != if value < 0 { 0x7f } else { 0 } {
            return Err(overflow(start));
        }
        shift = shift.saturating_add(7);
        if byte & 0x80 == 0 {
            if shift < 64 && byte & 0x40 != 0 {
                value |= -1i64 << shift;
            }
            return Ok((value, offset - start));
        }
    }
}

/// Writes `value` as unsigned LEB128 at the start of `out` and returns its length; `None` if `out`
/// is too short.
pub fn write_uleb128(out: &mut [u8], mut value: u64) -> Option<usize> {
    let mut len = 0;
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        let more = value != 0;
        *out.get_mut(len)? = low | if more { 0x80 } else { 0 };
        len += 1;
        if !more {
            return Some(len);
        }
    }
}

/// Writes `value` as signed LEB128 at the start of `out` and returns its length; `None` if `out` is
/// too short.
pub fn write_sleb128(out: &mut [u8], mut value: i64) -> Option<usize> {
    let mut len = 0;
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        let more = !(value == 0 && low & 0x40 == 0 || value == -1 && low & 0x40 != 0);
        *out.get_mut(len)? = low | if more { 0x80 } else { 0 };
        len += 1;
        if !more {
            return Some(len);
        }
    }
}

#[cold]
fn overflow(start: usize) -> Error {
    Error {
        kind: ErrorKind::LebOverflow,
        offset: start as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endian;

    fn unsigned(raw: &[u8]) -> Result<(u64, usize)> {
        read_unsigned(Bytes::new(raw, Endian::Little), 0)
    }

    fn signed(raw: &[u8]) -> Result<(i64, usize)> {
        read_signed(Bytes::new(raw, Endian::Little), 0)
    }

    #[test]
    fn examples_of_dwarf_5_figure_22_and_23() {
        for (value, raw) in [
            (2u64, &[2u8][..]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (129, &[0x81, 1]),
            (12857, &[0xb9, 0x64]),
        ] {
            assert_eq!(unsigned(raw).unwrap(), (value, raw.len()));
        }
        for (value, raw) in [
            (2i64, &[2u8][..]),
            (-2, &[0x7e]),
            (127, &[0xff, 0]),
            (-127, &[0x81, 0x7f]),
            (128, &[0x80, 1]),
            (-129, &[0xff, 0x7e]),
        ] {
            assert_eq!(signed(raw).unwrap(), (value, raw.len()));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for value in [0, 1, 63, 64, 127, 128, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            let mut out = [0; MAX_LEB128_BYTES];
            let len = write_uleb128(&mut out, value).unwrap();
            assert_eq!(unsigned(&out[..len]).unwrap(), (value, len));
            let value = value as i64;
            for value in [value, value.wrapping_neg()] {
                let len = write_sleb128(&mut out, value).unwrap();
                assert_eq!(signed(&out[..len]).unwrap(), (value, len));
            }
        }
    }

    #[test]
    fn overlong_is_accepted_and_too_wide_is_not() {
        assert_eq!(unsigned(&[0x81, 0x80, 0x80, 0]).unwrap(), (1, 4));
        assert!(unsigned(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).is_err());
        assert!(signed(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1]).is_err());
        assert!(unsigned(&[0x80, 0x80]).is_err());
    }
}
