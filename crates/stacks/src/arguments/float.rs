//! Floats as text: in decimal, or in C's hexadecimal if they have more digits than `f64`.

use std::fmt::Debug;

/// A number with as few digits as distinguish it from all others.
pub(super) fn shortest(number: impl Debug) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// The 80-bit format of x87 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
/// 1, section 4.2.2), in the lowest ten bytes.
pub(super) fn x87(bits: u128) -> String {
    let exponent = (bits >> 64) as u32 & 0x7fff;
    let significand = bits as u64;
    let fraction = significand << 1;
    match exponent {
        0x7fff => special(bits >> 79 & 1 == 1, fraction != 0),
        // The integer bit is part of the significand.
        _ => finite(
            bits >> 79 & 1 == 1,
            significand.into(),
            exponent.max(1) as i32 - 16383 - 63,
        ),
    }
}

/// IEEE 754's binary128.
pub(super) fn binary128(bits: u128) -> String {
    let exponent = (bits >> 112) as u32 & 0x7fff;
    let fraction = bits & ((1 << 112) - 1);
    let significand = fraction | u128::from(exponent != 0) << 112;
    match exponent {
        0x7fff => special(bits >> 127 == 1, fraction != 0),
        _ => finite(bits >> 127 == 1, significand, exponent.max(1) as i32 - 16383 - 112),
    }
}

fn special(is_negative: bool, is_nan: bool) -> String {
    let sign = if is_negative { "-" } else { "" };
    let name = if is_nan { "NaN" } else { "inf" };
    format!("{sign}{name}")
}

/// `significand` times two to the power of `exponent`.
fn finite(is_negative: bool, significand: u128, exponent: i32) -> String {
    let sign = if is_negative { "-" } else { "" };
    if significand == 0 {
        return format!("{sign}0");
    }
    let zeros = significand.trailing_zeros();
    let (significand, exponent) = (significand >> zeros, exponent + zeros as i32);
    let bits = u128::BITS - significand.leading_zeros();
    let highest = exponent + bits as i32 - 1;
    if bits > f64::MANTISSA_DIGITS || !(f64::MIN_EXP - 1..f64::MAX_EXP).contains(&highest) {
        return format!("{sign}{significand:#x}p{exponent}");
    }
    let fraction = (significand as u64) << (f64::MANTISSA_DIGITS - bits);
    let biased = (highest + f64::MAX_EXP - 1) as u64;
    let number = f64::from_bits(biased << 52 | fraction & ((1 << 52) - 1));
    format!("{sign}{}", shortest(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_c_makes_of_them() {
        assert_eq!([1.0f64, -0.5, 1e300].map(shortest), ["1", "-0.5", "1e300"]);
        // What gcc stores for 1.25L, 0.1L, -3.0L, 1e4000L, infinity and zero.
        let of_x87 = [
            (0x3fff_a000_0000_0000_0000, "1.25"),
            (0x3ffb_cccc_cccc_cccc_cccd, "0xcccccccccccccccdp-67"),
            (0xc000_c000_0000_0000_0000, "-3"),
            (0x7fff_8000_0000_0000_0000, "inf"),
            (0, "0"),
        ];
        for (bits, text) in of_x87 {
            assert_eq!(x87(bits), text);
        }
        let of_128 = [
            (0x3fff_4000_0000_0000_0000_0000_0000_0000, "1.25"),
            (
                0x3ffb_9999_9999_9999_9999_9999_9999_999a,
                "0xcccccccccccccccccccccccccccdp-115",
            ),
            (0xc000_8000_0000_0000_0000_0000_0000_0000, "-3"),
            (0xffff_8000_0000_0000_0000_0000_0000_0000, "-NaN"),
        ];
        for (bits, text) in of_128 {
            assert_eq!(binary128(bits), text);
        }
    }
}
