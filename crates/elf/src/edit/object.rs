//! A relocatable file that can be written again: its decoded section headers, and the contents of
//! each section.
//!
//! Nothing in such a file has an address, and everything is found by section headers. So it is laid
//! out anew, as assemblers do: the sections' contents in their old order, each aligned, then the
//! headers.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, Write};

use backtrail_wire::{Bytes, Endian};

use super::headers::{self, Draft, SectionHeader};
use super::view::View;
use crate::constants::*;
use crate::header::Header;
use crate::header::to_usize;
use crate::{Error, ErrorKind, Kind, Result};

/// Maximum alignment of contents in the file: a section's own alignment is about memory.
const MAX_ALIGN: u64 = 4096;
const HEADERS_ALIGN: u64 = 8;
/// The offset of a section that has no place yet: after all others.
const BEHIND: u64 = u64::MAX;
/// Size of a group's flags, of a group's member, and of an extended section index, in bytes.
const WORD: usize = 4;

pub(super) struct Object<'a> {
    pub(super) draft: Draft<'a>,
    /// The contents of each section; empty if the file has no bytes of it.
    pub(super) data: Vec<Cow<'a, [u8]>>,
}

/// An edited relocatable file.
#[derive(Clone, Debug)]
pub struct Rewritten<'a> {
    /// In the order of their offsets, with zeros between them.
    pieces: Vec<(u64, Cow<'a, [u8]>)>,
}

impl<'a> Object<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Object<'a>> {
        let (header, arch) = Header::with_arch(bytes)?;
        if header.kind != Kind::Relocatable {
            return Err(Error::at(ErrorKind::Type(ET_REL), E_TYPE));
        }
        if header.phnum != 0 {
            return Err(Error::at(ErrorKind::Segments, E_PHNUM));
        }
        let view = View::new(bytes);
        let (sections, shstrndx) = headers::sections(&view, &header)?;
        let draft = Draft {
            endian: header.endian,
            kind: header.kind,
            arch,
            phoff: header.phoff,
            segments: Vec::new(),
            shoff: header.shoff,
            sections,
            shstrndx,
            referred: std::rc::Rc::default(),
            view,
        };
        check(&draft, bytes)?;
        let data = draft.sections.iter().map(|section| match section.has_bytes() {
            true => Cow::Borrowed(&bytes[to_usize(section.offset)..to_usize(section.file_end())]),
            false => Cow::Borrowed(&[][..]),
        });
        let object = Object {
            data: data.collect(),
            draft,
        };
        match object.numbers_are_known() {
            true => Ok(object),
            false => Err(Error::at(ErrorKind::SectionHeaders, E_SHOFF)),
        }
    }

    /// Whether all section numbers refer to sections. If not, adding sections would give the others
    /// a meaning.
    fn numbers_are_known(&self) -> bool {
        let count = self.draft.sections.len() as u32;
        let known = |data: &[u8], first: usize| {
            let words = Bytes::new(data, self.endian());
            data.len().is_multiple_of(WORD)
                && (first..data.len() / WORD).all(|index| words.u32(index * WORD).is_ok_and(|word| word < count))
        };
        let known_to_symbol = |symbols: Bytes<'_>, index: usize| match symbols.u16(index * SYM_BYTES + 6) {
            Ok(SHN_LORESERVE..) => true,
            number => number.is_ok_and(|number| u32::from(number) < count),
        };
        self.draft.sections.iter().zip(&self.data).all(|(section, data)| {
            let in_header = section.link < count && (!has_section_in_info(section) || section.info < count);
            in_header
                && match section.kind {
                    SHT_SYMTAB => {
                        let symbols = Bytes::new(data, self.endian());
                        (0..data.len() / SYM_BYTES).all(|index| known_to_symbol(symbols, index))
                    }
                    SHT_SYMTAB_SHNDX => known(data, 0),
                    SHT_GROUP => known(data, 1),
                    _ => true,
                }
        })
    }

    pub(super) fn endian(&self) -> Endian {
        self.draft.endian
    }

    /// The name of a section; empty if it has none.
    pub(super) fn name(&self, section: &SectionHeader) -> &[u8] {
        let names = self.data.get(self.draft.shstrndx as usize);
        let rest = names.and_then(|names| names.get(section.name as usize..));
        rest.and_then(|rest| rest.split(|byte| *byte == 0).next())
            .unwrap_or_default()
    }

    /// Removes sections. Returns the new number of each old section.
    pub(super) fn remove(&mut self, gone: &HashSet<usize>) -> Vec<Option<u32>> {
        let mut next = 0;
        let count = self.draft.sections.len();
        let new: Vec<Option<u32>> = (0..count)
            .map(|old| {
                let number = (!gone.contains(&old)).then_some(next);
                next += u32::from(number.is_some());
                number
            })
            .collect();
        if !gone.is_empty() {
            self.renumber(&|old| new.get(old as usize).copied().flatten());
            let mut kept = new.iter().map(Option::is_some);
            self.draft.sections.retain(|_| kept.next() == Some(true));
            let mut kept = new.iter().map(Option::is_some);
            self.data.retain(|_| kept.next() == Some(true));
        }
        new
    }

    fn renumber(&mut self, new: &dyn Fn(u32) -> Option<u32>) {
        let endian = self.endian();
        let or_none = |old: u32| new(old).unwrap_or(u32::from(SHN_UNDEF));
        self.draft.shstrndx = or_none(self.draft.shstrndx);
        for (section, data) in self.draft.sections.iter_mut().zip(&mut self.data) {
            section.link = or_none(section.link);
            if has_section_in_info(section) {
                section.info = or_none(section.info);
            }
            match section.kind {
                SHT_SYMTAB => renumber_symbols(data, endian, new),
                SHT_SYMTAB_SHNDX => renumber_words(data, endian, 0, &|word| Some(or_none(word))),
                // The first word is the group's flags; removed sections leave the group.
                SHT_GROUP => renumber_words(data, endian, 1, new),
                _ => {}
            }
        }
    }

    /// Appends a section and returns its number.
    pub(super) fn push(&mut self, header: SectionHeader, data: Vec<u8>) -> u32 {
        let number = self.draft.sections.len() as u32;
        self.draft.sections.push(SectionHeader {
            offset: BEHIND,
            ..header
        });
        self.data.push(Cow::Owned(data));
        number
    }

    pub(super) fn join_group(&mut self, group: u32, members: &[u32]) {
        let mut words = self.draft.encoder();
        for member in members {
            words.u32(*member);
        }
        if let Some(data) = self.data.get_mut(group as usize) {
            data.to_mut().extend(words.bytes);
        }
    }

    /// The offset of a name in the table of section names, to which it is added if necessary.
    pub(super) fn name_at(&mut self, name: &[u8]) -> u32 {
        let Some(names) = self.data.get_mut(self.draft.shstrndx as usize) else {
            return 0;
        };
        let known = names.windows(name.len()).position(|known| known == name);
        let at = known.unwrap_or(names.len());
        if known.is_none() {
            names.to_mut().extend(name);
        }
        at as u32
    }

    /// Removes `name` from the end of the table of names if nothing uses it there.
    pub(super) fn forget_name(&mut self, name: &[u8]) {
        let index = self.draft.shstrndx as usize;
        let Some(start) = self.data.get(index).and_then(|names| {
            let rest = names.strip_suffix(name)?;
            rest.ends_with(&[0]).then_some(rest.len())
        }) else {
            return;
        };
        let by_section = self.draft.sections.iter().any(|section| section.name as usize >= start);
        let symbols = self.draft.sections.iter().zip(&self.data);
        let mut symbols =
            symbols.filter(|(table, _)| matches!(table.kind, SHT_SYMTAB | SHT_DYNSYM) && table.link as usize == index);
        let by_symbol = symbols.any(|(_, data)| {
            let entries = Bytes::new(data, self.endian());
            (0..data.len() / SYM_BYTES).any(|at| entries.u32(at * SYM_BYTES).is_ok_and(|name| name as usize >= start))
        });
        if !by_section && !by_symbol {
            match &mut self.data[index] {
                Cow::Borrowed(names) => *names = &names[..start],
                Cow::Owned(names) => names.truncate(start),
            }
        }
    }

    /// The whole file.
    pub(super) fn into_file(mut self) -> Rewritten<'a> {
        let mut order: Vec<usize> = (1..self.draft.sections.len()).collect();
        order.sort_by_key(|index| {
            let section = &self.draft.sections[*index];
            (section.offset, section.has_bytes(), *index)
        });
        // The old and the new end of the last section with bytes.
        let (mut old_end, mut end) = (EHDR_BYTES as u64, EHDR_BYTES as u64);
        let mut pieces = vec![(0, Cow::Borrowed(&[][..]))];
        // Sections without bytes since then: they are placed between two others.
        let mut empty = Vec::new();
        for index in order {
            let (section, data) = (&mut self.draft.sections[index], &mut self.data[index]);
            let place = place(section, old_end, end);
            if section.kind == SHT_NULL {
                continue;
            }
            if data.is_empty() {
                empty.push((index, if section.offset < old_end { end } else { place }));
                continue;
            }
            old_end = section.file_end();
            (section.offset, section.size) = (place, data.len() as u64);
            pieces.push((place, std::mem::take(data)));
            end = place + section.size;
            for (index, wanted) in empty.drain(..) {
                self.draft.sections[index].offset = wanted.min(place);
            }
        }
        for (index, wanted) in empty {
            self.draft.sections[index].offset = wanted;
        }
        self.draft.shoff = end.next_multiple_of(HEADERS_ALIGN);
        pieces.push((self.draft.shoff, Cow::Owned(self.draft.encode_sections())));
        pieces[0].1 = Cow::Owned(self.draft.encode_header());
        Rewritten { pieces }
    }
}

/// The new offset of a section that followed `old_end` and now follows `end`: as far from the
/// section before it as its alignment demands, and as far from a multiple of that as it was. Some
/// assemblers align no more than their headers, and leave gaps for sections without bytes.
fn place(section: &SectionHeader, old_end: u64, end: u64) -> u64 {
    let align = section.align.clamp(1, MAX_ALIGN);
    let (over, gap) = match section.offset {
        BEHIND => (0, 0),
        offset => (offset % align, offset.saturating_sub(old_end).min(MAX_ALIGN)),
    };
    end + (over + align - end % align) % align + gap / align * align
}

/// Whether `sh_info` is the number of a section.
fn has_section_in_info(section: &SectionHeader) -> bool {
    matches!(section.kind, SHT_REL | SHT_RELA | SHT_CREL) || section.flags & SHF_INFO_LINK != 0
}

/// Checks what the rest relies on: sections are whole, none overlap, and all other bytes are
/// padding.
fn check(draft: &Draft<'_>, bytes: &[u8]) -> Result<()> {
    let damaged = || Error::at(ErrorKind::SectionHeaders, E_SHOFF);
    let is_first_null = draft.sections.first().is_some_and(|first| first.kind == SHT_NULL);
    let names = draft.names().unwrap_or_default();
    let named = |section: &SectionHeader| (section.name as usize) < names.len();
    if !is_first_null || !names.ends_with(&[0]) || !draft.sections.iter().all(named) {
        return Err(damaged());
    }
    let with_bytes = draft.sections.iter().filter(|section| section.has_bytes());
    let mut ranges: Vec<(u64, u64)> = with_bytes.map(|section| (section.offset, section.file_end())).collect();
    ranges.push((0, EHDR_BYTES as u64));
    ranges.push((draft.shoff, draft.sections_end()));
    ranges.sort_unstable();
    let len = bytes.len() as u64;
    let apart = ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    let end = ranges.last().map_or(0, |range| range.1);
    if !apart || end > len {
        return Err(damaged());
    }
    // Signatures cover the whole file.
    if !draft.view.is_zero(end, len) {
        return Err(Error::at(ErrorKind::Appended(len - end), end));
    }
    Ok(())
}

fn renumber_symbols(data: &mut Cow<'_, [u8]>, endian: Endian, new: &dyn Fn(u32) -> Option<u32>) {
    for at in (0..data.len() / SYM_BYTES).map(|index| index * SYM_BYTES) {
        let Ok(old) = Bytes::new(data, endian).u16(at + 6) else {
            break;
        };
        if matches!(old, SHN_UNDEF | SHN_LORESERVE..) {
            continue;
        }
        let number = new(old.into());
        if number == Some(old.into()) {
            continue;
        }
        let entry = &mut data.to_mut()[at..at + SYM_BYTES];
        let number = number.map_or(SHN_ABS, |number| number as u16);
        entry[6..8].copy_from_slice(&match endian {
            Endian::Little => number.to_le_bytes(),
            Endian::Big => number.to_be_bytes(),
        });
        if number == SHN_ABS {
            // A symbol of a removed section becomes meaningless.
            entry[4] &= 0xf0;
        }
    }
}

/// Renumbers the words from the `first` on; those without a new number are removed.
fn renumber_words(data: &mut Cow<'_, [u8]>, endian: Endian, first: usize, new: &dyn Fn(u32) -> Option<u32>) {
    let words = Bytes::new(data, endian);
    let mut out = headers::Encoder::new(endian);
    for index in 0..data.len() / WORD {
        let Ok(word) = words.u32(index * WORD) else { break };
        match index < first {
            true => out.u32(word),
            false => new(word).into_iter().for_each(|word| out.u32(word)),
        }
    }
    if out.bytes != data[..] {
        *data = Cow::Owned(out.bytes);
    }
}

impl Rewritten<'_> {
    /// Writes the whole file.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        /// The largest gap between two pieces is twice the largest alignment.
        const ZEROS: [u8; 2 * MAX_ALIGN as usize] = [0; 2 * MAX_ALIGN as usize];
        let mut written = 0;
        for (at, piece) in &self.pieces {
            out.write_all(&ZEROS[..to_usize(at - written)])?;
            out.write_all(piece)?;
            written = at + piece.len() as u64;
        }
        Ok(())
    }

    /// Size of the whole file in bytes.
    pub fn len(&self) -> u64 {
        self.pieces.last().map_or(0, |(at, piece)| at + piece.len() as u64)
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole file as bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(to_usize(self.len()));
        // Writing to memory does not fail.
        let _ = self.write_to(&mut out);
        out
    }
}
