//! The wire format of protocol buffers, as far as it is written here.

/// A message being written. Numbers that are 0 and empty texts are left out, as proto3 does.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    /// `int64`, `uint64`, `int32` and `bool` fields.
    pub(crate) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, VARINT);
            self.varint(value);
        }
    }

    /// A `fixed64` field.
    pub(crate) fn fixed64(&mut self, field: u32, value: u64) {
        self.key(field, FIXED64);
        self.bytes.extend(value.to_le_bytes());
    }

    /// A repeated number, packed.
    pub(crate) fn packed(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        let mut inner = Message::default();
        values.for_each(|value| inner.varint(value));
        if !inner.bytes.is_empty() {
            self.raw(field, &inner.bytes);
        }
    }

    /// A repeated `fixed64`, packed.
    pub(crate) fn packed_fixed64(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        let bytes: Vec<u8> = values.flat_map(u64::to_le_bytes).collect();
        if !bytes.is_empty() {
            self.raw(field, &bytes);
        }
    }

    /// A text, even if it is empty: as an element it counts.
    pub(crate) fn text(&mut self, field: u32, text: &str) {
        self.raw(field, text.as_bytes());
    }

    /// A message within this one, even if it is empty.
    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.raw(field, &inner.bytes);
    }

    fn raw(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, BYTES);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }
}
