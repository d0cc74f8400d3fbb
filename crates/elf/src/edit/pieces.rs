//! Pieces that can be moved out of the way of the program headers.
//!
//! Linkers put the interpreter's path, notes, the tables of dynamic symbols and relocations after
//! the program headers. Code does not refer to any of them: they are found by program headers,
//! section headers and the dynamic section, which can be updated.

use std::collections::HashSet;
use std::ops::Range;

use backtrail_wire::Bytes;

use super::foreign;
use super::headers::{Draft, Encoder, SectionHeader};
use crate::constants::*;
use crate::{Kind, notes};

/// A piece that can be moved as a whole.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Its location in the file.
    pub(super) file: Range<u64>,
    pub(super) address: u64,
    pub(super) align: u64,
    /// Whether it contains the build id, which tools look for in the first page of a core's
    /// mapping.
    pub(super) has_build_id: bool,
    /// The program headers that describe exactly this piece.
    segments: Vec<usize>,
    /// The sections in it.
    sections: Vec<usize>,
    /// The entry of the dynamic section that points at it.
    tag: Option<u64>,
    /// How many of its first bytes code may refer to: all of notes of other owners than the tool
    /// chain, and the first of relocations, which static programs relocate by themselves.
    pub(super) referable: u64,
    /// Offsets in it of words that contain the distance from themselves to a place that stays.
    distances: Vec<usize>,
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        self.file.end - self.file.start
    }

    /// The piece's `bytes` as they must be at `address`.
    pub(super) fn at(&self, address: u64, draft: &Draft<'_>, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for &at in &self.distances {
            let Ok(distance) = Bytes::new(bytes, draft.endian).u64(at) else {
                continue;
            };
            let mut word: Encoder = draft.encoder();
            word.u64(distance.wrapping_sub(address.wrapping_sub(self.address)));
            out[at..at + word.bytes.len()].copy_from_slice(&word.bytes);
        }
        out
    }
}

/// Pieces are aligned to at most a page.
const MAX_ALIGN: u64 = 4096;

/// All movable pieces in file order; none overlap.
pub(super) fn movable(draft: &Draft<'_>) -> Vec<Piece> {
    let mut pieces = by_segment(draft);
    by_dynamic_section(draft, &mut pieces);
    pieces.sort_by_key(|piece| piece.file.start);
    let overlap: HashSet<u64> = pieces
        .windows(2)
        .filter(|pair| pair[1].file.start < pair[0].file.end)
        .map(|pair| pair[1].file.start)
        .collect();
    let bound = bound_sections(draft);
    pieces.retain(|piece| {
        !overlap.contains(&piece.file.start)
            && piece.align.is_power_of_two()
            && piece.align <= MAX_ALIGN
            && piece.sections.iter().all(|index| !bound.contains(index))
            && is_alone(draft, piece)
    });
    pieces
}

/// `PT_INTERP`, `PT_NOTE` and `PT_GNU_PROPERTY`; segments that share bytes form one piece.
fn by_segment(draft: &Draft<'_>) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    for (index, segment) in draft.segments.iter().enumerate() {
        let kind = matches!(segment.kind, PT_INTERP | PT_NOTE | PT_GNU_PROPERTY);
        if !kind || segment.filesz == 0 || draft.address_of(segment.offset) != Some(segment.vaddr) {
            continue;
        }
        found.push(Piece {
            file: segment.offset..segment.file_end(),
            address: segment.vaddr,
            align: segment.align.max(1),
            has_build_id: false,
            segments: vec![index],
            sections: Vec::new(),
            tag: None,
            referable: 0,
            distances: Vec::new(),
        });
    }
    found.sort_by_key(|piece| (piece.file.start, piece.file.end));
    let mut pieces: Vec<Piece> = Vec::new();
    for piece in found {
        match pieces.last_mut() {
            Some(last) if piece.file.start < last.file.end => {
                last.file.end = last.file.end.max(piece.file.end);
                last.align = last.align.max(piece.align);
                last.segments.extend(piece.segments);
            }
            _ => pieces.push(piece),
        }
    }
    pieces.retain_mut(|piece| {
        let Some(bytes) = draft.view.read(piece.file.start, piece.len()) else {
            return false;
        };
        let is_path = piece
            .segments
            .iter()
            .all(|index| draft.segments[*index].kind == PT_INTERP);
        let bytes = Bytes::new(&bytes, draft.endian);
        piece.has_build_id = !is_path && notes::build_id(bytes, piece.align).is_some();
        // Some linkers put notes of both alignments into one segment, each aligned as if it were
        // alone.
        let notes = notes::all(bytes, piece.align).or_else(|| notes::all(bytes, 4));
        if !is_path && notes.as_deref().is_some_and(foreign::is_foreign) {
            piece.referable = piece.len();
        }
        let distances = match notes {
            _ if is_path => Some(Vec::new()),
            Some(notes) => foreign::distances(draft, &notes, piece.address..piece.address + piece.len()),
            None => None,
        };
        piece.distances = distances.clone().unwrap_or_default();
        distances.is_some()
    });
    for piece in &mut pieces {
        for (index, section) in draft.sections.iter().enumerate() {
            let inside =
                section.has_bytes() && piece.file.start <= section.offset && section.file_end() <= piece.file.end;
            if inside && section.is_loaded() {
                piece.sections.push(index);
                piece.align = piece.align.max(section.align);
            }
        }
    }
    pieces
}

/// Tables that the dynamic section points to.
fn by_dynamic_section(draft: &Draft<'_>, pieces: &mut Vec<Piece>) {
    for (index, section) in draft.sections.iter().enumerate() {
        let tag = match section.kind {
            SHT_HASH => DT_HASH,
            SHT_GNU_HASH => DT_GNU_HASH,
            SHT_DYNSYM => DT_SYMTAB,
            SHT_GNU_VERSYM => DT_VERSYM,
            SHT_GNU_VERDEF => DT_VERDEF,
            SHT_GNU_VERNEED => DT_VERNEED,
            SHT_STRTAB if section.is_loaded() => DT_STRTAB,
            // Static programs at fixed addresses find theirs by symbols.
            SHT_RELA if draft.kind == Kind::Shared && are_relocations(draft, section) => DT_RELA,
            _ => continue,
        };
        let pointed_at = draft
            .dynamic_entry(tag)
            .is_some_and(|(_, value)| value == section.address);
        if section.has_bytes() && pointed_at && draft.address_of(section.offset) == Some(section.address) {
            pieces.push(Piece {
                file: section.offset..section.file_end(),
                address: section.address,
                align: section.align.max(1),
                has_build_id: false,
                segments: Vec::new(),
                sections: vec![index],
                tag: Some(tag),
                referable: u64::from(tag == DT_RELA),
                distances: Vec::new(),
            });
        }
    }
}

/// Whether the section is all that `DT_RELA` describes: others may be counted to it.
fn are_relocations(draft: &Draft<'_>, section: &SectionHeader) -> bool {
    draft
        .dynamic_entry(DT_RELASZ)
        .is_some_and(|(_, size)| size == section.size)
}

/// Sections that contain dynamic symbols: other modules may refer to their addresses.
fn bound_sections(draft: &Draft<'_>) -> HashSet<usize> {
    let mut bound = HashSet::new();
    for table in draft.sections.iter().filter(|section| section.kind == SHT_DYNSYM) {
        let Some(symbols) = draft.view.read(table.offset, table.size) else {
            continue;
        };
        let bytes = Bytes::new(&symbols, draft.endian);
        let shndx = (0..bytes.len() / SYM_BYTES).filter_map(|index| bytes.u16(index * SYM_BYTES + 6).ok());
        bound.extend(shndx.map(usize::from).filter(|index| *index != 0));
    }
    bound
}

/// Whether no program headers but the piece's own describe a part of it, and no section crosses its
/// bounds.
fn is_alone(draft: &Draft<'_>, piece: &Piece) -> bool {
    // Compare addresses: a PT_GNU_RELRO of mold may have any offset.
    let memory = piece.address..piece.address + piece.len();
    let others = draft.segments.iter().enumerate().any(|(index, segment)| {
        let own = segment.is_load() || segment.kind == PT_PHDR || piece.segments.contains(&index);
        !own && segment.memsz > 0 && segment.vaddr < memory.end && memory.start < segment.memory_end()
    });
    let shares = |start: u64, end: u64| start < piece.file.end && piece.file.start < end;
    let across = draft.sections.iter().enumerate().any(|(index, section)| {
        section.has_bytes() && !piece.sections.contains(&index) && shares(section.offset, section.file_end())
    });
    !others && !across
}

/// Updates everything that refers to the piece: it now begins at `offset` and `address`. Its bytes
/// are not moved.
pub(super) fn moved(draft: &mut Draft<'_>, piece: &Piece, offset: u64, address: u64) {
    let (in_file, in_memory) = (
        offset.wrapping_sub(piece.file.start),
        address.wrapping_sub(piece.address),
    );
    for index in &piece.segments {
        let segment = &mut draft.segments[*index];
        segment.offset = segment.offset.wrapping_add(in_file);
        segment.vaddr = segment.vaddr.wrapping_add(in_memory);
        segment.paddr = segment.paddr.wrapping_add(in_memory);
    }
    for index in &piece.sections {
        let section = &mut draft.sections[*index];
        section.offset = section.offset.wrapping_add(in_file);
        section.address = section.address.wrapping_add(in_memory);
    }
    if let Some((at, value)) = piece.tag.and_then(|tag| draft.dynamic_entry(tag)) {
        let mut new = draft.encoder();
        new.u64(value.wrapping_add(in_memory));
        draft.view.patch(at, &new.bytes);
    }
    symbols_moved(draft, &piece.sections, in_memory);
}

/// Symbols of the linker and of start files may lie in notes (`__abi_tag`).
fn symbols_moved(draft: &mut Draft<'_>, sections: &[usize], by: u64) {
    let tables: Vec<(u64, u64)> = draft
        .sections
        .iter()
        .filter(|section| section.kind == SHT_SYMTAB)
        .map(|section| (section.offset, section.size))
        .collect();
    let mut patches = Vec::new();
    for (offset, size) in tables {
        let Some(symbols) = draft.view.read(offset, size) else {
            continue;
        };
        let bytes = Bytes::new(&symbols, draft.endian);
        for at in (0..bytes.len() / SYM_BYTES).map(|index| index * SYM_BYTES) {
            if let (Ok(shndx), Ok(value)) = (bytes.u16(at + 6), bytes.u64(at + 8))
                && sections.contains(&usize::from(shndx))
            {
                let mut new = draft.encoder();
                new.u64(value.wrapping_add(by));
                patches.push((offset + at as u64 + 8, new.bytes));
            }
        }
    }
    for (at, new) in patches {
        draft.view.patch(at, &new);
    }
}
