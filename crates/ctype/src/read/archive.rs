//! Archives of dicts, and lone dicts seen as such ("CTF archives").

use backtrail_wire::{Bytes, Endian};

use super::{Dict, Lent, endian_of};
use crate::constants::*;
use crate::error::{Error, ErrorKind, Foreign, Result};

/// Bytes of an archive's header.
const HEADER: usize = 40;
/// Bytes of an entry in the table of members.
const ENTRY: usize = 16;

/// What a section holds: dicts with names.
#[derive(Clone, Copy, Debug)]
pub struct Archive<'a> {
    /// In an archive everything but the dicts themselves is little-endian.
    bytes: Bytes<'a>,
    table: Option<Table>,
    /// Of the data model.
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
    /// Its name: `.ctf` for the parent, that of the unit for a child.
    pub name: &'a [u8],
    /// The dict; what follows it in the archive is not part of it.
    pub bytes: &'a [u8],
    /// Where the dict begins, in bytes from the start of the archive.
    pub offset: usize,
}

impl<'a> Archive<'a> {
    /// Reads the header of an archive, or takes a lone dict as an archive of it alone.
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

    /// Bytes of a pointer in the archive's data model, which a lone dict does not have. GNU ld
    /// writes the one of 8 bytes for some machines of 32 bits.
    pub fn pointer_bytes(&self) -> Option<u8> {
        self.pointer
    }

    /// How many dicts there are.
    pub fn len(&self) -> usize {
        self.table.map_or(1, |table| table.len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dict at this place of the table, which is sorted by name.
    pub fn member(&self, index: usize) -> Result<Member<'a>> {
        let Some(table) = self.table else {
            return Ok(Member {
                name: CTF_SECTION,
                bytes: self.bytes.data(),
                offset: 0,
            });
        };
        let entry = HEADER + index * ENTRY;
        let (name, dict) = (to_usize(self.bytes.u64(entry)?), to_usize(self.bytes.u64(entry + 8)?));
        let name = self.bytes.cursor(table.names.saturating_add(name)).c_str()?;
        let at = table.dicts.saturating_add(dict);
        // The size counts its own eight bytes.
        let size = to_usize(self.bytes.u64(at)?);
        let Some(size) = size.checked_sub(8) else {
            return Err(Error::new(ErrorKind::Truncated { missing: 8 }, at));
        };
        let offset = at + 8;
        let bytes = self.bytes.slice(offset, size)?;
        Ok(Member { name, bytes, offset })
    }

    /// All of them.
    pub fn members(&self) -> impl Iterator<Item = Result<Member<'a>>> {
        let archive = *self;
        (0..self.len()).map(move |index| archive.member(index))
    }

    /// The dict with this name; what can't be read is passed over.
    pub fn find(&self, name: &[u8]) -> Option<Member<'a>> {
        self.members().flatten().find(|member| member.name == name)
    }

    /// The parent of a child: the member with the name that the child calls it by.
    pub fn parent_of(&self, child: &Dict<'_>) -> Result<Option<Member<'a>>> {
        Ok(child.parent_name()?.and_then(|name| self.find(name)))
    }
}

impl<'a> Member<'a> {
    /// Opens the dict.
    pub fn open(&self, lent: Lent<'a>) -> Result<Dict<'a>> {
        Dict::open(self.bytes, lent)
    }
}

/// What does not fit is past the end of every input anyway.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
