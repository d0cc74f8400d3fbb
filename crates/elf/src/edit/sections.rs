//! The section header table: adding headers and renumbering sections.

use backtrail_wire::Bytes;

use super::headers::{Draft, SectionHeader};
use crate::constants::*;
use crate::{Error, ErrorKind, Result};

/// Whether sections can be renumbered: with more than 65,279 of them, symbols have section numbers
/// in a separate table.
pub(super) fn can_be_renumbered(draft: &Draft<'_>) -> bool {
    let few = draft.sections.len() < usize::from(SHN_LORESERVE) - 1;
    few && draft.sections.iter().all(|section| section.kind != SHT_SYMTAB_SHNDX)
}

/// Renumbers each section as `new` maps its old number; `None` if it was removed. The headers are
/// already in their new order.
pub(super) fn renumber(draft: &mut Draft<'_>, new: &dyn Fn(u32) -> Option<u32>) -> Result<()> {
    if !can_be_renumbered(draft) {
        let count = draft.sections.len() as u64;
        return Err(Error::at(ErrorKind::TooManyHeaders(count), draft.shoff));
    }
    let or_none = |old: u32| new(old).unwrap_or(u32::from(SHN_UNDEF));
    for section in &mut draft.sections {
        section.link = or_none(section.link);
        if matches!(section.kind, SHT_REL | SHT_RELA) || section.flags & SHF_INFO_LINK != 0 {
            section.info = or_none(section.info);
        }
    }
    draft.shstrndx = or_none(draft.shstrndx);
    for table in 0..draft.sections.len() {
        if matches!(draft.sections[table].kind, SHT_SYMTAB | SHT_DYNSYM) {
            renumber_symbols(draft, table, new);
        }
    }
    Ok(())
}

fn renumber_symbols(draft: &mut Draft<'_>, table: usize, new: &dyn Fn(u32) -> Option<u32>) {
    let (offset, size) = (draft.sections[table].offset, draft.sections[table].size);
    let Some(symbols) = draft.view.read(offset, size) else {
        return;
    };
    let bytes = Bytes::new(&symbols, draft.endian);
    let mut out = draft.encoder();
    let mut changed = false;
    for at in (0..bytes.len() / SYM_BYTES).map(|index| index * SYM_BYTES) {
        let Ok(old) = bytes.u16(at + 6) else { break };
        // Symbols of a removed section keep only their address.
        let renumbered = match old {
            SHN_UNDEF | SHN_LORESERVE.. => old,
            old => new(old.into()).map_or(SHN_ABS, |new| new as u16),
        };
        changed |= renumbered != old;
        out.bytes.extend(&symbols[at..at + 6]);
        out.u16(renumbered);
        out.bytes.extend(&symbols[at + 8..at + SYM_BYTES]);
    }
    if changed {
        draft.view.patch(offset, &out.bytes);
    }
}

/// Writes a new section header table into `tail`, which follows `before` bytes, with the new
/// sections' names. `new` contains each one's number and its name with the terminating zero. The
/// old table and the old names stay in place, unused; offsets already include the `lead` bytes that
/// precede the file. A file without sections gets none.
pub(super) fn append(draft: &mut Draft<'_>, new: &[(usize, &[u8])], lead: u64, before: u64, tail: &mut Vec<u8>) {
    if draft.sections.is_empty() {
        return;
    }
    if let Some(mut names) = names(draft, lead) {
        let old_len = names.len();
        for (index, name) in new {
            let known = names.windows(name.len()).position(|known| known == *name);
            draft.sections[*index].name = known.unwrap_or(names.len()) as u32;
            if known.is_none() {
                names.extend(*name);
            }
        }
        if names.len() > old_len {
            let strings = &mut draft.sections[draft.shstrndx as usize];
            strings.offset = before + tail.len() as u64;
            strings.size = names.len() as u64;
            tail.extend(names);
        }
    }
    let at = (before + tail.len() as u64).next_multiple_of(8);
    tail.resize((at - before) as usize, 0);
    draft.shoff = at;
    tail.extend(draft.encode_sections());
}

fn names(draft: &Draft<'_>, lead: u64) -> Option<Vec<u8>> {
    let strings = draft.sections.get(draft.shstrndx as usize)?;
    (strings.kind == SHT_STRTAB).then_some(())?;
    Some(
        draft
            .view
            .read(strings.offset.checked_sub(lead)?, strings.size)?
            .into_owned(),
    )
}

/// The header of a section for the bytes at `offset`, read-only and loaded at `address`.
pub(super) fn loaded(kind: u32, offset: u64, address: u64, size: u64) -> SectionHeader {
    SectionHeader {
        kind,
        flags: SHF_ALLOC,
        address,
        offset,
        size,
        align: 8,
        ..SectionHeader::default()
    }
}

/// The header of a section for the bytes at `offset`, which are not loaded.
pub(super) fn unloaded(offset: u64, size: u64) -> SectionHeader {
    SectionHeader {
        kind: SHT_PROGBITS,
        offset,
        size,
        align: 1,
        ..SectionHeader::default()
    }
}

/// Whether a section has room for this many bytes that it shares with nothing else.
pub(super) fn takes(draft: &Draft<'_>, index: usize, len: usize) -> bool {
    let section = &draft.sections[index];
    let apart = |start: u64, end: u64| end <= section.offset || section.file_end() <= start;
    let others = draft.sections.iter().enumerate().filter(|(other, _)| *other != index);
    section.kind == SHT_PROGBITS
        && section.size >= len as u64
        && section.file_end() <= draft.view.len() as u64
        && others
            .filter(|(_, other)| other.has_bytes())
            .all(|(_, other)| apart(other.offset, other.file_end()))
        && draft
            .segments
            .iter()
            .all(|segment| apart(segment.offset, segment.file_end()))
        && apart(draft.shoff, draft.sections_end())
        && apart(0, draft.table_end())
        // Their headers change too.
        && draft.segments.iter().all(|segment| segment.file_end() <= draft.shoff || draft.sections_end() <= segment.offset)
}
