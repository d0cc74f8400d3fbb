//! Shared pieces of lines, and functions that examine eight bytes at a time.

/// Appends the first `len` of these bytes. It copies all of them, which is cheaper than copying
/// `len`.
#[inline]
pub(super) fn put<const N: usize>(text: &mut Vec<u8>, bytes: &[u8; N], len: usize) {
    let end = text.len() + len;
    text.extend_from_slice(bytes);
    text.truncate(end);
}

/// A piece of text that many lines share. A short one is copied as a constant number of bytes.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    start: [u8; Piece::SHORT],
    all: Box<[u8]>,
}

impl Piece {
    const SHORT: usize = 32;

    pub(super) fn new(text: Vec<u8>) -> Piece {
        let mut start = [0; Piece::SHORT];
        start.iter_mut().zip(&text).for_each(|(place, &byte)| *place = byte);
        Piece {
            start,
            all: text.into(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    #[inline]
    pub(super) fn append(&self, text: &mut Vec<u8>) {
        match self.all.len() {
            short @ ..=Piece::SHORT => put(text, &self.start, short),
            _ => text.extend_from_slice(&self.all),
        }
    }
}

impl Default for Piece {
    fn default() -> Piece {
        Piece::new(Vec::new())
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// The highest bit of each of eight bytes.
pub(super) const HIGHEST: u64 = 0x80 * ONES;

/// Sets the highest bit of the first of eight bytes that is below a limit of at most 0x80, or no
/// bit if none is.
#[inline]
pub(super) const fn below(bytes: u64, limit: u8) -> u64 {
    bytes.wrapping_sub(limit as u64 * ONES) & !bytes
}

/// Sets the highest bit of the first of eight bytes that equals this one, or no bit if none does.
#[inline]
pub(super) const fn equal(bytes: u64, byte: u8) -> u64 {
    below(bytes ^ (byte as u64 * ONES), 1)
}
