//! Bytes as hexadecimal text.

use std::fmt::{self, Write as _};

/// Why a text is not hexadecimal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HexError {
    /// An invalid character, at this line and column (from 1; columns are bytes).
    Digit { found: u8, line: usize, column: usize },
    /// The last byte has only one digit.
    Odd { digits: usize },
}

impl fmt::Display for HexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HexError::Digit { found, line, column } => {
                let found = found.escape_ascii();
                write!(f, "'{found}' is no hexadecimal digit at {line}:{column}")
            }
            HexError::Odd { digits } => write!(f, "odd number of hexadecimal digits ({digits})"),
        }
    }
}

/// Reads two digits per byte, in either case, with or without `0x` before the first; white space is
/// ignored.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<u8>, HexError> {
    let start = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let prefix = match text.get(start..start + 2) {
        Some(b"0x" | b"0X") => start..start + 2,
        _ => 0..0,
    };
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut digits = 0;
    let mut high = 0;
    let (mut line, mut line_start) = (1, 0);
    for (at, &byte) in text.iter().enumerate() {
        if byte == b'\n' {
            line += 1;
            line_start = at + 1;
        }
        if byte.is_ascii_whitespace() || prefix.contains(&at) {
            continue;
        }
        let Some(digit) = char::from(byte).to_digit(16) else {
            let column = at - line_start + 1;
            return Err(HexError::Digit {
                found: byte,
                line,
                column,
            });
        };
        if digits % 2 == 0 {
            high = digit as u8;
        } else {
            bytes.push(high << 4 | digit as u8);
        }
        digits += 1;
    }
    match digits % 2 {
        0 => Ok(bytes),
        _ => Err(HexError::Odd { digits }),
    }
}

/// Writes two lower-case digits per byte.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_white_space() {
        assert_eq!(decode(b""), Ok(vec![]));
        assert_eq!(decode(b" 0x02 18\n7F\n"), Ok(vec![2, 0x18, 0x7f]));
        assert_eq!(decode(b"0 2"), Ok(vec![2]));
        assert_eq!(encode(&[2, 0x18, 0x7f]), "02187f");
    }

    #[test]
    fn what_is_wrong_and_where() {
        let digit = |found, line, column| Err(HexError::Digit { found, line, column });
        assert_eq!(decode(b"0218\n 1g"), digit(b'g', 2, 3));
        assert_eq!(decode(b"020x18"), digit(b'x', 1, 4));
        assert_eq!(decode(b"0x"), Ok(vec![]));
        assert_eq!(decode(b"021"), Err(HexError::Odd { digits: 3 }));
        assert_eq!(
            decode(b"\xff").unwrap_err().to_string(),
            "'\\xff' is no hexadecimal digit at 1:1"
        );
    }
}
