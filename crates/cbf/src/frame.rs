//! Frames and their text form, `KIND:VALUE`.

use core::fmt;
use core::str::FromStr;

use crate::WordSize;

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    /// `pc`: the address of an instruction that was about to run. Look it up unchanged.
    Pc(u64),
    /// `ra`: a return address. The call instruction is before it.
    Ra(u64),
    /// `async`: the address at which an asynchronous function will resume.
    Async(u64),
    /// `omit`: the number of frames omitted here.
    Omit(u64),
}

impl Frame {
    /// The instruction's mnemonic.
    pub const fn kind(self) -> &'static str {
        match self {
            Frame::Pc(_) => "pc",
            Frame::Ra(_) => "ra",
            Frame::Async(_) => "async",
            Frame::Omit(_) => "omit",
        }
    }

    /// The address; `None` for [`Frame::Omit`].
    pub const fn address(self) -> Option<u64> {
        match self {
            Frame::Pc(address) | Frame::Ra(address) | Frame::Async(address) => Some(address),
            Frame::Omit(_) => None,
        }
    }

    /// Whether the address or count fits into this word.
    #[inline]
    pub(crate) const fn fits(self, word: WordSize) -> bool {
        match self {
            Frame::Pc(value) | Frame::Ra(value) | Frame::Async(value) | Frame::Omit(value) => value <= word.max(),
        }
    }
}

/// Prints `pc:0x1000` or `omit:5`, which [`Frame::from_str`] reads.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Frame::Pc(value) | Frame::Ra(value) | Frame::Async(value) => write!(f, "{}:{value:#x}", self.kind()),
            Frame::Omit(count) => write!(f, "{}:{count}", self.kind()),
        }
    }
}

/// Reads `pc:ADDR`, `ra:ADDR`, `async:ADDR` and `omit:N`. Numbers are decimal, or hexadecimal with
/// a `0x` prefix.
impl FromStr for Frame {
    type Err = ParseFrameError;

    fn from_str(text: &str) -> Result<Frame, ParseFrameError> {
        let (kind, number) = text.split_once(':').ok_or(ParseFrameError::NoColon)?;
        let frame = match kind {
            "pc" => Frame::Pc,
            "ra" => Frame::Ra,
            "async" => Frame::Async,
            "omit" => Frame::Omit,
            _ => return Err(ParseFrameError::Kind),
        };
        let (digits, radix) = match number.strip_prefix("0x").or_else(|| number.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (number, 10),
        };
        // The standard parser accepts a sign, which has no meaning here.
        if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
            return Err(ParseFrameError::Number);
        }
        let value = u64::from_str_radix(digits, radix).map_err(|_| ParseFrameError::Number)?;
        Ok(frame(value))
    }
}

/// Why a string is not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseFrameError {
    /// There is no `:` between kind and number.
    NoColon,
    /// The kind is not `pc`, `ra`, `async` or `omit`.
    Kind,
    /// The number is neither decimal nor hexadecimal with `0x`, or it is wider than 64 bits.
    Number,
}

impl fmt::Display for ParseFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseFrameError::NoColon => "no ':' between kind and number",
            ParseFrameError::Kind => "the kind is none of pc, ra, async, omit",
            ParseFrameError::Number => "the number is neither decimal nor 0x and hexadecimal, of at most 64 bits",
        })
    }
}

impl core::error::Error for ParseFrameError {}

/// A frame and the number of its consecutive copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repeated {
    /// The frame.
    pub frame: Frame,
    /// The total number of copies: 1 for a frame that is not repeated, never 0.
    pub repeat: u64,
}

/// Prints `ra:0x1000`, or `ra:0x1000 (300 times)` if it is repeated.
impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frame.fmt(f)?;
        if self.repeat != 1 {
            write!(f, " ({} times)", self.repeat)?;
        }
        Ok(())
    }
}
