//! Build ids, as modules have them in memory.

use backtrail_unwind::local::read_words;

/// The build id among notes with this alignment.
pub(crate) fn build_id(notes: &[u8], align: u64) -> Option<&[u8]> {
    let mut rest = notes;
    while let Some((build_id, behind)) = first(rest, align) {
        if build_id.is_some() {
            return build_id;
        }
        rest = behind;
    }
    None
}

/// The build id if the first note is one (NT_GNU_BUILD_ID of "GNU"), and the bytes after that note.
fn first(notes: &[u8], align: u64) -> Option<(Option<&[u8]>, &[u8])> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let align = if align == 8 { 8 } else { 4 };
    let number = |at: usize| Some(u32::from_ne_bytes(*notes.get(at..)?.first_chunk()?));
    let (name_size, size, kind) = (number(0)? as usize, number(4)? as usize, number(8)?);
    let name = notes.get(12..)?.get(..name_size)?;
    let begin = (12 + name_size).next_multiple_of(align);
    let description = notes.get(begin..)?.get(..size)?;
    let behind = notes.get((begin + size).next_multiple_of(align)..).unwrap_or_default();
    let is_build_id = kind == NT_GNU_BUILD_ID && name == b"GNU\0";
    Some((is_build_id.then_some(description), behind))
}

/// A copy of a build id.
#[derive(Default)]
pub(crate) struct BuildId {
    bytes: [u8; 32],
    length: usize,
}

impl BuildId {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn copy(from: &[u8]) -> Option<BuildId> {
        let mut copy = BuildId::default();
        copy.bytes.get_mut(..from.len())?.copy_from_slice(from);
        copy.length = from.len();
        Some(copy)
    }

    /// That of the module whose ELF header is at `start`.
    pub(crate) fn of(start: u64, bias: u64) -> Option<BuildId> {
        const PT_NOTE: u32 = 4;
        const HEADER_BYTES: u64 = 56;
        const MOST_HEADERS: u64 = 64;
        // Elf64_Ehdr: e_phoff is the fifth word, and e_phnum begins the eighth.
        let mut header = [0; 8];
        if read_words(start, &mut header) != header.len() || !header[0].to_ne_bytes().starts_with(b"\x7fELF") {
            return None;
        }
        let headers = start.wrapping_add(header[4]);
        (0..(header[7] & 0xffff).min(MOST_HEADERS)).find_map(|index| {
            let mut segment = [0; HEADER_BYTES as usize / 8];
            let all_read = read_words(headers.wrapping_add(HEADER_BYTES * index), &mut segment) == segment.len();
            let [kind, _, address, _, size, _, align] = segment;
            let is_note = all_read && kind as u32 == PT_NOTE;
            is_note
                .then(|| BuildId::among(bias.wrapping_add(address), size, align))
                .flatten()
        })
    }

    /// That among a segment's notes.
    fn among(address: u64, size: u64, align: u64) -> Option<BuildId> {
        let mut words = [0; 32];
        let count = read_words(address, &mut words);
        let mut bytes = [0; 256];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        let notes = bytes.get(..(8 * count).min(usize::try_from(size).ok()?))?;
        BuildId::copy(build_id(notes, align)?)
    }
}
