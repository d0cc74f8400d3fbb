//! Notes of owners other than the tool chain, and what may refer to them.
//!
//! A note is found by its program header, so that it can move, unless something else knows its
//! address: code, relocations, or words in the note that contain the distance from themselves to
//! another place. The formats of two such notes are known; in any other note, nothing may look like
//! such a distance.

use std::ops::Range;

use backtrail_arch::Cpu;
use backtrail_wire::{Bytes, Endian};

use super::headers::{Draft, ProgramHeader};
use crate::constants::*;
use crate::notes::Note;

/// Owners of notes whose addresses no code contains.
const KNOWN_OWNERS: [&[u8]; 3] = [b"GNU\0", b"FDO\0", b"Go\0\0"];

/// A note with words that contain the distance from themselves to another place.
struct WithDistances {
    owner: &'static [u8],
    kind: u32,
    len: usize,
    words: &'static [usize],
}

const WITH_DISTANCES: [WithDistances; 2] = [
    // To the CrashpadInfo, by which the crash handler of Chromium and others finds it.
    WithDistances {
        owner: b"Crashpad\0",
        kind: 0x4f46_4e49,
        len: 8,
        words: &[0],
    },
    // To the annotations of Firefox's crash reports, and to the ELF header.
    WithDistances {
        owner: b"mozannotation\0",
        kind: 0x415a_4f4d,
        len: 16,
        words: &[0, 8],
    },
];

/// Whether some of the notes have another owner than the tool chain.
pub(super) fn is_foreign(notes: &[Note<'_>]) -> bool {
    notes.iter().any(|note| !KNOWN_OWNERS.contains(&note.owner))
}

/// Offsets of the words in the notes at `place` that contain distances from themselves; `None` if
/// the notes cannot move.
pub(super) fn distances(draft: &Draft<'_>, notes: &[Note<'_>], place: Range<u64>) -> Option<Vec<usize>> {
    let mut distances = Vec::new();
    for note in notes {
        if KNOWN_OWNERS.contains(&note.owner) {
            continue;
        }
        // Programs at fixed addresses contain addresses in many forms.
        if draft.kind != crate::Kind::Shared {
            return None;
        }
        let known = WITH_DISTANCES
            .iter()
            .find(|known| (known.owner, known.kind, known.len) == (note.owner, note.kind, note.contents.len()));
        match known {
            Some(known) => distances.extend(known.words.iter().map(|word| note.at + word)),
            None if seems_to_refer(draft, note, &place) => return None,
            None => {}
        }
    }
    Some(distances)
}

/// Whether some word of the note, taken for a distance from itself, leads to the start of the image
/// or to a place in it after `place`.
fn seems_to_refer(draft: &Draft<'_>, note: &Note<'_>, place: &Range<u64>) -> bool {
    let start = draft.loads().next().map_or(0, |load| load.vaddr);
    let end = draft.loads().map(ProgramHeader::memory_end).fold(0, u64::max);
    let contents = Bytes::new(note.contents, draft.endian);
    (0..note.contents.len()).step_by(4).any(|at| {
        let own = place.start.wrapping_add((note.at + at) as u64);
        let short = contents
            .u32(at)
            .ok()
            .map(|word| i64::from(word.cast_signed()).cast_unsigned());
        let long = contents.u64(at).ok();
        // No distance at all.
        let words = short.into_iter().chain(long).filter(|word| *word != 0);
        let mut targets = words.map(|word| own.wrapping_add(word));
        targets.any(|target| target == start || (place.end..end).contains(&target))
    })
}

/// Places that are searched for in one file: each search reads all code.
const MOST_SEARCHES: usize = 4;

/// Whether code or relocations refer to an address in `place`, or whether that cannot be known.
pub(super) fn is_referred_to(draft: &Draft<'_>, place: &Range<u64>) -> bool {
    let key = (place.start, place.end);
    if let Some(&known) = draft.referred.borrow().get(&key) {
        return known;
    }
    if draft.referred.borrow().len() >= MOST_SEARCHES {
        return true;
    }
    let found = by_code(draft, place) || by_relocations(draft, place).unwrap_or(true);
    draft.referred.borrow_mut().insert(key, found);
    found
}

fn by_code(draft: &Draft<'_>, place: &Range<u64>) -> bool {
    let search = match draft.arch.cpu {
        Cpu::X86_64 => x86_64,
        Cpu::Aarch64 => aarch64,
        Cpu::S390x => s390x,
    };
    draft.loads().filter(|load| load.flags & PF_X != 0).any(|load| {
        let code = draft.view.read(load.offset, load.filesz);
        code.is_none_or(|code| search(&code, load.vaddr, place))
    })
}

/// An operand relative to the instruction pointer is a ModRM byte (mod 0, rm 5), a distance of four
/// bytes, and up to four bytes of an immediate operand (Intel's manual, volume 2, section 2.2.1.6).
fn x86_64(code: &[u8], address: u64, place: &Range<u64>) -> bool {
    code.windows(5).enumerate().any(|(at, bytes)| {
        let [modrm, distance @ ..] = bytes else { return false };
        let Ok(distance) = <[u8; 4]>::try_from(distance) else {
            return false;
        };
        if modrm & 0xc7 != 5 {
            return false;
        }
        let next = address.wrapping_add(at as u64 + 5);
        let target = next.wrapping_add(i64::from(i32::from_le_bytes(distance)).cast_unsigned());
        [0, 1, 2, 4]
            .iter()
            .any(|immediate| place.contains(&target.wrapping_add(*immediate)))
    })
}

/// `ADR`, `ADRP` and loads of literals (Arm Architecture Reference Manual, C4.1). An `ADRP` refers
/// to a whole page, of which the next instruction selects a place.
fn aarch64(code: &[u8], address: u64, place: &Range<u64>) -> bool {
    const PAGE: u64 = 4096;
    let signed = |value: u32, bits: u32| i64::from((value << (32 - bits)).cast_signed() >> (32 - bits)).cast_unsigned();
    code.as_chunks::<4>().0.iter().enumerate().any(|(index, bytes)| {
        let word = u32::from_le_bytes(*bytes);
        let pc = address.wrapping_add(index as u64 * 4);
        let immediate = || signed(word >> 3 & 0x1f_fffc | word >> 29 & 3, 21);
        match word {
            _ if word & 0x9f00_0000 == 0x9000_0000 => {
                let page = (pc & !(PAGE - 1)).wrapping_add(immediate().wrapping_mul(PAGE));
                page < place.end && place.start < page.saturating_add(PAGE)
            }
            _ if word & 0x9f00_0000 == 0x1000_0000 => place.contains(&pc.wrapping_add(immediate())),
            _ if word & 0x3b00_0000 == 0x1800_0000 => {
                let target = pc.wrapping_add(signed(word >> 5 & 0x7_ffff, 19).wrapping_mul(4));
                target < place.end && place.start < target.saturating_add(16)
            }
            _ => false,
        }
    })
}

/// `LARL` and the other instructions with a relative address of four bytes (z/Architecture
/// Principles of Operation, formats RIL-b and RIL-c): the distance counts halfwords from the
/// instruction.
fn s390x(code: &[u8], address: u64, place: &Range<u64>) -> bool {
    code.windows(6).enumerate().step_by(2).any(|(at, bytes)| {
        let [0xc0 | 0xc4 | 0xc6, _, distance @ ..] = bytes else {
            return false;
        };
        let Ok(distance) = <[u8; 4]>::try_from(distance) else {
            return false;
        };
        let distance = i64::from(i32::from_be_bytes(distance)).wrapping_mul(2).cast_unsigned();
        place.contains(&address.wrapping_add(at as u64).wrapping_add(distance))
    })
}

/// Whether a dynamic relocation changes the place or leads to it; `None` if the relocations cannot
/// be read.
fn by_relocations(draft: &Draft<'_>, place: &Range<u64>) -> Option<bool> {
    let value = |tag| draft.dynamic_entry(tag).map(|(_, value)| value);
    if value(DT_REL).is_some() || value(DT_ANDROID_REL).is_some() || value(DT_ANDROID_RELA).is_some() {
        return None;
    }
    let mut found = false;
    for (table, size) in [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)] {
        let (Some(table), Some(size)) = (value(table), value(size)) else {
            continue;
        };
        let bytes = loaded(draft, table, size)?;
        for entry in bytes.as_chunks::<RELA_BYTES>().0 {
            let entry = Bytes::new(entry, draft.endian);
            let (offset, addend) = (entry.u64(0).ok()?, entry.u64(16).ok()?);
            found |= place.contains(&offset) || place.contains(&addend);
        }
    }
    if let (Some(table), Some(size)) = (value(DT_RELR), value(DT_RELRSZ)) {
        let bytes = loaded(draft, table, size)?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| match draft.endian {
            Endian::Little => u64::from_le_bytes(*word),
            Endian::Big => u64::from_be_bytes(*word),
        });
        found |= by_relative_relocations(draft, words, place)?;
    }
    Some(found)
}

/// `DT_RELR` (gABI, "Relative relocation table"): an even word is an address, an odd one a bit for
/// each of the 63 words that follow the last.
fn by_relative_relocations(draft: &Draft<'_>, words: impl Iterator<Item = u64>, place: &Range<u64>) -> Option<bool> {
    let mut next = 0u64;
    let mut found = false;
    let mut visit = |at: u64| {
        let content = loaded(draft, at, 8)?;
        found |= place.contains(&at) || place.contains(&Bytes::new(&content, draft.endian).u64(0).ok()?);
        Some(())
    };
    for word in words {
        if word & 1 == 0 {
            visit(word)?;
            next = word.wrapping_add(8);
            continue;
        }
        for bit in (1..64).filter(|bit| word >> bit & 1 != 0) {
            visit(next.wrapping_add((bit - 1) * 8))?;
        }
        next = next.wrapping_add(63 * 8);
    }
    Some(found)
}

/// The bytes of the file that are loaded at `address`.
fn loaded<'d>(draft: &'d Draft<'_>, address: u64, len: u64) -> Option<std::borrow::Cow<'d, [u8]>> {
    let within = |load: &&ProgramHeader| {
        let start = address.checked_sub(load.vaddr);
        start.is_some_and(|start| start.checked_add(len).is_some_and(|end| end <= load.filesz))
    };
    let load = draft.loads().find(within)?;
    draft.view.read(load.offset + (address - load.vaddr), len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encodings are those of GNU as.
    #[test]
    fn references_of_each_cpu_are_found() {
        let note = 0x2e0..0x300;
        // lea rax, [rip + X]; cmp dword ptr [rip + X], 1; and a call to the same place, which is no
        // reference to data.
        let lea = |target: i32| [&[0x90, 0x48, 0x8d, 0x05][..], &(target - 0x1008).to_le_bytes()].concat();
        let compare = |target: i32| [&[0x83, 0x3d][..], &(target - 0x1007).to_le_bytes(), &[1]].concat();
        let call = |target: i32| [&[0xe8][..], &(target - 0x1005).to_le_bytes(), &[0x90; 4]].concat();
        for (target, found) in [(0x2db, false), (0x2e0, true), (0x2ff, true), (0x300, false)] {
            assert_eq!(x86_64(&lea(target), 0x1000, &note), found, "lea {target:x}");
            let only = target as u64..target as u64 + 1;
            assert!(x86_64(&compare(target), 0x1000, &only));
            assert!(!x86_64(&call(target), 0x1000, &note));
        }
        // adrp x0, 0 at 0x1000; adrp x0, 0x2000; adr x1, 0x2e4; ldr x2, 0x2d8 (its second half).
        let at = |word: u32| aarch64(&word.to_le_bytes(), 0x1000, &note);
        assert!(at(0xf0ff_ffe0) && !at(0xb000_0000));
        assert!(at(0x10ff_9721) && at(0x58ff_96c2) && !at(0xd503_201f));
        // larl %r1, 0x2e0 at 0x1000: -0xd20 / 2 halfwords.
        let larl = |halfwords: i32| [&[0xc0, 0x10][..], &halfwords.to_be_bytes()].concat();
        assert!(s390x(&larl(-0x690), 0x1000, &note) && !s390x(&larl(-0x691), 0x1000, &note));
    }
}
