//! Numbers of few bits: docs/args-format.md, "Numbers".

use backtrail_wire::{Endian, read_bits};

use crate::error::{Error, ErrorKind, Result};

/// The longest code of a length.
pub(crate) const LONGEST_CODE: u32 = 15;
/// Lengths of numbers: 0 to 64 bits.
pub(crate) const LENGTHS: usize = 65;

/// What a number is; each has codes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Offset of a name.
    Name,
    /// Id of a type.
    Type,
    /// Number of a storage.
    Storage,
    /// Code of a storage.
    Code,
    /// Flags and dict of a signature.
    Flags,
    /// How many parameters or parts there are.
    Count,
    /// Number of a parameter.
    Parameter,
    /// Kind and register of a value.
    Kind,
    /// Offset or constant.
    Offset,
    /// Number of a value, among a function's own arguments.
    Place,
    /// Number of a value, among those that a call passes.
    Entry,
    /// From a function's start to the next one's.
    Start,
    /// Number of a signature.
    Signature,
    /// For how long arguments stay where they were passed: the bits of the number of bytes.
    Prefix,
    /// How many calls a function has.
    Calls,
    /// From call to call.
    Call,
    /// Number of a list of own arguments.
    Places,
    /// Number of a list of passed arguments.
    Entries,
}

/// How many there are.
pub(crate) const STREAMS: usize = Stream::Entries as usize + 1;

/// The lengths of the codes of each stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<'a>(pub(crate) [&'a [u8]; STREAMS]);

impl<'a> Codes<'a> {
    /// For each stream how many lengths have codes, and how long each is.
    pub(crate) fn parse(bytes: &'a [u8], start: usize) -> Result<Codes<'a>> {
        let mut codes = [&[][..]; STREAMS];
        let mut at = start;
        let truncated = |at: usize| Error {
            kind: ErrorKind::Truncated(at as u64),
            offset: start as u64,
        };
        for code in &mut codes {
            let &count = bytes.get(at).ok_or(truncated(at + 1))?;
            let end = at + 1 + usize::from(count);
            *code = bytes.get(at + 1..end).ok_or(truncated(end))?;
            if let Some(&wrong) = code.iter().find(|&&len| u32::from(len) > LONGEST_CODE) {
                let kind = ErrorKind::Value(wrong.into());
                return Err(Error {
                    kind,
                    offset: at as u64,
                });
            }
            if usize::from(count) > LENGTHS {
                let kind = ErrorKind::Value(count.into());
                return Err(Error {
                    kind,
                    offset: at as u64,
                });
            }
            at = end;
        }
        Ok(Codes(codes))
    }
}

/// A place among bits, from which numbers are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) codes: Codes<'a>,
    /// Bits from the table's start.
    pub(crate) bit: u64,
}

impl Reader<'_> {
    fn take(&mut self, width: u32) -> Result<u64> {
        let value = read_bits(self.bytes, self.bit, width, Endian::Big).map_err(|_| Error {
            kind: ErrorKind::Truncated((self.bit + u64::from(width)).div_ceil(8)),
            offset: self.bit / 8,
        })?;
        self.bit += u64::from(width);
        Ok(value)
    }

    /// The next number: the code of its length in bits, and its bits but the first, which is 1.
    pub(crate) fn number(&mut self, stream: Stream) -> Result<u64> {
        let lengths = self.codes.0[stream as usize];
        let start = self.bit;
        // Canonical: codes of one length are consecutive, in the order of what they stand for.
        let (mut code, mut first) = (0u64, 0u64);
        for len in 1..=LONGEST_CODE {
            code = code << 1 | self.take(1)?;
            first <<= 1;
            let count = lengths.iter().filter(|&&other| u32::from(other) == len).count() as u64;
            if let Some(index) = code.checked_sub(first).filter(|&index| index < count) {
                let mut of_len = lengths
                    .iter()
                    .enumerate()
                    .filter(|&(_, &other)| u32::from(other) == len);
                let bits = of_len.nth(index as usize).map_or(0, |(bits, _)| bits as u32);
                return Ok(match bits {
                    0 => 0,
                    bits => 1u64.unbounded_shl(bits - 1) | self.take(bits - 1)?,
                });
            }
            first += count;
        }
        Err(Error {
            kind: ErrorKind::Code,
            offset: start / 8,
        })
    }

    /// One with a sign: 0, -1, 1, -2, 2 and so on.
    pub(crate) fn signed(&mut self, stream: Stream) -> Result<i64> {
        let number = self.number(stream)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}
