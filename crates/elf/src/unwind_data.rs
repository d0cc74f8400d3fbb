//! Locates the unwind tables: `.eh_frame`, `.eh_frame_hdr`, `.sframe`.

use std::borrow::Cow;

use backtrail_wire::Bytes;

use crate::constants::*;
use crate::eh_frame_search;
use crate::header::to_usize;
use crate::{Error, ErrorKind, Image, Kind, Result, Section, SectionData};

impl<'a> Image<'a> {
    /// `.eh_frame`: found by its section, otherwise by the pointer in `.eh_frame_hdr`, up to the
    /// zero terminator or the end of the segment (LSB 5.0, section 10.6). In a relocatable file,
    /// its relocations are applied. A program linked with `gcc -static` has no such pointer; if it
    /// has no section headers either, the loaded segments are searched.
    ///
    /// Fails if a relocatable file has several: no known tool makes them, and one alone would be
    /// incomplete.
    pub fn eh_frame(&self) -> Result<Option<SectionData<'a>>> {
        if self.kind() == Kind::Relocatable {
            let named = |section: &&Section<'_>| section.name == b".eh_frame" && section.size > 0;
            let mut sections = self.sections().iter().filter(named);
            if let (Some(_), Some(second)) = (sections.next(), sections.next()) {
                let count = 2 + sections.count() as u64;
                return Err(Error::at(ErrorKind::Several(count), second.offset));
            }
        }
        if let Some(section) = self.section_header(".eh_frame")
            && let Some(found) = self.relocated(section)?
        {
            return Ok(Some(found));
        }
        let Some(header) = self.eh_frame_hdr()? else {
            // Section headers would name it: programs of Go's linker have none.
            let is_named = !self.sections().is_empty();
            return Ok(if is_named { None } else { eh_frame_search::search(self) });
        };
        let Some(address) = eh_frame_pointer(Bytes::new(&header.data, self.endian()), header.address) else {
            return Ok(None);
        };
        let Some(data) = self.data_at(address) else {
            return Ok(None);
        };
        let len = terminated_len(Bytes::new(data, self.endian()));
        Ok(Some(SectionData {
            address,
            data: Cow::Borrowed(&data[..len]),
        }))
    }

    /// `.eh_frame_hdr`: found by its section, otherwise by `PT_GNU_EH_FRAME`.
    pub fn eh_frame_hdr(&self) -> Result<Option<SectionData<'a>>> {
        match self.section(".eh_frame_hdr")? {
            Some(found) => Ok(Some(found)),
            None => Ok(self.special_segment(PT_GNU_EH_FRAME)),
        }
    }

    /// `.sframe`: found by its section's type or name, otherwise by `PT_GNU_SFRAME`. `None` if it
    /// is empty, as linkers may leave it. In a relocatable file, its relocations are applied.
    ///
    /// The bytes may extend past the table's end, since linkers write too large a `p_filesz`: the
    /// lengths in the SFrame header are authoritative.
    pub fn sframe(&self) -> Result<Option<SectionData<'a>>> {
        if let Some(section) = self.sframe_header() {
            let found = self.relocated(section)?;
            return Ok(found.filter(|found| !found.data.is_empty()));
        }
        let found = self.special_segment(PT_GNU_SFRAME);
        Ok(found.filter(|found| !found.data.is_empty()))
    }

    /// All tables of a relocatable file, relocated, with their section headers: functions in
    /// section groups have theirs in separate sections. Other files have one table.
    pub fn sframe_tables(&self) -> Result<Vec<(Option<&Section<'a>>, SectionData<'a>)>> {
        if self.kind() != Kind::Relocatable {
            return Ok(self
                .sframe()?
                .map(|found| (self.sframe_header(), found))
                .into_iter()
                .collect());
        }
        let is_table = |section: &&Section<'_>| {
            section.kind == SHT_GNU_SFRAME || (section.kind != SHT_NULL && section.name == b".sframe")
        };
        let mut tables = Vec::new();
        for section in self.sections().iter().filter(is_table) {
            let found = self.relocated(section)?.filter(|found| !found.data.is_empty());
            tables.extend(found.map(|found| (Some(section), found)));
        }
        Ok(tables)
    }

    /// The header of `.sframe`, found by its type or name.
    pub fn sframe_header(&self) -> Option<&Section<'a>> {
        let by_type = self.sections().iter().find(|section| section.kind == SHT_GNU_SFRAME);
        by_type.or_else(|| self.section_header(".sframe"))
    }

    fn special_segment(&self, kind: u32) -> Option<SectionData<'a>> {
        let segment = self.segments().iter().find(|segment| segment.kind == kind)?;
        Some(SectionData {
            address: segment.vaddr,
            data: Cow::Borrowed(self.segment_bytes(segment)?),
        })
    }
}

const DW_EH_PE_PCREL: u8 = 0x10;
const DW_EH_PE_DATAREL: u8 = 0x30;

/// The address of `.eh_frame`, from the `.eh_frame_hdr` at `address`.
fn eh_frame_pointer(header: Bytes<'_>, address: u64) -> Option<u64> {
    const POINTER_AT: usize = 4;
    if header.u8(0).ok()? != 1 {
        return None;
    }
    let encoding = header.u8(1).ok()?;
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => header.u64(POINTER_AT).ok()?,
        0x02 => u64::from(header.u16(POINTER_AT).ok()?),
        0x03 => u64::from(header.u32(POINTER_AT).ok()?),
        0x0a => i64::from(header.i16(POINTER_AT).ok()?) as u64,
        0x0b => i64::from(header.i32(POINTER_AT).ok()?) as u64,
        _ => return None,
    };
    match encoding & 0xf0 {
        0 => Some(value),
        DW_EH_PE_PCREL => Some(address.wrapping_add(POINTER_AT as u64).wrapping_add(value)),
        DW_EH_PE_DATAREL => Some(address.wrapping_add(value)),
        _ => None,
    }
}

/// Length up to the entry of length 0, excluding it, or up to where entries stop being consecutive.
fn terminated_len(data: Bytes<'_>) -> usize {
    let mut offset = 0usize;
    loop {
        let next = match data.u32(offset) {
            Err(_) | Ok(0) => return offset,
            Ok(0xffff_ffff) => match data.u64(offset + 4) {
                Err(_) => return offset,
                Ok(len) => offset.checked_add(12).and_then(|at| at.checked_add(to_usize(len))),
            },
            Ok(len) => offset.checked_add(4 + len as usize),
        };
        match next {
            Some(next) if next <= data.len() => offset = next,
            _ => return offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_wire::Endian;

    #[test]
    fn entries_end_at_the_terminator_or_where_they_make_no_sense() {
        let two = [4, 0, 0, 0, 1, 2, 3, 4, 2, 0, 0, 0, 9, 9];
        for (tail, len) in [
            (&[0u8, 0, 0, 0, 7][..], two.len()),
            (&[200, 0, 0, 0, 7], two.len()),
            (&[], two.len()),
        ] {
            let data = [&two, tail].concat();
            assert_eq!(terminated_len(Bytes::new(&data, Endian::Little)), len);
        }
        let wide = [0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 5, 5, 0, 0, 0, 0];
        assert_eq!(terminated_len(Bytes::new(&wide, Endian::Little)), 14);
    }

    #[test]
    fn pointer_encodings() {
        let header = |encoding: u8| [1, encoding, 0x03, 0x3b, 0xf0, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let pointer = |encoding| eh_frame_pointer(Bytes::new(&header(encoding), Endian::Little), 0x1000);
        assert_eq!(pointer(0x1b), Some(0x1004 - 16));
        assert_eq!(pointer(0x3b), Some(0x1000 - 16));
        assert_eq!(pointer(0x03), Some(0xffff_fff0));
        assert_eq!(pointer(0xff), None);
    }
}
