//! Editing files: a table is put into one, or taken out; a section that is not loaded is put into a
//! linked one.
//!
//! In a linked file nothing that is loaded changes its address, but for what stood in the way of
//! longer program headers and is found by headers alone (the interpreter's path, notes, the tables
//! of dynamic symbols). The places for a table, in this order:
//!
//! 1. that of the linker's own table, where it is long enough;
//! 2. the padding of the page behind a read-only segment, where the program headers have room for
//!    one more;
//! 3. a read-only segment of its own at the file's end.
//!
//! The last two leave a record behind the file with which [`remove_table`] gives back the file as
//! it was.
//!
//! A relocatable file is laid out anew, with tables and their relocations as sections behind the
//! others ([`set_object_tables`]).

mod edited;
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
pub use view::Part;
use view::View;

use crate::constants::SHT_NULL;
use crate::{Error, ErrorKind, Result};

/// Puts a table into the linked file `bytes`, in the place of one that is there. `make` gives the
/// table for the address that its first byte will have; it may be asked more than once.
///
/// Adding to a file that was edited here gives the same as adding to the file before it was.
///
/// Fails where `make` does, and where the file is none that can be edited: see [`ErrorKind`].
pub fn add_table<'a, E: From<Error>>(
    bytes: &'a [u8],
    make: &mut dyn FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Edited<'a>, E> {
    let mut view = match record::undo(bytes) {
        Some(view) => view,
        None => {
            let draft = Draft::parse(View::new(bytes))?;
            if let Some(slot) = place::slot(&draft) {
                let table = make(slot.address)?;
                if table.len() as u64 <= slot.room {
                    return Ok(slot.fill(draft, &table));
                }
            }
            View::new(bytes)
        }
    };
    if let Some(without) = remove::remove(Draft::parse(view.clone())?)? {
        view = without;
    }
    let mut draft = Draft::parse(view.clone())?;
    nothing_appended(&draft)?;
    let padding = place::padding(&mut draft.clone());
    let segment = NewSegment::plan(&mut draft);
    let mut table = make(segment.address())?;
    if let Some(padding) = padding.filter(|padding| padding.room >= table.len() as u64) {
        table = make(padding.address)?;
        if table.len() as u64 <= padding.room {
            let mut edited = padding.fill(draft, &table);
            record::append(&mut edited, &view);
            return Ok(edited);
        }
        table = make(segment.address())?;
    }
    if let Some(entry) = room::dynamic_linker(&draft) {
        return Err(Error::new(ErrorKind::DynamicLinker, entry).into());
    }
    // GNU objcopy and strip, which need sections, write program headers where they usually are and
    // nowhere else: files whose headers were moved come out broken.
    if segment.moves_headers() && !draft.sections.is_empty() {
        return Err(Error::new(ErrorKind::NoRoom, draft.table_end()).into());
    }
    let mut edited = segment.fill(draft, &table);
    record::append(&mut edited, &view);
    Ok(edited)
}

/// Takes the table out of the linked file `bytes`; `None` where it has none.
///
/// What [`add_table`] did is undone to the byte, unless another tool has changed the same bytes
/// since. A table that the linker made leaves zeros behind; its section and its segment go.
pub fn remove_table(bytes: &[u8]) -> Result<Option<Edited<'_>>> {
    let view = match record::undo(bytes) {
        Some(view) => Some(view),
        None => remove::remove(Draft::parse(View::new(bytes))?)?,
    };
    Ok(view.map(|view| Edited {
        lead: Vec::new(),
        view,
        tail: Vec::new(),
    }))
}

/// Puts a section that is not loaded into the linked file `bytes`, in the place of one with this
/// name that is not loaded either.
///
/// It comes behind everything else, unless it fits where the old one was.
///
/// Fails where the file is none that can be edited, and where it has no sections.
pub fn set_section<'a>(bytes: &'a [u8], name: &str, data: &[u8]) -> Result<Edited<'a>> {
    let mut draft = Draft::parse(View::new(bytes))?;
    if draft.sections.is_empty() || !are_named(&draft) {
        return Err(Error::new(ErrorKind::SectionHeaders, 0));
    }
    if record::undo(bytes).is_none() {
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

/// Whether all sections have names: a new one's, put behind them, would else become that of
/// another.
fn are_named(draft: &Draft<'_>) -> bool {
    let Some(names) = draft.names() else { return false };
    let mut active = draft.sections.iter().filter(|section| section.kind != SHT_NULL);
    active.all(|section| (section.name as usize) < names.len())
}

/// Programs that carry data behind their last section (archives, mostly) find it by the file's end,
/// which must not move.
fn nothing_appended(draft: &Draft<'_>) -> Result<()> {
    let sections = draft.sections.iter().filter(|section| section.has_bytes());
    let sections = sections.map(headers::SectionHeader::file_end);
    let segments = draft.segments.iter().map(headers::ProgramHeader::file_end);
    let headers = [draft.table_end(), draft.sections_end()];
    let end = sections.chain(segments).chain(headers).fold(0, u64::max);
    let len = draft.view.len() as u64;
    if end < len && !draft.view.is_zero(end, len) && !headers::forgotten_sections(draft, end) {
        return Err(Error::new(ErrorKind::Appended(len - end), end));
    }
    Ok(())
}
