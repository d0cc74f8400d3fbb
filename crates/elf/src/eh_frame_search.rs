//! Finds `.eh_frame` in programs that do not say where it is: no section headers and no
//! `PT_GNU_EH_FRAME`, as left by `gcc -static` and `strip --strip-section-headers`.
//!
//! The section is a chain of entries, each with its length, that ends in an entry of length 0 (LSB
//! 5.0, section 10.6). A match begins with a CIE that has an augmentation and leads from entry to
//! entry to that end, and each of its FDEs describes code of the program. Other data does not
//! match.

use std::borrow::Cow;
use std::ops::Range;

use backtrail_wire::Bytes;

use crate::header::to_usize;
use crate::{Image, SectionData};

/// Chains with fewer FDEs are rejected.
const FEWEST_FDES: usize = 2;
/// Alignment of the section.
const ALIGN: usize = 8;
const LONGEST_ENTRY: usize = 1 << 24;

/// The longest chain of entries in a read-only segment; `None` if there is no chain, and for
/// relocatable files.
pub(crate) fn search<'a>(image: &Image<'a>) -> Option<SectionData<'a>> {
    let code = image.code_ranges();
    let segments = image
        .segments()
        .iter()
        .filter(|segment| segment.is_load() && !segment.is_writable());
    let chains = segments.filter_map(|segment| {
        let data = image.segment_bytes(segment)?;
        let chain = longest(Bytes::new(data, image.endian()), segment.vaddr, &code)?;
        let address = segment.vaddr.checked_add(chain.start as u64)?;
        Some(SectionData {
            address,
            data: Cow::Borrowed(data.get(chain)?),
        })
    });
    chains.max_by_key(|found| found.data.len())
}

/// The location of the longest chain in a segment that is loaded at `address`.
fn longest(data: Bytes<'_>, address: u64, code: &[Range<u64>]) -> Option<Range<usize>> {
    let misaligned = to_usize(address) % ALIGN;
    let aligned = |at: usize| (at + misaligned).next_multiple_of(ALIGN) - misaligned;
    let mut best: Option<Range<usize>> = None;
    let mut at = 0;
    while at < data.len() {
        at = aligned(at);
        // A chain that begins within a broken one would break at the same entry.
        at = match chain(data, at, address, code) {
            Ok(end) => {
                if best.as_ref().is_none_or(|best| end - at > best.len()) {
                    best = Some(at..end);
                }
                end
            }
            Err(broken) => broken,
        }
        .max(at + 1);
    }
    best
}

/// The end of the chain of entries that begins here, without its last entry of length 0; or the
/// entry that breaks it.
fn chain(data: Bytes<'_>, start: usize, address: u64, code: &[Range<u64>]) -> Result<usize, usize> {
    let mut at = start;
    let mut fdes = 0usize;
    let mut cie = None;
    while data.u32(at) != Ok(0) {
        let (end, is_fde) = entry(data, at, start, &mut cie, address, code).ok_or(at)?;
        fdes += usize::from(is_fde);
        at = end;
    }
    if fdes < FEWEST_FDES { Err(at) } else { Ok(at) }
}

/// The end of a valid entry, and whether it is an FDE. `known` is the last CIE that was seen,
/// mostly that of the next FDE.
fn entry(
    data: Bytes<'_>,
    at: usize,
    start: usize,
    known: &mut Option<Cie>,
    address: u64,
    code: &[Range<u64>],
) -> Option<(usize, bool)> {
    let length = data.u32(at).ok()? as usize;
    let end = at.checked_add(4)?.checked_add(length)?;
    if !(8..LONGEST_ENTRY).contains(&length) || end > data.len() {
        return None;
    }
    let back = data.u32(at + 4).ok()? as usize;
    let cie_at = match back {
        0 => at,
        _ => (at + 4).checked_sub(back).filter(|cie| *cie >= start)?,
    };
    let cie = match *known {
        Some(cie) if cie.at == cie_at => cie,
        _ => Cie {
            at: cie_at,
            encoding: cie_encoding(data, cie_at)?,
        },
    };
    *known = Some(cie);
    if back != 0 {
        let function = initial_location(data, at + 8, address, cie.encoding)?;
        // Functions that the linker dropped begin at 0.
        let is_code = function == 0 || code.iter().any(|range| range.contains(&function));
        return is_code.then_some((end, true));
    }
    Some((end, false))
}

#[derive(Clone, Copy)]
struct Cie {
    at: usize,
    encoding: u8,
}

/// The encoding of addresses in a CIE's FDEs; `None` if there is no CIE with an augmentation that
/// gives it.
fn cie_encoding(data: Bytes<'_>, at: usize) -> Option<u8> {
    let length = data.u32(at).ok()? as usize;
    let (id, version) = (data.u32(at + 4).ok()?, data.u8(at + 8).ok()?);
    if id != 0 || !matches!(version, 1 | 3) || !(8..LONGEST_ENTRY).contains(&length) {
        return None;
    }
    let mut cursor = data.cursor(at + 9);
    let augmentation = cursor.c_str().ok()?;
    let letters = augmentation.strip_prefix(b"z")?;
    if letters.len() > 6 || !letters.iter().all(|letter| b"RPLSBG".contains(letter)) {
        return None;
    }
    cursor.uleb128().ok()?;
    cursor.sleb128().ok()?;
    match version {
        1 => drop(cursor.u8().ok()?),
        _ => drop(cursor.uleb128().ok()?),
    }
    cursor.uleb128().ok()?;
    for letter in letters {
        match letter {
            b'R' => return cursor.u8().ok(),
            b'L' => drop(cursor.u8().ok()?),
            b'P' => {
                let bytes = pointer_bytes(cursor.u8().ok()?)?;
                for _ in 0..bytes {
                    cursor.u8().ok()?;
                }
            }
            _ => {}
        }
    }
    None
}

fn pointer_bytes(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}

/// The start of the function that an FDE describes.
fn initial_location(data: Bytes<'_>, at: usize, address: u64, encoding: u8) -> Option<u64> {
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => data.u64(at).ok()?,
        0x03 => u64::from(data.u32(at).ok()?),
        0x0b => i64::from(data.i32(at).ok()?) as u64,
        _ => return None,
    };
    match encoding & 0x70 {
        0 => Some(value),
        0x10 => Some(address.wrapping_add(at as u64).wrapping_add(value)),
        _ => None,
    }
}
