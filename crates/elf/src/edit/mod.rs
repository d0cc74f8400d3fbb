//! Edits files: adds a table or removes it, or adds a section that is not loaded to a linked file.
//!
//! In a linked file, nothing that is loaded changes its address, except pieces that are in the way
//! of longer program headers and are found by headers alone (the interpreter's path, notes, the
//! tables of dynamic symbols and relocations). Places for a table, in order of preference:
//!
//! 1. the place of the linker's own table, if it is long enough;
//! 2. the padding of the page after a read-only segment, if there is room for one more program
//!    header;
//! 3. a read-only segment of its own at the file's end.
//!
//! The last two append a record to the file, with which [`remove_table`] restores the original
//! file.
//!
//! A relocatable file is laid out anew, with tables and their relocations as sections after the
//! others ([`set_object_tables`]).

mod edited;
mod foreign;
mod headers;
mod object;
mod object_tables;
mod pieces;
mod place;
mod record;
mod remove;
mod room;
mod sections;
mod view;

pub use edited::Edited;
pub use object::Rewritten;
pub use object_tables::{ObjectField, ObjectTable, remove_object_tables, section_groups, set_object_tables};

use headers::Draft;
use place::NewSegment;
pub use record::Recipe;
use remove::Length;
use view::View;
pub use view::{Part, Source};

use crate::constants::SHT_NULL;
use crate::{Error, ErrorKind, Result};

/// Adds a table to the linked file `source`, or replaces the one it has. `make` makes the table for
/// the address of its first byte; it may be called more than once. [`original`] gives the `recipe`
/// back.
///
/// Adding to a file that was edited here gives the same result as adding to the original file.
///
/// Fails if `make` fails, or if the file cannot be edited: see [`ErrorKind`].
pub fn add_table<'a, E: From<Error>>(
    source: impl Into<Source<'a>>,
    recipe: Recipe,
    make: &mut dyn FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Edited<'a>, E> {
    let source = source.into();
    let base = original(source).0.view;
    let draft = Draft::parse(base.clone())?;
    if let Some(slot) = place::slot(&draft) {
        let table = make(slot.address)?;
        if table.len() as u64 <= slot.room {
            let ends_as_known = nothing_appended(&draft).is_ok();
            let mut edited = slot.fill(draft, &table);
            // What is appended must stay at the file's end: the linker's table cannot be restored.
            if ends_as_known {
                record::append(&mut edited, &base, recipe);
            }
            return Ok(edited);
        }
    }
    let view = remove::remove(draft, Length::Kept)?.unwrap_or_else(|| base.clone());
    let mut draft = Draft::parse(view.clone())?;
    nothing_appended(&draft)?;
    let padding = place::padding(&mut draft.clone());
    let segment = NewSegment::plan(&mut draft);
    let mut table = make(segment.address())?;
    if let Some(padding) = padding.filter(|padding| padding.room >= table.len() as u64) {
        table = make(padding.address)?;
        if table.len() as u64 <= padding.room {
            let mut edited = padding.fill(draft, &table);
            record::append(&mut edited, &base, recipe);
            return Ok(edited);
        }
        table = make(segment.address())?;
    }
    if let Some(entry) = room::dynamic_linker(&draft) {
        return Err(Error::at(ErrorKind::DynamicLinker, entry).into());
    }
    // GNU objcopy and strip, which need sections, write program headers only at their usual place:
    // they break files whose headers were moved.
    if segment.moves_headers() && !draft.sections.is_empty() {
        return Err(Error::at(ErrorKind::NoRoom, draft.table_end()).into());
    }
    let mut edited = segment.fill(draft, &table);
    record::append(&mut edited, &base, recipe);
    Ok(edited)
}

/// Whether [`add_table`] made the linked file `source`, and nothing has changed what it wrote.
pub fn is_edited<'a>(source: impl Into<Source<'a>>) -> bool {
    record::undo(source.into()).is_some()
}

/// What the linked file `source` was before [`add_table`] made it, and the recipe of its table,
/// which old records don't have; the file itself if it [isn't made so](is_edited).
pub fn original<'a>(source: impl Into<Source<'a>>) -> (Edited<'a>, Option<Recipe>) {
    let source = source.into();
    let (view, recipe) = record::undo(source).unwrap_or_else(|| (View::new(source), None));
    (Edited::of(view), recipe)
}

/// Removes the table from the linked file `source`; `None` if it has none.
///
/// Undoes [`add_table`] to the byte, unless another tool has changed the same bytes since: if that
/// replaced the linker's table, this is back. A table made by the linker is replaced by zeros; its
/// section and its segment are removed.
pub fn remove_table<'a>(source: impl Into<Source<'a>>) -> Result<Option<Edited<'a>>> {
    let source = source.into();
    let view = match record::undo(source) {
        Some((view, _)) => Some(view),
        None => remove::remove(Draft::parse(View::new(source))?, Length::Shortened)?,
    };
    Ok(view.map(Edited::of))
}

/// Adds a section that is not loaded to the linked file `source`. Replaces a section of this name
/// that is not loaded either.
///
/// It is placed after everything else, unless it fits where the old one was.
///
/// Fails if the file cannot be edited, or has no sections.
pub fn set_section<'a>(source: impl Into<Source<'a>>, name: &str, data: &[u8]) -> Result<Edited<'a>> {
    let source = source.into();
    let mut draft = Draft::parse(View::new(source))?;
    if draft.sections.is_empty() || !are_named(&draft) {
        return Err(Error::at(ErrorKind::SectionHeaders, 0));
    }
    if record::undo(source).is_none() {
        nothing_appended(&draft)?;
    }
    let name = [name.as_bytes(), &[0]].concat();
    let old = draft.find_section_named(&name[..name.len() - 1]);
    let old = old.filter(|&index| !draft.sections[index].is_loaded());
    let mut tail = Vec::new();
    if let Some(index) = old.filter(|&index| sections::takes(&draft, index, data.len())) {
        let section = &mut draft.sections[index];
        let mut padded = data.to_vec();
        padded.resize(section.size as usize, 0);
        section.size = data.len() as u64;
        section.flags = 0;
        let (offset, table, shoff) = (section.offset, draft.encode_sections(), draft.shoff);
        draft.view.patch(offset, &padded);
        draft.view.patch(shoff, &table);
    } else {
        let before = draft.view.len() as u64;
        tail.resize((before.next_multiple_of(8) - before) as usize, 0);
        let index = old.unwrap_or(draft.sections.len());
        let header = sections::unloaded(before + tail.len() as u64, data.len() as u64);
        match draft.sections.get_mut(index) {
            Some(section) => *section = header,
            None => draft.sections.push(header),
        }
        tail.extend_from_slice(data);
        sections::append(&mut draft, &[(index, &name)], 0, before, &mut tail);
        let header = draft.encode_header();
        draft.view.patch(0, &header);
    }
    Ok(Edited {
        lead: Vec::new(),
        view: draft.view,
        tail,
    })
}

/// Whether all sections have names: otherwise the name of a new section, appended to the names,
/// would become that of another.
fn are_named(draft: &Draft<'_>) -> bool {
    let Some(names) = draft.names() else { return false };
    let mut active = draft.sections.iter().filter(|section| section.kind != SHT_NULL);
    active.all(|section| (section.name as usize) < names.len())
}

/// Programs that carry data after their last section (archives, mostly) find it from the file's
/// end, which must not move.
fn nothing_appended(draft: &Draft<'_>) -> Result<()> {
    let sections = draft.sections.iter().filter(|section| section.has_bytes());
    let sections = sections.map(headers::SectionHeader::file_end);
    let segments = draft.segments.iter().map(headers::ProgramHeader::file_end);
    let headers = [draft.table_end(), draft.sections_end()];
    let end = sections.chain(segments).chain(headers).fold(0, u64::max);
    let len = draft.view.len() as u64;
    if end < len && !draft.view.is_zero(end, len) && !headers::forgotten_sections(draft, end) {
        return Err(Error::at(ErrorKind::Appended(len - end), end));
    }
    Ok(())
}
