//! Prints numbers several digits at a time: they are the largest part of a line.

use super::bytes::put;

const HUNDRED_MILLION: u64 = 100_000_000;

/// `0` in eight bytes.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight digits of a number below a hundred million, one byte each, the first one in the lowest
/// byte.
///
/// All parts are halved at once: the number into two of four digits, these into four of two, and so
/// on. The factors are reciprocals that are exact for numbers of this length.
#[inline]
const fn eight(value: u64) -> u64 {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - 10 * tens) << 8)
}

/// A number in decimal.
#[inline]
pub(super) fn decimal(text: &mut Vec<u8>, value: u64) {
    if value >= HUNDRED_MILLION {
        return long_decimal(text, value);
    }
    let digits = eight(value);
    // Keep the last digit, even if all are zero.
    let zeros = (digits | 1 << 56).trailing_zeros() / 8;
    let shown = (digits | ZEROS) >> (8 * zeros);
    put(text, &shown.to_le_bytes(), 8 - zeros as usize);
}

fn long_decimal(text: &mut Vec<u8>, value: u64) {
    decimal(text, value / HUNDRED_MILLION);
    let digits = eight(value % HUNDRED_MILLION) | ZEROS;
    text.extend_from_slice(&digits.to_le_bytes());
}

/// A number in decimal, possibly negative.
#[inline]
pub(super) fn signed(text: &mut Vec<u8>, value: i64) {
    if value < 0 {
        text.push(b'-');
    }
    decimal(text, value.unsigned_abs());
}

/// A point, and nanoseconds of a second as nine digits.
#[inline]
pub(super) fn nanoseconds(text: &mut Vec<u8>, nanoseconds: u64) {
    let [a, b, c, d, e, f, g, h] = (eight(nanoseconds % HUNDRED_MILLION) | ZEROS).to_le_bytes();
    let first = b'0' + (nanoseconds / HUNDRED_MILLION % 10) as u8;
    text.extend_from_slice(&[b'.', first, a, b, c, d, e, f, g, h]);
}

/// A number in hexadecimal with letters in upper case.
#[inline]
pub(super) fn hexadecimal(text: &mut Vec<u8>, value: u64) {
    let count = (u64::BITS - value.leading_zeros()).div_ceil(4).max(1);
    let left = value << (u64::BITS - 4 * count);
    let [high, low] = [left >> 32, left & 0xffff_ffff].map(eight_hexadecimal);
    put(
        text,
        &((u128::from(high) << 64) | u128::from(low)).to_be_bytes(),
        count as usize,
    );
}

/// The eight digits of a number of 32 bits, the first one in the highest byte.
#[inline]
const fn eight_hexadecimal(value: u64) -> u64 {
    let value = (value | (value << 16)) & 0x0000_ffff_0000_ffff;
    let value = (value | (value << 8)) & 0x00ff_00ff_00ff_00ff;
    let digits = (value | (value << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    // Letters are seven further than digits.
    let letters = ((digits + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    digits + ZEROS + letters * 7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = b"before ".to_vec();
        write(&mut text);
        String::from_utf8(text).unwrap().split_off(7)
    }

    /// Numbers of all lengths, and around every power of ten and of two.
    fn numbers() -> impl Iterator<Item = u64> {
        let tens = (0..20).map(|power| 10u64.pow(power));
        let twos = (0..64).map(|power| 1u64 << power);
        let around = tens
            .chain(twos)
            .flat_map(|near| (0..3).map(move |step| near.wrapping_add(step) - 1));
        let mut state = 1u64;
        let random = (0..20_000).map(move |index| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state ^ state >> 32) >> (index % 64)
        });
        around.chain(random).chain([u64::MAX])
    }

    #[test]
    fn decimal_numbers() {
        for value in numbers() {
            assert_eq!(text(|text| decimal(text, value)), value.to_string());
            let below = value as i64;
            assert_eq!(text(|text| signed(text, below)), below.to_string());
        }
        // Both halves of eight digits, in full.
        for half in 0..10_000u64 {
            for value in [half, half * 10_000, half * 10_000 + 9_999 - half] {
                assert_eq!(text(|text| decimal(text, value)), value.to_string());
            }
        }
    }

    #[test]
    fn fractions_of_a_second() {
        for value in numbers().map(|value| value % 1_000_000_000).chain([999_999_999]) {
            assert_eq!(text(|text| nanoseconds(text, value)), format!(".{value:09}"));
        }
    }

    #[test]
    fn hexadecimal_numbers() {
        for value in numbers() {
            assert_eq!(text(|text| hexadecimal(text, value)), format!("{value:X}"));
        }
    }
}
