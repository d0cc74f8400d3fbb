//! Bit ranges. Bit 0 of little-endian data is the lowest bit of the first byte; of big-endian data,
//! the highest (Common Trace Format 1.8, section 4.1.5: consecutive bit fields fill a byte from
//! that end).

use crate::{Endian, Error, ErrorKind, Result};

/// Reads `width` bits (0 to 64) that begin `bit_offset` bits into `data`, zero-extended.
#[expect(clippy::arithmetic_side_effects, reason = "`first` is below 8, `width` from 1 to 64")]
#[inline]
pub fn read_bits(data: &[u8], bit_offset: u64, width: u32, endian: Endian) -> Result<u64> {
    // Nearly always, the eight bytes from the first one on exist and contain all bits.
    let first = (bit_offset % 8) as u32;
    if let Some(window) = data.get((bit_offset / 8) as usize..).and_then(<[u8]>::first_chunk::<8>)
        && (1..=64).contains(&width)
        && first + width <= 64
    {
        return Ok(match endian {
            Endian::Little => (u64::from_le_bytes(*window) >> first) & (u64::MAX >> (64 - width)),
            Endian::Big => (u64::from_be_bytes(*window) << first) >> (64 - width),
        });
    }
    read_bits_bytewise(data, bit_offset, width, endian)
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the range is checked first; `done` stays below `width`"
)]
fn read_bits_bytewise(data: &[u8], bit_offset: u64, width: u32, endian: Endian) -> Result<u64> {
    check_range(data.len(), bit_offset, width)?;
    let mut value = 0u64;
    let mut done = 0u32;
    while done < width {
        let position = bit_offset + u64::from(done);
        let byte = u64::from(data[(position / 8) as usize]);
        let first = (position % 8) as u32;
        let take = (8 - first).min(width - done);
        let mask = (1u64 << take) - 1;
        match endian {
            Endian::Little => value |= ((byte >> first) & mask) << done,
            Endian::Big => value = (value << take) | ((byte >> (8 - first - take)) & mask),
        }
        done += take;
    }
    Ok(value)
}

/// Writes the low `width` bits of `value` where [`read_bits`] reads them; surrounding bits keep
/// their values.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the range is checked first; `done` stays below `width`"
)]
pub fn write_bits(data: &mut [u8], bit_offset: u64, width: u32, endian: Endian, value: u64) -> Result<()> {
    check_range(data.len(), bit_offset, width)?;
    let mut done = 0u32;
    while done < width {
        let position = bit_offset + u64::from(done);
        let byte = &mut data[(position / 8) as usize];
        let first = (position % 8) as u32;
        let take = (8 - first).min(width - done);
        let mask = ((1u16 << take) - 1) as u8;
        let (shift, part) = match endian {
            Endian::Little => (first, value >> done),
            Endian::Big => (8 - first - take, value >> (width - done - take)),
        };
        *byte = *byte & !(mask << shift) | ((part as u8) & mask) << shift;
        done += take;
    }
    Ok(())
}

/// Extends the sign of the low `width` bits (1 to 64) of `value`.
#[inline]
pub const fn sign_extend(value: u64, width: u32) -> i64 {
    if width == 0 || width >= 64 {
        return value as i64;
    }
    let unused = 64u32.saturating_sub(width);
    ((value << unused) as i64) >> unused
}

fn check_range(len: usize, bit_offset: u64, width: u32) -> Result<()> {
    if width > 64 {
        return Err(Error {
            kind: ErrorKind::BitWidth(width),
            offset: bit_offset / 8,
        });
    }
    let end = bit_offset.saturating_add(u64::from(width)).div_ceil(8);
    if end > len as u64 {
        return Err(Error {
            kind: ErrorKind::Truncated {
                missing: end.saturating_sub(len as u64),
            },
            offset: bit_offset / 8,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_and_twenty_seven_bits_in_both_orders() {
        let little = 0x1234_5678u32.to_le_bytes();
        assert_eq!(read_bits(&little, 0, 5, Endian::Little).unwrap(), 0x1234_5678 & 31);
        assert_eq!(read_bits(&little, 5, 27, Endian::Little).unwrap(), 0x1234_5678 >> 5);
        let big = 0x1234_5678u32.to_be_bytes();
        assert_eq!(read_bits(&big, 0, 5, Endian::Big).unwrap(), 0x1234_5678 >> 27);
        assert_eq!(read_bits(&big, 5, 27, Endian::Big).unwrap(), 0x1234_5678 & 0x7ff_ffff);
    }

    #[test]
    fn written_bits_are_read_and_the_others_stay() {
        for endian in [Endian::Little, Endian::Big] {
            for offset in 0..20 {
                for width in 0..=64 {
                    let mut data = [0xa5u8; 16];
                    let value = 0x0123_4567_89ab_cdefu64;
                    write_bits(&mut data, offset, width, endian, value).unwrap();
                    let kept = if width == 64 { value } else { value & ((1 << width) - 1) };
                    assert_eq!(read_bits(&data, offset, width, endian).unwrap(), kept);
                    let before = read_bits(&data, 0, offset as u32, endian).unwrap();
                    assert_eq!(before, read_bits(&[0xa5; 16], 0, offset as u32, endian).unwrap());
                    let after = offset + u64::from(width);
                    assert_eq!(
                        read_bits(&data, after, 40, endian).unwrap(),
                        read_bits(&[0xa5; 16], after, 40, endian).unwrap()
                    );
                }
            }
        }
    }

    #[test]
    fn both_ways_of_reading_agree() {
        let data: [u8; 24] = core::array::from_fn(|index| (index as u8).wrapping_mul(0x9d) ^ 0x5a);
        for endian in [Endian::Little, Endian::Big] {
            for offset in 0..data.len() as u64 * 8 + 8 {
                for width in 0..=66 {
                    let bytewise = read_bits_bytewise(&data, offset, width, endian);
                    assert_eq!(read_bits(&data, offset, width, endian), bytewise);
                }
            }
        }
    }

    #[test]
    fn out_of_range() {
        assert!(read_bits(&[0; 4], 1, 32, Endian::Big).is_err());
        assert!(read_bits(&[0; 4], u64::MAX, 32, Endian::Big).is_err());
        assert!(read_bits(&[0; 40], 0, 65, Endian::Big).is_err());
        assert_eq!(sign_extend(0x1f, 5), -1);
        assert_eq!(sign_extend(0x0f, 5), 15);
    }
}
