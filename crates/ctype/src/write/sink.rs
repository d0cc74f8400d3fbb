//! Writing integers as bytes.

use backtrail_wire::Endian;

/// A growing buffer, and the byte order of the integers written to it.
pub(super) struct Sink {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Sink {
    pub(super) fn new(endian: Endian) -> Self {
        Sink {
            bytes: Vec::new(),
            endian,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn u16(&mut self, value: u16) {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.bytes(&bytes);
    }

    pub(super) fn u32(&mut self, value: u32) {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.bytes(&bytes);
    }
}
