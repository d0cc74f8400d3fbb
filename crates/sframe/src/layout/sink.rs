//! Writing integers as bytes.

use alloc::vec::Vec;

use backtrail_wire::Endian;

/// A growing buffer, and the byte order of the integers written to it.
pub(crate) struct Sink {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Sink {
    pub(crate) fn new(endian: Endian) -> Self {
        Sink {
            bytes: Vec::new(),
            endian,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.ordered(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.ordered(value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.ordered(value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.ordered(value.to_le_bytes());
    }

    fn ordered<const N: usize>(&mut self, mut little: [u8; N]) {
        if self.endian == Endian::Big {
            little.reverse();
        }
        self.bytes.extend_from_slice(&little);
    }
}
