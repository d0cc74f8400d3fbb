//! Numbers in call frame information (DWARF 5, section 7.6; LSB 5.0, section 10.6), read from any
//! memory.

/// Where call frame information is read from.
pub trait Source {
    /// Copies words from `address` on; returns how many precede the first unreadable one.
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize;
}

/// Words that are copied at once: an FDE and its CIE mostly need fewer than two such windows.
const WINDOW: usize = 32;

/// Bytes of a [`Source`] by their addresses, in the byte order of this machine.
pub(crate) struct Reader<'s, S> {
    source: &'s mut S,
    window: [u64; WINDOW],
    at: u64,
    bytes: u64,
}

/// A range of memory, read from front to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: u64,
    pub(crate) end: u64,
}

impl Cursor {
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.end
    }

    /// Skips this many bytes, and returns them as a cursor.
    pub(crate) fn skip(&mut self, bytes: u64) -> Option<Cursor> {
        let end = self.at.checked_add(bytes).filter(|end| *end <= self.end)?;
        let skipped = Cursor { at: self.at, end };
        self.at = end;
        Some(skipped)
    }
}

const DW_EH_PE_PCREL: u8 = 0x10;
const DW_EH_PE_DATAREL: u8 = 0x30;

impl<'s, S: Source> Reader<'s, S> {
    pub(crate) fn new(source: &'s mut S) -> Self {
        Reader {
            source,
            window: [0; WINDOW],
            at: 0,
            bytes: 0,
        }
    }

    fn byte(&mut self, address: u64) -> Option<u8> {
        if address.wrapping_sub(self.at) >= self.bytes {
            self.at = address & !7;
            let words = self.source.copy(self.at, &mut self.window).min(WINDOW) as u64;
            self.bytes = words << 3;
        }
        let offset = address.wrapping_sub(self.at);
        if offset >= self.bytes {
            return None;
        }
        let word = self.window.get((offset / 8) as usize)?.to_ne_bytes();
        word.get((offset % 8) as usize).copied()
    }

    fn bytes<const COUNT: usize>(&mut self, cursor: &mut Cursor) -> Option<[u8; COUNT]> {
        let mut from = cursor.skip(COUNT as u64)?.at;
        let mut bytes = [0; COUNT];
        for byte in &mut bytes {
            *byte = self.byte(from)?;
            from = from.wrapping_add(1);
        }
        Some(bytes)
    }

    pub(crate) fn u8(&mut self, cursor: &mut Cursor) -> Option<u8> {
        self.bytes(cursor).map(u8::from_ne_bytes)
    }

    pub(crate) fn u16(&mut self, cursor: &mut Cursor) -> Option<u16> {
        self.bytes(cursor).map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self, cursor: &mut Cursor) -> Option<u32> {
        self.bytes(cursor).map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self, cursor: &mut Cursor) -> Option<u64> {
        self.bytes(cursor).map(u64::from_ne_bytes)
    }

    pub(crate) fn uleb(&mut self, cursor: &mut Cursor) -> Option<u64> {
        self.leb(cursor).map(|(value, _)| value)
    }

    pub(crate) fn sleb(&mut self, cursor: &mut Cursor) -> Option<i64> {
        let (value, bits) = self.leb(cursor)?;
        let unused = 64u32.saturating_sub(bits);
        Some((value << unused) as i64 >> unused)
    }

    /// The value, and how many bits its encoding has.
    fn leb(&mut self, cursor: &mut Cursor) -> Option<(u64, u32)> {
        let mut value = 0;
        let mut bits = 0;
        loop {
            let byte = self.u8(cursor)?;
            value |= u64::from(byte & 0x7f).unbounded_shl(bits);
            bits = bits.saturating_add(7);
            if byte & 0x80 == 0 {
                return Some((value, bits.min(64)));
            }
            if bits >= 70 {
                return None;
            }
        }
    }

    /// A pointer in one of the encodings `DW_EH_PE_*`; `data` is the base of those relative to
    /// `.eh_frame_hdr`.
    pub(crate) fn pointer(&mut self, cursor: &mut Cursor, encoding: u8, data: Option<u64>) -> Option<u64> {
        let base = match encoding & 0xf0 {
            0 => 0,
            DW_EH_PE_PCREL => cursor.at,
            DW_EH_PE_DATAREL => data?,
            _ => return None,
        };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64(cursor)?,
            0x01 => self.uleb(cursor)?,
            0x02 => u64::from(self.u16(cursor)?),
            0x03 => u64::from(self.u32(cursor)?),
            0x09 => self.sleb(cursor)? as u64,
            0x0a => i64::from(self.u16(cursor)? as i16) as u64,
            0x0b => i64::from(self.u32(cursor)? as i32) as u64,
            _ => return None,
        };
        Some(base.wrapping_add(value))
    }
}
