//! Removing a table from a file that was linked with it.

use super::headers::{Draft, ProgramHeader, SectionHeader};
use super::sections;
use super::view::View;
use crate::Result;
use crate::constants::*;

/// Whether a file whose last bytes are no longer needed becomes shorter. One that is the base of an
/// edit keeps its length, so that the edit's record can restore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Kept,
    Shortened,
}

/// The file without its table: without its section, its segment, and anything that only they
/// needed. `None` if it has neither.
pub(super) fn remove<'a>(mut draft: Draft<'a>, length: Length) -> Result<Option<View<'a>>> {
    let section = draft.find_section(SHT_GNU_SFRAME, b".sframe");
    let count = draft.segments.len();
    let table_end = draft.table_end();
    let holder = section.and_then(|index| only_holder(&draft, index));
    let mut index = 0;
    draft.segments.retain(|segment| {
        index += 1;
        segment.kind != PT_GNU_SFRAME && holder != Some(index - 1)
    });
    let removed = count - draft.segments.len();
    if section.is_none() && removed == 0 {
        return Ok(None);
    }
    let mut segments = draft.encode_segments();
    // Zeros, like a linker's padding; in a file without sections they mean PT_NULL.
    segments.resize((table_end - draft.phoff) as usize, 0);
    if draft.sections.is_empty() {
        for _ in 0..removed {
            draft.segments.push(NULL);
        }
    } else {
        update_phdr(&mut draft);
        let mut updated = draft.encode_segments();
        updated.resize(segments.len(), 0);
        segments = updated;
    }
    let phoff = draft.phoff;
    draft.view.patch(phoff, &segments);
    if let Some(index) = section {
        remove_section(&mut draft, index, length)?;
    }
    let header = draft.encode_header();
    draft.view.patch(0, &header);
    Ok(Some(draft.view))
}

const NULL: ProgramHeader = ProgramHeader {
    kind: PT_NULL,
    flags: 0,
    offset: 0,
    vaddr: 0,
    paddr: 0,
    filesz: 0,
    memsz: 0,
    align: 0,
};

/// Makes `PT_PHDR` as long as the table.
pub(super) fn update_phdr(draft: &mut Draft<'_>) {
    let len = (draft.segments.len() * PHDR_BYTES) as u64;
    for segment in draft.segments.iter_mut().filter(|segment| segment.kind == PT_PHDR) {
        (segment.filesz, segment.memsz) = (len, len);
    }
}

/// The loaded segment that contains only this section.
fn only_holder(draft: &Draft<'_>, index: usize) -> Option<usize> {
    let section = &draft.sections[index];
    let holder = draft.segments.iter().position(|segment| {
        segment.is_constant() && segment.offset <= section.offset && section.file_end() <= segment.file_end()
    })?;
    let load = &draft.segments[holder];
    let inside = |start: u64, end: u64| start < load.file_end() && load.offset < end;
    let other_section = draft.sections.iter().enumerate().any(|(other, section)| {
        other != index && section.has_bytes() && section.is_loaded() && inside(section.offset, section.file_end())
    });
    let other_segment = draft.segments.iter().enumerate().any(|(other, segment)| {
        let own = other == holder || segment.kind == PT_GNU_SFRAME;
        !own && segment.filesz > 0 && inside(segment.offset, segment.file_end())
    });
    let headers = inside(0, EHDR_BYTES as u64) || inside(draft.phoff, draft.table_end());
    let alone = !other_section && !other_segment && !headers && draft.loads().count() > 1;
    alone.then_some(holder)
}

/// Removes the section from the section header table, and its bytes from the file.
fn remove_section(draft: &mut Draft<'_>, index: usize, length: Length) -> Result<()> {
    let old_len = (draft.sections.len() * SHDR_BYTES) as u64;
    let section = draft.sections.remove(index);
    if section.has_bytes() {
        draft.view.patch(section.offset, &vec![0; usable_len(draft, &section)]);
    }
    sections::renumber(draft, &|old| match old as usize {
        old if old == index => None,
        old if old > index => Some(old as u32 - 1),
        _ => Some(old),
    })?;
    let mut sections = draft.encode_sections();
    let at_end = draft.shoff + old_len == draft.view.len() as u64;
    if at_end && length == Length::Shortened {
        let end = draft.shoff as usize + sections.len();
        draft.view.truncate(end);
    } else {
        sections.resize(old_len as usize, 0);
    }
    let shoff = draft.shoff;
    draft.view.patch(shoff, &sections);
    Ok(())
}

/// Length of the section's bytes that no other section shares.
fn usable_len(draft: &Draft<'_>, section: &SectionHeader) -> usize {
    let shared = draft
        .sections
        .iter()
        .any(|other| other.has_bytes() && other.offset < section.file_end() && section.offset < other.file_end());
    let sound = !shared && section.offset >= draft.table_end() && section.file_end() <= draft.view.len() as u64;
    if sound { section.size as usize } else { 0 }
}
