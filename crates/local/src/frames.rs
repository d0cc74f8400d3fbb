//! Locates the call frame information of modules in memory, for walks that need registers their
//! tables do not restore.

use backtrail_elf::Image;
use backtrail_unwind::local::{CallFrames, Entries, Search, Source, is_searchable};

/// Bytes of a module, and the address at which the first of them lies in the process.
struct Bytes<'b> {
    at: u64,
    bytes: &'b [u8],
}

impl Source for Bytes<'_> {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        let offset = |address: u64| usize::try_from(address.checked_sub(self.at)?).ok();
        let mut count = 0;
        for (index, word) in words.iter_mut().enumerate() {
            let from = address.wrapping_add(8 * index as u64);
            let whole = offset(from).and_then(|offset| self.bytes.get(offset..)?.first_chunk());
            if let Some(whole) = whole {
                *word = u64::from_ne_bytes(*whole);
                count += 1;
                continue;
            }
            // Words are aligned, and these bytes need not be: what lies before and after them is 0.
            let byte = |at: usize| self.bytes.get(offset(from.wrapping_add(at as u64))?).copied();
            let bytes: [Option<u8>; 8] = std::array::from_fn(byte);
            if bytes.iter().all(Option::is_none) {
                break;
            }
            *word = u64::from_ne_bytes(bytes.map(Option::unwrap_or_default));
            count += 1;
        }
        count
    }
}

fn holds(load: &libc::Elf64_Phdr, header: &libc::Elf64_Phdr) -> bool {
    load.p_type == libc::PT_LOAD
        && load.p_flags & libc::PF_R != 0
        && header.p_vaddr >= load.p_vaddr
        && header.p_vaddr.saturating_add(header.p_filesz) <= load.p_vaddr.saturating_add(load.p_filesz)
}

fn memory(load: &libc::Elf64_Phdr, bias: u64) -> (u64, u64) {
    let start = bias.wrapping_add(load.p_vaddr);
    (start, start.saturating_add(load.p_filesz))
}

/// Found by the sorted table of `.eh_frame_hdr`.
///
/// # Safety
/// The headers belong to a module that is loaded and stays loaded during the call.
pub(crate) unsafe fn by_header(headers: &[libc::Elf64_Phdr], bias: u64) -> Option<CallFrames> {
    let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
    let load = headers.iter().find(|load| holds(load, header))?;
    let address = bias.wrapping_add(header.p_vaddr);
    let start = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: it lies in a readable segment, and our caller promises that this is loaded.
    let bytes = unsafe { std::slice::from_raw_parts(start, header.p_filesz as usize) };
    is_searchable(address, &mut Bytes { at: address, bytes }).then_some(CallFrames {
        search: Search::Header(address),
        readable: memory(load, bias),
    })
}

/// Found by a list that is never freed, for modules without such a table.
pub(crate) fn by_list(image: &Image<'_>, bias: u64) -> Option<CallFrames> {
    let section = image.eh_frame().ok()??;
    let start = bias.wrapping_add(section.address);
    let end = start.checked_add(section.data.len() as u64)?;
    let mut bytes = Bytes {
        at: start,
        bytes: &section.data,
    };
    let mut starts: Vec<(u64, u64)> = Entries::new(start, end, &mut bytes).collect();
    starts.sort_unstable();
    // Of those with the same start, the first in the section counts.
    starts.dedup_by_key(|(start, _)| *start);
    (!starts.is_empty()).then(|| CallFrames {
        search: Search::List(starts.leak()),
        readable: (start, end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_over_both_ends() {
        let mut bytes = Bytes {
            at: 0x1004,
            bytes: &[1, 2, 3, 4, 5, 6],
        };
        let mut words = [9; 3];
        assert_eq!(bytes.copy(0x1000, &mut words), 2);
        assert_eq!(
            words.map(u64::to_ne_bytes)[..2],
            [[0, 0, 0, 0, 1, 2, 3, 4], [5, 6, 0, 0, 0, 0, 0, 0]]
        );
        assert_eq!(bytes.copy(0x1010, &mut words), 0);
        assert_eq!(bytes.copy(0, &mut words), 0);
    }
}
