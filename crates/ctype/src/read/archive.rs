//! Reading archives of dicts, and lone dicts as archives ("CTF archives").

use backtrail_wire::{Bytes, Endian};

use super::{Dict, Surroundings, endian_of};
use crate::constants::*;
use crate::error::{Error, ErrorKind, Foreign, Result};

/// The size of an archive's header in bytes.
const HEADER: usize = 40;
/// The size of an entry in the table of members, in bytes.
const ENTRY: usize = 16;

/// The contents of a section: dicts with names.
#[derive(Clone, Copy, Debug)]
pub struct Archive<'a> {
    /// In an archive, everything except the dicts themselves is little-endian.
    bytes: Bytes<'a>,
    table: Option<Table>,
    /// The size of a pointer in the data model.
    pointer: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Table {
    len: usize,
    names: usize,
    dicts: usize,
}

/// A dict in an archive.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its name: `.ctf` for the parent, the unit's name for a child.
    pub name: &'a [u8],
    /// The dict; what follows it in the archive is not part of it.
    pub bytes: &'a [u8],
    /// Offset of the dict in bytes from the start of the archive.
    pub offset: usize,
}

impl<'a> Archive<'a> {
    /// Reads the header of an archive; treats a lone dict as an archive with one member.
    #[expect(clippy::arithmetic_side_effects, reason = "`count` was compared with `room`")]
    pub fn parse(bytes: &'a [u8]) -> Result<Archive<'a>> {
        let bytes = Bytes::new(bytes, Endian::Little);
        match bytes.u64(0) {
            Ok(CTFA_MAGIC) => {}
            Ok(magic) if magic == CTFA_MAGIC + 1 => {
                return Err(Error::new(ErrorKind::Foreign(Foreign::Archive2), 0));
            }
            _ => {
                endian_of(bytes.data())?;
                return Ok(Archive {
                    bytes,
                    table: None,
                    pointer: None,
                });
            }
        }
        let (count, names, dicts) = (bytes.u64(16)?, bytes.u64(24)?, bytes.u64(32)?);
        let room = bytes.len().saturating_sub(HEADER) / ENTRY;
        let len = match usize::try_from(count) {
            Ok(len) if len <= room => len,
            _ => {
                let missing = (count - room as u64).saturating_mul(ENTRY as u64);
                return Err(Error::new(ErrorKind::Truncated { missing }, 16));
            }
        };
        let (names, dicts) = (to_usize(names), to_usize(dicts));
        let pointer = match bytes.u64(8)? {
            CTF_MODEL_ILP32 => Some(4),
            CTF_MODEL_LP64 => Some(8),
            _ => None,
        };
        Ok(Archive {
            bytes,
            table: Some(Table { len, names, dicts }),
            pointer,
        })
    }

    /// The size of a pointer in the archive's data model, which a lone dict does not have. GNU ld
    /// writes the model with 8 bytes even for some 32-bit machines.
    pub fn pointer_bytes(&self) -> Option<u8> {
        self.pointer
    }

    /// The number of dicts.
    pub fn len(&self) -> usize {
        self.table.map_or(1, |table| table.len)
    }

    /// Whether there are no dicts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dict at this index of the table, which is sorted by name.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the entries were compared with the length; dicts begin in it"
    )]
    pub fn member(&self, index: usize) -> Result<Member<'a>> {
        let Some(table) = self.table else {
            return Ok(Member {
                name: CTF_SECTION,
                bytes: self.bytes.data(),
                offset: 0,
            });
        };
        let entry = index.saturating_mul(ENTRY).saturating_add(HEADER);
        let (name, dict) = (to_usize(self.bytes.u64(entry)?), to_usize(self.bytes.u64(entry + 8)?));
        let name = self.bytes.cursor(table.names.saturating_add(name)).c_str()?;
        let at = table.dicts.saturating_add(dict);
        // The size includes its own eight bytes.
        let size = to_usize(self.bytes.u64(at)?);
        let Some(size) = size.checked_sub(8) else {
            return Err(Error::new(ErrorKind::Truncated { missing: 8 }, at));
        };
        let offset = at + 8;
        let bytes = self.bytes.slice(offset, size)?;
        Ok(Member { name, bytes, offset })
    }

    /// All dicts.
    pub fn members(&self) -> impl Iterator<Item = Result<Member<'a>>> {
        let archive = *self;
        (0..self.len()).map(move |index| archive.member(index))
    }

    /// The dict with this name; skips members that can't be read.
    pub fn find(&self, name: &[u8]) -> Option<Member<'a>> {
        self.members().flatten().find(|member| member.name == name)
    }

    /// The parent of a child: the member that the child names as its parent.
    pub fn parent_of(&self, child: &Dict<'_>) -> Result<Option<Member<'a>>> {
        Ok(child.parent_name()?.and_then(|name| self.find(name)))
    }
}

impl<'a> Member<'a> {
    /// Opens the dict.
    pub fn open(&self, surroundings: Surroundings<'a>) -> Result<Dict<'a>> {
        Dict::open(self.bytes, surroundings)
    }
}

/// A value that does not fit is past the end of every input anyway.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
