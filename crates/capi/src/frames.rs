//! Where the call frame information of a module lies in memory, for walks that need registers which its table does not restore.

use backtrail_elf::Image;
use backtrail_unwind::local::{CallFrames, Entries, Search, Source, is_searchable, read_words};

/// The memory of this process.
struct Memory;

impl Source for Memory {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        read_words(address, words)
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

/// By the sorted table of `.eh_frame_hdr`.
pub(crate) fn by_header(headers: &[libc::Elf64_Phdr], bias: u64) -> Option<CallFrames> {
    let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
    let load = headers.iter().find(|load| holds(load, header))?;
    let address = bias.wrapping_add(header.p_vaddr);
    is_searchable(address, &mut Memory).then_some(CallFrames {
        search: Search::Header(address),
        readable: memory(load, bias),
    })
}

/// Where there is no such table: by a list, which stays.
pub(crate) fn by_list(image: &Image<'_>, bias: u64) -> Option<CallFrames> {
    let section = image.eh_frame().ok()??;
    let start = bias.wrapping_add(section.address);
    let end = start.checked_add(section.data.len() as u64)?;
    let mut starts: Vec<(u64, u64)> = Entries::new(start, end, &mut Memory).collect();
    starts.sort_unstable();
    // Of those with one start the first in the section counts.
    starts.dedup_by_key(|(start, _)| *start);
    (!starts.is_empty()).then(|| CallFrames {
        search: Search::List(starts.leak()),
        readable: (start, end),
    })
}
