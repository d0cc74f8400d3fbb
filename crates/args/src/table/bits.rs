//! Variable-length numbers: docs/args-format.md, "Numbers".

use backtrail_wire::{Endian, read_bits};

use crate::error::{Error, ErrorKind, Result};

/// The longest code of a symbol, in bits.
pub(crate) const LONGEST_CODE: usize = 15;
/// Numbers below this are symbols themselves.
const DIRECT: u64 = 16;
/// Symbols of the stream of characters.
pub(crate) const SYMBOLS: usize = 256;
/// Symbols of the other streams: two for each number of bits beyond those of [`DIRECT`].
const NUMBERS: usize = 136;

/// The symbol of a number, and how many of its lowest bits follow.
pub(crate) fn symbol(stream: Stream, number: u64) -> (usize, u32) {
    if number < DIRECT || stream == Stream::Character {
        return ((number as usize).min(SYMBOLS - 1), 0);
    }
    let below = number.ilog2() - 1;
    ((number >> below) as usize % 2 + below as usize * 2 + 10, below)
}

/// The number without its lowest bits, and the number of these bits.
fn number(stream: Stream, symbol: u8) -> (u64, u32) {
    let symbol = u64::from(symbol);
    if symbol < DIRECT || stream == Stream::Character {
        return (symbol, 0);
    }
    let below = (symbol as u32 - 10) / 2;
    ((symbol % 2 + 2).unbounded_shl(below), below)
}

/// The meaning of a number; each has codes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Number of a name.
    Name,
    /// Id of a type.
    Type,
    /// Number of a storage.
    Storage,
    /// Code of a storage.
    Code,
    /// Flags and dict of a signature.
    Flags,
    /// Number of parameters.
    Parameters,
    /// A parameter.
    Parameter,
    /// Kind and register of a value.
    Kind,
    /// Offset from a register or from the canonical frame address.
    Offset,
    /// A number that is a value.
    Constant,
    /// Offset of an address.
    Address,
    /// Number of parts or steps, the size of each part in bytes, or what each step does.
    Parts,
    /// Number of a function's own arguments that have values.
    Known,
    /// A value among a function's own arguments.
    Place,
    /// Number of registers with values that a call passes.
    Passed,
    /// A value among those that a call passes.
    Entry,
    /// Distance from a function's start to the next one's.
    Start,
    /// A signature.
    Signature,
    /// How long arguments stay where they were passed: the bits of the number of bytes.
    Prefix,
    /// Number of calls in a function.
    Calls,
    /// Distance from call to call.
    Call,
    /// A list of own arguments, at a function's first call.
    FirstPlaces,
    /// The same at another call.
    Places,
    /// A list of passed arguments.
    Entries,
    /// The same if there is no list of own arguments.
    EntriesAlone,
    /// A byte of a name.
    Character,
}

/// The stream of a call's own arguments.
pub(crate) fn places_stream(is_first: bool) -> Stream {
    if is_first { Stream::FirstPlaces } else { Stream::Places }
}

/// The stream of the values that a call passes.
pub(crate) fn entries_stream(has_places: bool) -> Stream {
    if has_places {
        Stream::Entries
    } else {
        Stream::EntriesAlone
    }
}

/// The number of streams.
pub(crate) const STREAMS: usize = Stream::Character as usize + 1;

/// The codes of a stream: the number of codes of each length, and their symbols in the order of the
/// codes.
#[derive(Clone, Copy, Debug)]
struct Codes {
    counts: [u16; LONGEST_CODE + 1],
    symbols: [u8; SYMBOLS],
}

/// The codes of each stream.
#[derive(Clone, Debug)]
pub(crate) struct AllCodes([Codes; STREAMS]);

impl AllCodes {
    /// Reads, for each stream, how many symbols may have codes, and the length of each in four
    /// bits.
    pub(crate) fn parse(bytes: &[u8], start: usize) -> Result<AllCodes> {
        let mut all = AllCodes(
            [Codes {
                counts: [0; LONGEST_CODE + 1],
                symbols: [0; SYMBOLS],
            }; STREAMS],
        );
        let mut at = start;
        let truncated = |at: usize| Error {
            kind: ErrorKind::Truncated(at as u64),
            offset: start as u64,
        };
        for (stream, codes) in all.0.iter_mut().enumerate() {
            let &count = bytes.get(at).ok_or(truncated(at + 1))?;
            if usize::from(count) > NUMBERS && stream != Stream::Character as usize {
                return Err(Error {
                    kind: ErrorKind::Value(count.into()),
                    offset: at as u64,
                });
            }
            let end = at + 1 + usize::from(count).div_ceil(2);
            let lengths = bytes.get(at + 1..end).ok_or(truncated(end))?;
            codes.set(lengths, count);
            at = end;
        }
        Ok(all)
    }
}

impl Codes {
    /// Codes of the same length are in the order of their symbols.
    fn set(&mut self, lengths: &[u8], count: u8) {
        let length = |symbol: u8| {
            let both = lengths.get(usize::from(symbol / 2)).copied().unwrap_or(0);
            usize::from(if symbol.is_multiple_of(2) { both >> 4 } else { both & 15 })
        };
        for symbol in 0..count {
            self.counts[length(symbol)] += 1;
        }
        self.counts[0] = 0;
        let mut next = [0; LONGEST_CODE + 1];
        for len in 1..=LONGEST_CODE {
            next[len] = next[len - 1] + usize::from(self.counts[len - 1]);
        }
        for symbol in (0..count).filter(|&symbol| length(symbol) > 0) {
            let place = &mut next[length(symbol)];
            self.symbols[*place] = symbol;
            *place += 1;
        }
    }

    /// The symbol whose code these bits begin with, the most significant first, and the code's
    /// length.
    fn symbol(&self, window: u32) -> Option<(u8, u32)> {
        let (mut first, mut before) = (0u32, 0u32);
        for len in 1..=LONGEST_CODE {
            let count = u32::from(self.counts[len]);
            let index = (window >> (LONGEST_CODE - len)).checked_sub(first)?;
            if index < count {
                let symbol = self.symbols.get((before + index) as usize)?;
                return Some((*symbol, len as u32));
            }
            before += count;
            first = (first + count) << 1;
        }
        None
    }
}

/// A position in a bit stream, from which numbers are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'t> {
    pub(crate) bytes: &'t [u8],
    pub(crate) codes: &'t AllCodes,
    /// Offset from the table's start, in bits.
    pub(crate) bit: u64,
}

impl Reader<'_> {
    fn take(&mut self, width: u32) -> Result<u64> {
        let value = read_bits(self.bytes, self.bit, width, Endian::Big).map_err(|_| self.truncated(width))?;
        self.bit += u64::from(width);
        Ok(value)
    }

    fn truncated(&self, width: u32) -> Error {
        Error {
            kind: ErrorKind::Truncated((self.bit + u64::from(width)).div_ceil(8)),
            offset: self.bit / 8,
        }
    }

    /// As many bits as the longest code has, padded with zeros at the end of the data.
    fn window(&self) -> u32 {
        let rest = usize::try_from(self.bit / 8).ok().and_then(|at| self.bytes.get(at..));
        let rest = rest.unwrap_or_default();
        let byte = |index: usize| u32::from(rest.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        bits >> (24 - LONGEST_CODE as u64 - self.bit % 8) & ((1 << LONGEST_CODE) - 1)
    }

    /// The next number: the code of its symbol, and the bits that the symbol does not give.
    pub(crate) fn number(&mut self, stream: Stream) -> Result<u64> {
        let found = self.codes.0[stream as usize].symbol(self.window());
        let (symbol, len) = found.ok_or(Error {
            kind: ErrorKind::Code,
            offset: self.bit / 8,
        })?;
        if self.bit + u64::from(len) > self.bytes.len() as u64 * 8 {
            return Err(self.truncated(len));
        }
        self.bit += u64::from(len);
        let (number, below) = number(stream, symbol);
        Ok(if below == 0 { number } else { number | self.take(below)? })
    }

    /// The next signed number, encoded as 0, -1, 1, -2, 2 and so on.
    pub(crate) fn signed(&mut self, stream: Stream) -> Result<i64> {
        let number = self.number(stream)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}
