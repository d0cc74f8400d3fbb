//! Making room for more program headers.

use backtrail_wire::Bytes;

use super::foreign;
use super::headers::{Draft, ProgramHeader};
use super::pieces::{self, Piece};
use crate::Kind;
use crate::constants::*;

/// The smallest page.
const PAGE: u64 = 4096;

/// The lowest address of a program: `vm.mmap_min_addr` of all distributions.
const LOWEST_ADDRESS: u64 = 0x1_0000;

/// Files linked for pages of 2 MiB get this much longer.
const MAX_LEAD: u64 = 2 << 20;

/// The largest page of any CPU's kernel. Programs at fixed addresses are mapped where they say
/// whatever their alignment, as long as it is at least a page.
const LARGEST_PAGE: u64 = 0x1_0000;

/// How room was made.
#[derive(Debug)]
pub(super) enum Room {
    /// There is room after the table.
    Here,
    /// The pieces after the table must move; some fit after the longer table, the rest goes
    /// elsewhere.
    Evicted(Eviction),
    /// Pages with this many bytes are inserted before the file's first byte, for the headers alone.
    Before(u64),
    /// The table moves elsewhere.
    Elsewhere,
}

#[derive(Debug)]
pub(super) struct Eviction {
    /// The offset after the last byte that becomes free.
    end: u64,
    /// Pieces that stay nearby, and their new offsets.
    kept: Vec<(Piece, u64)>,
    /// Pieces that need another place.
    pub(super) displaced: Vec<Piece>,
}

/// Finds room for `more` program headers. Unused entries are taken first.
pub(super) fn find(draft: &mut Draft<'_>, more: usize) -> Room {
    let end = draft.table_end();
    draft.segments.retain(|segment| segment.kind != PT_NULL);
    let needed = draft.table_end() + (more * PHDR_BYTES) as u64;
    if needed <= end {
        return Room::Here;
    }
    let starts = starts(draft);
    if free_until(draft, &starts, end) >= needed {
        return Room::Here;
    }
    // One more for the next tool: patchelf makes room for its own only if sections are in the order
    // of their headers, which moved sections no longer are.
    let spare = needed + PHDR_BYTES as u64;
    if let Some(eviction) = evict(draft, &starts, end, spare).or_else(|| evict(draft, &starts, end, needed)) {
        return Room::Evicted(eviction);
    }
    match pages_before(draft, more) {
        Some(len) => {
            for load in draft.segments.iter_mut().filter(|segment| segment.is_load()) {
                load.align = load.align.min(len);
            }
            Room::Before(len)
        }
        None => Room::Elsewhere,
    }
}

/// The start of everything known to be in the file.
pub(super) fn starts(draft: &Draft<'_>) -> Vec<u64> {
    let sections = draft.sections.iter().filter(|section| section.has_bytes());
    let sections = sections.map(|section| section.offset);
    let special = |kind| !matches!(kind, PT_LOAD | PT_PHDR | PT_NULL);
    let segments = draft
        .segments
        .iter()
        .filter(|segment| special(segment.kind) && segment.filesz > 0);
    let loads = draft.loads().filter(|load| load.offset > 0);
    let segments = segments.chain(loads).map(|segment| segment.offset);
    let mut starts: Vec<u64> = sections.chain(segments).collect();
    if draft.shoff != 0 {
        starts.push(draft.shoff);
    }
    starts.push(draft.view.len() as u64);
    starts.sort_unstable();
    starts
}

/// How far `end` is followed only by padding that no header describes, or by the section headers.
fn free_until(draft: &Draft<'_>, starts: &[u64], end: u64) -> u64 {
    if draft.sections.is_empty() {
        // Without sections, zeros may have a meaning that only sections would describe.
        return end;
    }
    let mut next = next_start(starts, end);
    if covered(draft, end) || !is_padding(draft, end, next) {
        return end;
    }
    // Go's linker puts the section headers there, which are written anew at the file's end.
    let old = draft.shoff..draft.sections_end();
    let alone = starts.iter().filter(|start| old.contains(start)).count() == 1;
    if next == old.start && alone {
        let after = next_start(starts, old.end);
        next = if is_padding(draft, old.end, after) {
            after
        } else {
            old.end
        };
    }
    let holds = |load: &&ProgramHeader| load.offset <= draft.phoff && draft.phoff < load.file_end();
    // The table must stay where it is loaded.
    let loaded = draft.loads().find(holds).map_or(next, ProgramHeader::file_end);
    next.min(loaded.max(end))
}

/// Whether everything from `start` to `end` is zero or, in a file with sections, what patchelf
/// writes over sections that it has moved to the file's end: X up to release 0.17, Z in 0.19.
fn is_padding(draft: &Draft<'_>, start: u64, end: u64) -> bool {
    let of_patchelf = |byte| matches!(byte, 0 | b'X' | b'Z');
    draft.view.is_zero(start, end) || !draft.sections.is_empty() && draft.view.is_made_of(start, end, of_patchelf)
}

pub(super) fn next_start(starts: &[u64], end: u64) -> u64 {
    let index = starts.partition_point(|start| *start < end);
    starts.get(index).copied().unwrap_or(end)
}

/// Whether some section or special segment that begins before `offset` extends past it.
fn covered(draft: &Draft<'_>, offset: u64) -> bool {
    draft
        .sections
        .iter()
        .any(|section| section.has_bytes() && section.offset < offset && offset < section.file_end())
}

fn evict(draft: &Draft<'_>, starts: &[u64], end: u64, needed: u64) -> Option<Eviction> {
    let mut pieces = pieces::movable(draft).into_iter();
    let mut free = free_until(draft, starts, end).max(end);
    let mut evicted: Vec<Piece> = Vec::new();
    if covered(draft, end) {
        return None;
    }
    while free < needed {
        // Whatever begins next must be a piece, or it cannot move. Without sections, there may be
        // more than padding before it.
        let next = next_start(starts, free);
        let piece = pieces.find(|piece| piece.file.start >= free)?;
        if piece.file.start != next || !is_padding(draft, free, next) {
            return None;
        }
        let place = piece.address..piece.address.saturating_add(piece.referable);
        if !place.is_empty() && foreign::is_referred_to(draft, &place) {
            return None;
        }
        free = free_until(draft, starts, piece.file.end);
        evicted.push(piece);
    }
    // Preferably, build ids stay in the first page.
    let mut order: Vec<usize> = (0..evicted.len()).collect();
    order.sort_by_key(|index| !evicted[*index].has_build_id);
    let mut keep = vec![false; evicted.len()];
    for index in order {
        keep[index] = true;
        if laid_out(&evicted, &keep, needed)
            .last()
            .is_some_and(|(_, _, end)| *end > free)
        {
            keep[index] = false;
        }
    }
    let kept = laid_out(&evicted, &keep, needed);
    let kept = kept
        .into_iter()
        .map(|(index, at, _)| (evicted[index].clone(), at))
        .collect();
    let displaced = evicted.into_iter().zip(keep).filter(|(_, keep)| !keep);
    Some(Eviction {
        end: free,
        kept,
        displaced: displaced.map(|(piece, _)| piece).collect(),
    })
}

/// Index, offset and end of the pieces that are kept, in sequence from `from` on.
fn laid_out(pieces: &[Piece], keep: &[bool], from: u64) -> Vec<(usize, u64, u64)> {
    let mut next = from;
    let mut places = Vec::new();
    for (index, piece) in pieces.iter().enumerate().filter(|(index, _)| keep[*index]) {
        let at = next.next_multiple_of(piece.align);
        next = at + piece.len();
        places.push((index, at, next));
    }
    places
}

impl Eviction {
    /// Frees the place, and puts the pieces that fit after the table of `count` entries. Returns
    /// the bytes of displaced pieces in order.
    pub(super) fn carry_out(&self, draft: &mut Draft<'_>) -> Vec<Vec<u8>> {
        let bytes = |draft: &Draft<'_>, piece: &Piece| {
            let bytes = draft.view.read(piece.file.start, piece.len());
            bytes.unwrap_or_default().into_owned()
        };
        let kept: Vec<Vec<u8>> = self.kept.iter().map(|(piece, _)| bytes(draft, piece)).collect();
        let displaced = self.displaced.iter().map(|piece| bytes(draft, piece)).collect();
        let start = draft.table_end();
        // No more than a page, since the record contains all that was there.
        let end = self.end.min(start + PAGE);
        draft.view.patch(start, &vec![0; (end - start) as usize]);
        for ((piece, at), bytes) in self.kept.iter().zip(kept) {
            let address = piece.address.wrapping_sub(piece.file.start).wrapping_add(*at);
            let bytes = piece.at(address, draft, &bytes);
            draft.view.patch(*at, &bytes);
            pieces::moved(draft, piece, *at, address);
        }
        displaced
    }
}

/// The size of the pages for the headers before the file's first byte, which a program at a fixed
/// address can have: as long as its largest alignment, which keeps that, or else the largest page.
fn pages_before(draft: &Draft<'_>, more: usize) -> Option<u64> {
    let first = draft.loads().next()?;
    let align = draft.loads().map(|load| load.align).max()?.max(PAGE);
    let table = ((draft.segments.len() + more) * PHDR_BYTES + EHDR_BYTES) as u64;
    if draft.kind != Kind::Executable || first.offset != 0 || first.flags & PF_W != 0 {
        return None;
    }
    // A position-independent program without the flag of a type has its base at 0.
    let fits = |len: u64| len <= MAX_LEAD && table <= len && first.vaddr >= len + LOWEST_ADDRESS;
    [align, align.min(LARGEST_PAGE)].into_iter().find(|&len| fits(len))
}

/// Where the dynamic section gives the file a name that only dynamic linkers have.
pub(super) fn dynamic_linker(draft: &Draft<'_>) -> Option<u64> {
    let name = || {
        let (entry, at) = draft.dynamic_entry(DT_SONAME)?;
        let (_, strings) = draft.dynamic_entry(DT_STRTAB)?;
        let address = strings.checked_add(at)?;
        let load = draft
            .loads()
            .find(|load| address >= load.vaddr && address - load.vaddr < load.filesz)?;
        let offset = load.offset + (address - load.vaddr);
        let len = (draft.view.len() as u64).checked_sub(offset)?.min(64);
        let bytes = draft.view.read(offset, len)?;
        let name = Bytes::new(&bytes, draft.endian).cursor(0).c_str().ok()?.to_vec();
        Some((entry, name))
    };
    if draft.kind != Kind::Shared || draft.segments.iter().any(|segment| segment.kind == PT_INTERP) {
        return None;
    }
    let starts = [&b"ld-linux"[..], b"ld64.so", b"ld.so", b"ld-musl", b"libc.musl-"];
    let (entry, name) = name()?;
    starts.iter().any(|start| name.starts_with(start)).then_some(entry)
}
