//! Rewrites `.debug_frame` (DWARF 5, section 6.4.1) as `.eh_frame`, so that one reader reads both.
//!
//! Go's linker writes no `.eh_frame`, nor do assemblers for sources that request only
//! `.debug_frame`. The formats differ in the id of a CIE (all ones, not 0) and in the offset of an
//! FDE's CIE (from the section's start, not from the FDE).

use std::borrow::Cow;

use backtrail_elf::{Image, SectionData};
use backtrail_wire::{Bytes, Endian};

/// The id of a CIE in `.debug_frame`.
const CIE_ID: u32 = u32::MAX;

/// The section of `image`; `None` if it is missing or invalid from the start.
///
/// It ends at the first entry in the 64-bit format, which no known producer writes.
pub fn of_image(image: &Image<'_>) -> Option<SectionData<'static>> {
    let section = image.section(".debug_frame").ok()??;
    let data = rewritten(&section.data, image.endian());
    (!data.is_empty()).then_some(SectionData {
        address: 0,
        data: Cow::Owned(data),
    })
}

fn rewritten(data: &[u8], endian: Endian) -> Vec<u8> {
    let bytes = Bytes::new(data, endian);
    let mut out = data.to_vec();
    let mut offset = 0;
    while let Some((id, end)) = entry(bytes, offset) {
        let at = offset + 4;
        let new = match id {
            CIE_ID => Some(0),
            // The CIE of an FDE may come after it.
            cie => (at as u32).checked_sub(cie).filter(|&back| back != 0),
        };
        let Some(new) = new else { break };
        let word = match endian {
            Endian::Little => new.to_le_bytes(),
            Endian::Big => new.to_be_bytes(),
        };
        out[at..at + 4].copy_from_slice(&word);
        offset = end;
    }
    out.truncate(offset);
    out
}

/// Id and end of the entry at `offset`.
fn entry(bytes: Bytes<'_>, offset: usize) -> Option<(u32, usize)> {
    let len = bytes.u32(offset).ok().filter(|&len| (4..0xffff_fff0).contains(&len))?;
    let end = (offset + 4).checked_add(len as usize)?;
    (end <= bytes.len() && end <= u32::MAX as usize).then(|| Some((bytes.u32(offset + 4).ok()?, end)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_distances_change_and_nothing_moves() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let debug = words(&[8, CIE_ID, 1, 8, 0, 2, 12, 0, 3, 4, 4, CIE_ID]);
        let frames = words(&[8, 0, 1, 8, 16, 2, 12, 28, 3, 4, 4, 0]);
        assert_eq!(rewritten(&debug, Endian::Little), frames);
        // An entry beyond the end, or without a CIE, ends the section.
        assert_eq!(rewritten(&debug[..debug.len() - 1], Endian::Little), frames[..40]);
        assert_eq!(rewritten(&words(&[8, CIE_ID, 1, 8, 16, 2]), Endian::Little).len(), 12);
        assert_eq!(rewritten(&words(&[3, 0]), Endian::Little), []);
    }
}
