//! The record that allows undoing an edit: bytes at the end of an edited file, to which nothing in
//! the file refers.
//!
//! ```text
//! entry    u64 offset · u64 length, its highest bit set where all bytes were 0 · the bytes that were there, unless 0
//! …
//! recipe   16 bytes of the caller's: what the table was made from
//! footer   u64 bytes of the file before · u64 bytes put before it · u32 entries · u32 CRC-32 · u64 bytes of the record · magic
//! ```
//!
//! All numbers are little-endian. The CRC covers the bytes that replaced others and the record
//! before it: a tool that changes one of these bytes, or rewrites the file, invalidates the record.

use std::ops::Range;

use backtrail_wire::{Bytes, Endian};

use super::edited::Edited;
use super::view::{Source, View};
use crate::header::to_usize;

const MAGIC: [u8; 8] = *b"\x7fBTundo2";
/// Of records without a recipe, which were written before.
const MAGIC_WITHOUT_RECIPE: [u8; 8] = *b"\x7fBTundo1";
const FOOTER_BYTES: usize = 40;
/// Offset of the CRC in the footer.
const CRC_AT: usize = 20;
const ALL_ZERO: u64 = 1 << 63;

/// Appends to `edited` a record for restoring `base`, of a table made by `recipe`.
pub(super) fn append(edited: &mut Edited<'_>, base: &View<'_>, recipe: Recipe) {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&edited.lead);
    let mut record = Vec::new();
    let mut entries = 0u32;
    for (range, new) in edited.view.patched() {
        let Some(old) = base.read(range.start, range.end - range.start) else {
            continue;
        };
        if *old == *new {
            continue;
        }
        crc.update(new);
        entries += 1;
        let len = range.end - range.start;
        let zero = old.iter().all(|byte| *byte == 0);
        record.extend(range.start.to_le_bytes());
        record.extend((if zero { len | ALL_ZERO } else { len }).to_le_bytes());
        if !zero {
            record.extend(&*old);
        }
    }
    record.extend(recipe);
    record.extend((base.len() as u64).to_le_bytes());
    record.extend((edited.lead.len() as u64).to_le_bytes());
    record.extend(entries.to_le_bytes());
    crc.update(&record);
    record.extend(crc.finalize().to_le_bytes());
    record.extend(((record.len() + 16) as u64).to_le_bytes());
    record.extend(MAGIC);
    edited.tail.extend(record);
}

/// What a table was made from: a digest by the caller, who alone knows.
pub type Recipe = [u8; 16];

struct Footer {
    recipe: Option<Recipe>,
    /// The file before the edit, as a range of the edited file.
    window: Range<usize>,
    entries: u32,
    crc: u32,
    /// The entries, as a range of the edited file.
    record: Range<usize>,
    /// The record up to the CRC.
    hashed: Range<usize>,
}

/// The file before the last edit, and the recipe of its table if that is known; `None` if it was
/// not edited here, or was changed since by others.
pub(super) fn undo(source: Source<'_>) -> Option<(View<'_>, Option<Recipe>)> {
    let footer = footer(source)?;
    let window = footer.window;
    let record = Bytes::new(source.get(footer.record)?, Endian::Little);
    let mut crc = crc32fast::Hasher::new();
    crc.update(source.get(0..window.start)?);
    let mut view = View::within(source, window.clone());
    let mut at = 0usize;
    let mut end = 0u64;
    for _ in 0..footer.entries {
        let (offset, coded) = (record.u64(at).ok()?, record.u64(at + 8).ok()?);
        let len = coded & !ALL_ZERO;
        at += 16;
        // Entries must be in order, so that together they are no longer than the file.
        if offset < end {
            return None;
        }
        end = offset.checked_add(len)?;
        let replaced = window.start.checked_add(to_usize(offset))?..window.start.checked_add(to_usize(end))?;
        if replaced.end > window.end {
            return None;
        }
        crc.update(source.get(replaced)?);
        if coded & ALL_ZERO != 0 {
            view.patch(offset, &vec![0; to_usize(len)]);
        } else {
            view.patch(offset, record.slice(at, to_usize(len)).ok()?);
            at = at.checked_add(to_usize(len))?;
        }
    }
    crc.update(source.get(footer.hashed)?);
    (crc.finalize() == footer.crc).then_some((view, footer.recipe))
}

fn footer(source: Source<'_>) -> Option<Footer> {
    let start = source.len().checked_sub(FOOTER_BYTES)?;
    let footer = Bytes::new(source.get(start..source.len())?, Endian::Little);
    let has_recipe = match footer.slice(32, 8).ok()? {
        magic if magic == MAGIC => true,
        magic if magic == MAGIC_WITHOUT_RECIPE => false,
        _ => return None,
    };
    let before = to_usize(footer.u64(0).ok()?);
    let lead = to_usize(footer.u64(8).ok()?);
    let window = lead..lead.checked_add(before)?;
    let record = source.len().checked_sub(to_usize(footer.u64(24).ok()?))?..start;
    let sound = window.end <= record.start && record.start <= record.end;
    let recipe = has_recipe.then(|| source.get(record.clone())?.last_chunk().copied());
    sound.then_some(Footer {
        recipe: recipe.flatten(),
        window,
        entries: footer.u32(16).ok()?,
        crc: footer.u32(CRC_AT).ok()?,
        hashed: record.start..start + CRC_AT,
        record,
    })
}
