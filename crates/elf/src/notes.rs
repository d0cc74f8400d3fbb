//! Notes (gABI 4.3, "Note section").

use backtrail_wire::{Bytes, Endian};

use crate::constants::{NT_GNU_BUILD_ID, NT_GO_BUILD_ID};

/// The build id in bare notes of this machine's byte order: `/sys/kernel/notes`.
pub fn build_id_of_notes(notes: &[u8]) -> Option<&[u8]> {
    build_id(Bytes::new(notes, Endian::NATIVE), 4)
}

/// The build id in the notes of `data`, whose entries are aligned to `align` bytes (4, or 8 if the
/// header says so).
pub(crate) fn build_id<'a>(data: Bytes<'a>, align: u64) -> Option<&'a [u8]> {
    contents(data, align, b"GNU\0", NT_GNU_BUILD_ID)
}

/// Like `build_id`, but the text that Go's linker writes.
pub(crate) fn go_build_id<'a>(data: Bytes<'a>, align: u64) -> Option<&'a [u8]> {
    contents(data, align, b"Go\0\0", NT_GO_BUILD_ID)
}

/// The contents of the first note of this owner and kind that has any.
fn contents<'a>(data: Bytes<'a>, align: u64, owner: &[u8], wanted: u32) -> Option<&'a [u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let mut offset = 0usize;
    loop {
        let name_len = data.u32(offset).ok()? as usize;
        let desc_len = data.u32(offset.checked_add(4)?).ok()? as usize;
        let kind = data.u32(offset.checked_add(8)?).ok()?;
        let name_at = offset.checked_add(12)?;
        let desc_at = name_at.checked_add(name_len)?.checked_next_multiple_of(align)?;
        let name = data.slice(name_at, name_len).ok()?;
        let desc = data.slice(desc_at, desc_len).ok()?;
        if kind == wanted && name == owner && !desc.is_empty() {
            return Some(desc);
        }
        offset = desc_at.checked_add(desc_len)?.checked_next_multiple_of(align)?;
    }
}

/// A note.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note<'a> {
    /// Its name, with the terminating zero.
    pub(crate) owner: &'a [u8],
    pub(crate) kind: u32,
    /// Offset of its contents.
    pub(crate) at: usize,
    pub(crate) contents: &'a [u8],
}

/// All notes in `data`; `None` if the notes don't fill it.
pub(crate) fn all<'a>(data: Bytes<'a>, align: u64) -> Option<Vec<Note<'a>>> {
    let align = if align == 8 { 8 } else { 4 };
    let mut notes = Vec::new();
    let mut offset = 0usize;
    while offset < data.len() {
        let name_len = data.u32(offset).ok()? as usize;
        let desc_len = data.u32(offset.checked_add(4)?).ok()? as usize;
        let kind = data.u32(offset.checked_add(8)?).ok()?;
        let name_at = offset.checked_add(12)?;
        let owner = data.slice(name_at, name_len).ok()?;
        let at = name_at.checked_add(name_len)?.checked_next_multiple_of(align)?;
        notes.push(Note {
            owner,
            kind,
            at,
            contents: data.slice(at, desc_len).ok()?,
        });
        offset = at.checked_add(desc_len)?.checked_next_multiple_of(align)?;
    }
    Some(notes)
}
