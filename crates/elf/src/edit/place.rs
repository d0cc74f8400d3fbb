//! Places for a table: the linker's place, the padding of a page, or a segment of its own.

use super::edited::Edited;
use super::headers::{Draft, ProgramHeader};
use super::room::{self, Room};
use super::{pieces, remove, sections};
use crate::constants::*;

/// `sh_addralign` of the section.
const ALIGN: u64 = 8;

/// Pages with different permissions are at least this far apart.
const PAGE: u64 = 4096;

/// The largest gap between addresses that is acceptable for a base no lower than the first
/// segment's: the program's address range stays far below 2 GiB.
const MAX_GAP: u64 = 512 << 20;

/// The largest hole in a file that is acceptable for moved program headers.
const MAX_HOLE: u64 = 16 << 20;

/// The place of a table made by the linker.
pub(super) struct Slot {
    section: usize,
    segment: usize,
    pub(super) address: u64,
    pub(super) room: u64,
}

/// The linker's place, if it can hold a table: it is loaded, aligned and read-only, and a segment
/// points to it.
pub(super) fn slot(draft: &Draft<'_>) -> Option<Slot> {
    let index = draft.find_section(SHT_GNU_SFRAME, b".sframe")?;
    let section = &draft.sections[index];
    let load = draft
        .loads()
        .find(|load| load.offset <= section.offset && section.file_end() <= load.file_end())?;
    let sound = section.has_bytes()
        && section.is_loaded()
        && load.flags & PF_W == 0
        && section.address.is_multiple_of(ALIGN)
        && draft.address_of(section.offset) == Some(section.address);
    let segment = draft
        .segments
        .iter()
        .position(|segment| segment.kind == PT_GNU_SFRAME)?;
    sound.then_some(Slot {
        section: index,
        segment,
        address: section.address,
        room: section.size,
    })
}

impl Slot {
    /// Writes `table` there; the rest of the place becomes padding.
    pub(super) fn fill<'a>(&self, mut draft: Draft<'a>, table: &[u8]) -> Edited<'a> {
        let len = table.len() as u64;
        let section = &mut draft.sections[self.section];
        let offset = section.offset;
        section.kind = SHT_GNU_SFRAME;
        section.flags = SHF_ALLOC;
        section.align = ALIGN;
        section.size = len;
        draft.segments[self.segment] = sframe_segment(offset, self.address, len);
        let mut bytes = table.to_vec();
        bytes.resize(self.room as usize, 0);
        draft.view.patch(offset, &bytes);
        let (phoff, segments) = (draft.phoff, draft.encode_segments());
        draft.view.patch(phoff, &segments);
        let (shoff, sections) = (draft.shoff, draft.encode_sections());
        draft.view.patch(shoff, &sections);
        Edited {
            lead: Vec::new(),
            view: draft.view,
            tail: Vec::new(),
        }
    }
}

fn sframe_segment(offset: u64, address: u64, len: u64) -> ProgramHeader {
    ProgramHeader {
        kind: PT_GNU_SFRAME,
        flags: PF_R,
        offset,
        vaddr: address,
        paddr: address,
        filesz: len,
        memsz: len,
        align: ALIGN,
    }
}

/// The padding after a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padding {
    segment: usize,
    offset: u64,
    pub(super) address: u64,
    pub(super) room: u64,
}

/// The longest padding after a segment that is neither writable nor executable, if there is also
/// room for one more program header.
pub(super) fn padding(draft: &mut Draft<'_>) -> Option<Padding> {
    if !matches!(room::find(draft, 1), Room::Here) {
        return None;
    }
    let starts = room::starts(draft);
    let mut best: Option<Padding> = None;
    for (index, load) in draft.segments.iter().enumerate() {
        if !load.is_constant() || load.filesz != load.memsz || load.filesz == 0 {
            continue;
        }
        let align = load.align.max(PAGE);
        let next = draft.loads().find(|next| next.vaddr >= load.memory_end());
        // From the page on where another segment begins, that segment's permissions apply.
        let memory = match next {
            Some(next) => next.vaddr & !(next.align.max(align) - 1),
            None => load.memory_end().next_multiple_of(align),
        };
        let file_end = load.file_end();
        let free = room::next_start(&starts, file_end) - file_end;
        let free = free.min(memory.saturating_sub(load.memory_end()));
        let gap = file_end.next_multiple_of(ALIGN) - file_end;
        if free > gap && draft.view.is_zero(file_end, file_end + free) && best.is_none_or(|best| best.room < free - gap)
        {
            best = Some(Padding {
                segment: index,
                offset: file_end + gap,
                address: load.memory_end() + gap,
                room: free - gap,
            });
        }
    }
    best.filter(|best| best.address.is_multiple_of(ALIGN))
}

impl Padding {
    pub(super) fn fill<'a>(&self, mut draft: Draft<'a>, table: &[u8]) -> Edited<'a> {
        let len = table.len() as u64;
        let load = &mut draft.segments[self.segment];
        load.filesz = self.offset + len - load.offset;
        load.memsz = load.filesz;
        draft.view.patch(self.offset, table);
        draft.segments.push(sframe_segment(self.offset, self.address, len));
        let mut tail = Vec::new();
        let end = draft.view.len() as u64;
        let new = with_section(&mut draft, self.offset, self.address, len);
        sections::append(&mut draft, &new, 0, end, &mut tail);
        finish(draft, 0, false, tail)
    }
}

/// A new segment after all others.
#[derive(Debug)]
pub(super) struct NewSegment {
    room: Room,
    /// Its offset in the edited file.
    offset: u64,
    vaddr: u64,
    align: u64,
    /// Offset of the table from the segment's start.
    table: u64,
}

impl NewSegment {
    pub(super) fn address(&self) -> u64 {
        self.vaddr + self.table
    }

    /// Whether the program headers have to be moved.
    pub(super) fn moves_headers(&self) -> bool {
        matches!(self.room, Room::Elsewhere)
    }

    /// Plans its place, and the data that has to precede the table there.
    pub(super) fn plan(draft: &mut Draft<'_>) -> NewSegment {
        let room = room::find(draft, 2);
        let lead = match room {
            Room::Before(len) => len,
            _ => 0,
        };
        let align = draft.loads().map(|load| load.align).fold(PAGE, u64::max);
        let end = draft.loads().map(ProgramHeader::memory_end).fold(0, u64::max);
        let behind = end.next_multiple_of(align);
        let mut offset = (draft.view.len() as u64).next_multiple_of(ALIGN) + lead;
        let mut vaddr = behind + offset % align;
        // The address of the file's first byte, or the one it would have.
        let base = draft
            .loads()
            .next()
            .map_or(0, |load| load.vaddr.wrapping_sub(load.offset));
        let base = base.wrapping_sub(lead);
        // qemu takes the lowest base of all segments for the base of the headers.
        let apart = base.wrapping_add(offset);
        let aligned = base.is_multiple_of(align);
        if aligned && apart > vaddr && apart - vaddr <= MAX_GAP {
            vaddr = apart;
        }
        let mut table = 0;
        match &room {
            Room::Elsewhere => {
                // Kernels before 5.18 use the table's address as its offset from the first
                // segment's start, and the dynamic linker does so for its own.
                let congruent = offset.max(behind.wrapping_sub(base));
                if aligned && congruent - offset <= MAX_HOLE && base.wrapping_add(congruent) >= behind {
                    offset = congruent;
                    vaddr = base.wrapping_add(offset);
                }
                table = ((draft.segments.len() + 2) * PHDR_BYTES) as u64;
            }
            Room::Evicted(eviction) => {
                for piece in &eviction.displaced {
                    table = (offset + table).next_multiple_of(piece.align) - offset + piece.len();
                }
            }
            Room::Here | Room::Before(_) => {}
        }
        NewSegment {
            room,
            offset,
            vaddr,
            align,
            table: (offset + table).next_multiple_of(ALIGN) - offset,
        }
    }

    /// Creates the segment, with `table` in it.
    pub(super) fn fill<'a>(&self, mut draft: Draft<'a>, table: &[u8]) -> Edited<'a> {
        let lead = match self.room {
            Room::Before(len) => len,
            _ => 0,
        };
        let before = draft.view.len() as u64 + lead;
        let mut tail = vec![0; (self.offset - before) as usize];
        if let Room::Evicted(eviction) = &self.room {
            let displaced = eviction.carry_out(&mut draft);
            for (piece, bytes) in eviction.displaced.iter().zip(displaced) {
                let at = (before + tail.len() as u64).next_multiple_of(piece.align);
                tail.resize((at - before) as usize, 0);
                let address = self.vaddr + (at - self.offset);
                tail.extend(piece.at(address, &draft, &bytes));
                pieces::moved(&mut draft, piece, at, address);
            }
        }
        let mut headers = None;
        if lead > 0 {
            headers = cover_old_headers(&mut draft);
            put_before(&mut draft, lead);
        }
        let start = (self.offset - before + self.table) as usize;
        // Moved program headers are written there once all are known.
        tail.resize(start, 0);
        tail.extend(table);
        let len = table.len() as u64;
        let behind = draft.segments.iter().rposition(|segment| segment.is_load());
        let load = ProgramHeader {
            kind: PT_LOAD,
            flags: PF_R,
            offset: self.offset,
            vaddr: self.vaddr,
            paddr: self.vaddr,
            filesz: self.table + len,
            memsz: self.table + len,
            align: self.align,
        };
        draft.segments.insert(behind.map_or(0, |last| last + 1), load);
        let (at, address) = (self.offset + self.table, self.address());
        draft.segments.push(sframe_segment(at, address, len));
        let moved = matches!(self.room, Room::Elsewhere);
        if moved {
            draft.phoff = self.offset;
            for segment in draft.segments.iter_mut().filter(|segment| segment.kind == PT_PHDR) {
                (segment.offset, segment.vaddr, segment.paddr) = (self.offset, self.vaddr, self.vaddr);
            }
        }
        let mut new = with_section(&mut draft, at, address, len);
        new.extend(headers);
        sections::append(&mut draft, &new, lead, before, &mut tail);
        finish(draft, lead, moved, tail)
    }
}

/// Adds the table's section if the file has sections: its number and name.
fn with_section(draft: &mut Draft<'_>, offset: u64, address: u64, len: u64) -> Vec<(usize, &'static [u8])> {
    if draft.sections.is_empty() {
        return Vec::new();
    }
    draft
        .sections
        .push(sections::loaded(SHT_GNU_SFRAME, offset, address, len));
    vec![(draft.sections.len() - 1, b".sframe\0")]
}

/// Start files of static programs read the headers at their old place (`__ehdr_start`). They become
/// a section too, so that tools which copy the file section by section preserve them: the first
/// section, since the sections of a segment must be in order.
fn cover_old_headers(draft: &mut Draft<'_>) -> Option<(usize, &'static [u8])> {
    const INDEX: usize = 1;
    let address = draft.address_of(0)?;
    let end = draft.table_end();
    let shared = draft
        .sections
        .iter()
        .any(|section| section.has_bytes() && section.offset < end);
    if draft.sections.len() <= INDEX || shared || !sections::can_be_renumbered(draft) {
        return None;
    }
    draft
        .sections
        .insert(INDEX, sections::loaded(SHT_PROGBITS, 0, address, end));
    // A damaged header may contain any number.
    let moved = |old: u32| Some(old.saturating_add(u32::from(old as usize >= INDEX)));
    sections::renumber(draft, &moved).ok()?;
    Some((INDEX, b".elf_headers\0"))
}

/// Moves everything `lead` bytes back in the file; the first segment begins that much earlier.
fn put_before(draft: &mut Draft<'_>, lead: u64) {
    let mut first = true;
    for segment in &mut draft.segments {
        if segment.is_load() && first {
            first = false;
            segment.vaddr -= lead;
            segment.paddr = segment.paddr.wrapping_sub(lead);
            segment.filesz += lead;
            segment.memsz += lead;
        } else if segment.kind == PT_PHDR {
            segment.vaddr = segment.vaddr.wrapping_sub(lead);
            segment.paddr = segment.paddr.wrapping_sub(lead);
        } else if segment.filesz > 0 || segment.offset > 0 {
            segment.offset += lead;
        }
    }
    for section in draft.sections.iter_mut().filter(|section| section.kind != SHT_NULL) {
        section.offset = section.offset.wrapping_add(lead);
    }
}

/// Writes the headers: into the file, before it, or, if they were moved, into the tail.
fn finish<'a>(mut draft: Draft<'a>, lead: u64, moved: bool, mut tail: Vec<u8>) -> Edited<'a> {
    remove::update_phdr(&mut draft);
    let (header, segments) = (draft.encode_header(), draft.encode_segments());
    let mut front = Vec::new();
    if lead > 0 {
        front.extend(header);
        front.extend(segments);
        front.resize(lead as usize, 0);
        // Start files of static programs find the table by the header at its old place
        // (__ehdr_start).
        draft.phoff = draft.phoff.wrapping_sub(lead);
        let old_place = draft.encode_header();
        draft.view.patch(0, &old_place);
    } else {
        draft.view.patch(0, &header);
        if moved {
            let at = (draft.phoff - draft.view.len() as u64) as usize;
            tail[at..at + segments.len()].copy_from_slice(&segments);
        } else {
            let phoff = draft.phoff;
            draft.view.patch(phoff, &segments);
        }
    }
    Edited {
        lead: front,
        view: draft.view,
        tail,
    }
}
