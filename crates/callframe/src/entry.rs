//! CIEs and FDEs, and finding the FDE of an address (LSB 5.0, sections 10.6.1 and 10.6.2).

use crate::reader::{Cursor, Reader, Source};

/// How the FDE of an address is found.
#[derive(Clone, Copy, Debug)]
pub enum Search<'t> {
    /// By the sorted table of the `.eh_frame_hdr` at this address.
    Header(u64),
    /// By a sorted list of function starts and the addresses of their FDEs.
    List(&'t [(u64, u64)]),
}

/// Encodings of nearly every `.eh_frame_hdr`: a 4-byte count, and entries of two 4-byte values
/// relative to the header.
const UDATA4: u8 = 0x03;
const DATAREL_SDATA4: u8 = 0x3b;
/// Longer CIEs and FDEs are rejected.
const LONGEST: u64 = 1 << 24;
/// Room for the fields of `.eh_frame_hdr` before its table.
const HEADER_FIELDS: u64 = 20;

/// Whether the `.eh_frame_hdr` at this address has a searchable table.
pub fn is_searchable(header: u64, source: &mut impl Source) -> bool {
    table(header, &mut Reader::new(source)).is_some_and(|(_, count)| count > 0)
}

/// Where the table of `.eh_frame_hdr` begins, and how many entries it has.
fn table<S: Source>(header: u64, reader: &mut Reader<'_, S>) -> Option<(u64, u64)> {
    let mut cursor = Cursor {
        at: header,
        end: header.checked_add(HEADER_FIELDS)?,
    };
    let [version, pointer, count, entries] = reader.u32(&mut cursor)?.to_ne_bytes();
    if (version, count, entries) != (1, UDATA4, DATAREL_SDATA4) {
        return None;
    }
    reader.pointer(&mut cursor, pointer, Some(header))?;
    let count = reader.u32(&mut cursor)?;
    Some((cursor.at, count.into()))
}

impl Search<'_> {
    /// The address of the last FDE that begins at or before `pc`.
    pub(crate) fn find<S: Source>(&self, pc: u64, reader: &mut Reader<'_, S>) -> Option<u64> {
        match self {
            Search::Header(header) => search(*header, pc, reader),
            Search::List(starts) => {
                let after = starts.partition_point(|(start, _)| *start <= pc);
                starts.get(after.checked_sub(1)?).map(|(_, fde)| *fde)
            }
        }
    }
}

fn search<S: Source>(header: u64, pc: u64, reader: &mut Reader<'_, S>) -> Option<u64> {
    let (table, count) = table(header, reader)?;
    let mut entry = |index: u64| {
        let at = table.wrapping_add(index.wrapping_mul(8));
        let mut cursor = Cursor {
            at,
            end: at.checked_add(8)?,
        };
        let start = reader.pointer(&mut cursor, DATAREL_SDATA4, Some(header))?;
        Some((start, reader.pointer(&mut cursor, DATAREL_SDATA4, Some(header))?))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = u64::midpoint(low, high);
        match entry(middle)?.0 <= pc {
            true => low = middle.saturating_add(1),
            false => high = middle,
        }
    }
    Some(entry(low.checked_sub(1)?)?.1)
}

/// What a CIE says about its FDEs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cie {
    pub(crate) code_align: u64,
    pub(crate) data_align: i64,
    pub(crate) ra: u8,
    pub(crate) signal_frame: bool,
    /// Encoding of addresses in its FDEs.
    pub(crate) encoding: u8,
    /// Encoding of the addresses of language-specific data.
    lsda: u8,
    /// Where the personality routine's address is.
    pub(crate) personality: Option<Encoded>,
    has_augmentation: bool,
    pub(crate) instructions: Cursor,
}

/// The description of a function's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde {
    pub(crate) cie: Cie,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where the address of the language-specific data is.
    pub(crate) lsda: Option<Encoded>,
    pub(crate) instructions: Cursor,
}

/// The content of the CIE or FDE at this address, after its length.
fn content<S: Source>(at: u64, reader: &mut Reader<'_, S>) -> Option<Cursor> {
    let mut length = Cursor {
        at,
        end: at.checked_add(4)?,
    };
    let bytes = u64::from(reader.u32(&mut length)?);
    let end = length.at.checked_add(bytes)?;
    ((4..LONGEST).contains(&bytes)).then_some(Cursor { at: length.at, end })
}

/// `DW_EH_PE_omit`: there is no pointer.
const OMITTED: u8 = 0xff;

/// A pointer that is read only if somebody asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded {
    at: Cursor,
    encoding: u8,
}

impl Encoded {
    /// The pointer; 0 if it is 0 before it is made relative, or cannot be read.
    pub(crate) fn read<S: Source>(&self, reader: &mut Reader<'_, S>) -> u64 {
        self.followed(reader).unwrap_or(0)
    }

    fn followed<S: Source>(&self, reader: &mut Reader<'_, S>) -> Option<u64> {
        const INDIRECT: u8 = 0x80;
        let (mut absolute, mut cursor) = (self.at, self.at);
        if reader.pointer(&mut absolute, self.encoding & 0x0f, None)? == 0 {
            return None;
        }
        let address = reader.pointer(&mut cursor, self.encoding & !INDIRECT, None)?;
        match self.encoding & INDIRECT {
            0 => Some(address),
            _ => reader.u64(&mut Cursor {
                at: address,
                end: address.checked_add(8)?,
            }),
        }
    }
}

impl Fde {
    pub(crate) fn read<S: Source>(at: u64, reader: &mut Reader<'_, S>) -> Option<Fde> {
        let mut cursor = content(at, reader)?;
        let place = cursor.at;
        let back = u64::from(reader.u32(&mut cursor)?);
        if back == 0 {
            return None;
        }
        let cie = Cie::read(place.checked_sub(back)?, reader)?;
        let start = reader.pointer(&mut cursor, cie.encoding, None)?;
        let length = reader.pointer(&mut cursor, cie.encoding & 0x0f, None)?;
        let mut lsda = None;
        if cie.has_augmentation {
            let bytes = reader.uleb(&mut cursor)?;
            let (at, encoding) = (cursor.skip(bytes)?, cie.lsda);
            lsda = (encoding != OMITTED).then_some(Encoded { at, encoding });
        }
        Some(Fde {
            cie,
            start,
            end: start.checked_add(length)?,
            lsda,
            instructions: cursor,
        })
    }
}

impl Fde {
    /// An expression at an offset from the instructions.
    pub(crate) fn expression(&self, bytes: u16, at: i32) -> Cursor {
        let at = self.instructions.at.wrapping_add_signed(at.into());
        Cursor {
            at,
            end: at.saturating_add(bytes.into()),
        }
    }
}

impl Cie {
    fn read<S: Source>(at: u64, reader: &mut Reader<'_, S>) -> Option<Cie> {
        const LONGEST_AUGMENTATION: usize = 8;
        let mut cursor = content(at, reader)?;
        let (id, version) = (reader.u32(&mut cursor)?, reader.u8(&mut cursor)?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let mut augmentation = [0; LONGEST_AUGMENTATION];
        let mut letters = 0;
        loop {
            match reader.u8(&mut cursor)? {
                0 => break,
                letter => *augmentation.get_mut(letters)? = letter,
            }
            letters = letters.saturating_add(1);
        }
        let code_align = reader.uleb(&mut cursor)?;
        let data_align = reader.sleb(&mut cursor)?;
        let ra = match version {
            1 => reader.u8(&mut cursor)?,
            _ => u8::try_from(reader.uleb(&mut cursor)?).ok()?,
        };
        let mut cie = Cie {
            code_align,
            data_align,
            ra,
            signal_frame: false,
            encoding: 0,
            lsda: OMITTED,
            personality: None,
            has_augmentation: letters > 0,
            instructions: cursor,
        };
        let Some((b'z', letters)) = augmentation.get(..letters)?.split_first() else {
            return (letters == 0).then_some(cie);
        };
        let bytes = reader.uleb(&mut cursor)?;
        let mut data = cursor.skip(bytes)?;
        for letter in letters {
            match letter {
                b'R' => cie.encoding = reader.u8(&mut data)?,
                b'L' => cie.lsda = reader.u8(&mut data)?,
                b'P' => {
                    let encoding = reader.u8(&mut data)?;
                    cie.personality = Some(Encoded { at: data, encoding });
                    reader.pointer(&mut data, encoding & 0x0f, None)?;
                }
                b'S' => cie.signal_frame = true,
                // AArch64: signed with key B, tagged memory.
                b'B' | b'G' => {}
                _ => return None,
            }
        }
        cie.instructions = cursor;
        Some(cie)
    }
}

/// The FDEs of a section in order: each one's start and its own address.
#[derive(Debug)]
pub struct Entries<'s, S> {
    source: &'s mut S,
    at: u64,
    end: u64,
}

impl<'s, S: Source> Entries<'s, S> {
    /// Those of the `.eh_frame` at these addresses.
    pub fn new(at: u64, end: u64, source: &'s mut S) -> Self {
        Entries { source, at, end }
    }
}

impl<S: Source> Iterator for Entries<'_, S> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        while self.at < self.end {
            let mut reader = Reader::new(self.source);
            let (entry, content) = (self.at, content(self.at, &mut reader)?);
            self.at = content.end;
            if let Some(fde) = Fde::read(entry, &mut reader) {
                return Some((fde.start, entry));
            }
        }
        None
    }
}
