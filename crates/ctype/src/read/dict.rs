//! Reading one dict: its parts, its strings, and the offsets of its types.

use std::borrow::Cow;
use std::ops::Range;

use backtrail_wire::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::Header;
use super::record::{Record, TypeId};
use crate::constants::Flags;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;

/// Deflate packs at most 258 bytes into two bits. A header that claims more is not worth the
/// memory.
const MOST_INFLATED: u64 = 258 * 4;

/// Data that the reader borrows from the file around a section.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The external string table: `.dynstr` if a dict's flags have [`Flags::DYNSTR`], otherwise
    /// `.strtab`.
    pub strings: &'a [u8],
    /// The size of a pointer in bytes.
    pub pointer: u8,
    /// Enum values that the dicts cannot store, sorted by unit and id.
    pub wide: &'a [WideValue],
}

impl Default for Surroundings<'_> {
    /// No strings, and pointers of 8 bytes.
    fn default() -> Self {
        Surroundings {
            strings: &[],
            pointer: 8,
            wide: &[],
        }
    }
}

/// A value of an enum beyond 32 bits with a sign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WideValue {
    /// The unit of the enum's dict; empty for the one that units share.
    pub unit: Vec<u8>,
    /// The enum.
    pub id: TypeId,
    /// Its place among all values of the enum.
    pub position: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: i64,
    /// Whether the value is that of the same 64 bits without a sign.
    pub unsigned: bool,
}

impl std::fmt::Display for WideValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unsigned {
            true => self.value.cast_unsigned().fmt(f),
            false => self.value.fmt(f),
        }
    }
}

/// An open dict.
#[derive(Clone, Debug)]
pub struct Dict<'a> {
    header: Header,
    body: Cow<'a, [u8]>,
    surroundings: Surroundings<'a>,
    /// Offset of each type's record, in bytes from the header's end.
    types: Vec<u32>,
}

impl<'a> Dict<'a> {
    /// Opens a dict: inflates it if it is compressed, and locates its types.
    pub fn open(bytes: &'a [u8], surroundings: Surroundings<'a>) -> Result<Dict<'a>> {
        let header = Header::parse(bytes)?;
        let behind = bytes.get(header.size()..).unwrap_or_default();
        let body = if header.flags.contains(Flags::COMPRESS) {
            Cow::Owned(inflate(behind, header.body_size()).map_err(|error| error.shifted(header.size()))?)
        } else {
            let body = Bytes::new(bytes, header.endian).slice(header.size(), header.body_size())?;
            Cow::Borrowed(body)
        };
        let mut dict = Dict {
            header,
            body,
            surroundings,
            types: Vec::new(),
        };
        dict.types = dict.find_types()?;
        Ok(dict)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of its own types. Their ids start at 1, in a child with the highest bit set.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether it has no types of its own.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// Whether it has a parent ("Dictionaries").
    pub fn is_child(&self) -> bool {
        self.header.parent_name != 0
    }

    /// The name of the parent among the members of the archive.
    pub fn parent_name(&self) -> Result<Option<&[u8]>> {
        self.optional(self.header.parent_name)
    }

    /// The label in the parent up to which this dict uses it.
    pub fn parent_label(&self) -> Result<Option<&[u8]>> {
        self.optional(self.header.parent_label)
    }

    /// The name of the unit.
    pub fn cu_name(&self) -> Result<Option<&[u8]>> {
        self.optional(self.header.cu_name)
    }

    /// The size of a pointer in bytes.
    pub fn pointer_bytes(&self) -> u8 {
        self.surroundings.pointer
    }

    /// The ids of its own types.
    #[expect(clippy::arithmetic_side_effects, reason = "fewer types than 2^32")]
    pub fn ids(&self) -> impl ExactSizeIterator<Item = TypeId> + use<> {
        let child = self.is_child();
        (0..self.types.len()).map(move |index| TypeId::new(index as u32 + 1, child))
    }

    /// The labels and the last type of each ("The label section").
    pub fn labels(&self) -> impl Iterator<Item = Result<(&[u8], TypeId)>> {
        self.pairs(self.header.labels.clone())
    }

    /// The variables and their types, sorted by name ("The variable section").
    pub fn variables(&self) -> impl Iterator<Item = Result<(&[u8], TypeId)>> {
        self.pairs(self.header.variables.clone())
    }

    /// Every string of the internal table with its offset.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "positions in the table"
    )]
    pub fn strings(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut offset = 0;
        let table = self.part(&self.header.strings);
        std::iter::from_fn(move || {
            let tail = table.get(offset..).filter(|tail| !tail.is_empty())?;
            let len = tail.iter().position(|&byte| byte == 0).unwrap_or(tail.len());
            let found = (offset, &tail[..len]);
            offset += len + 1;
            Some(found)
        })
    }

    /// The string that a reference names ("The string section").
    #[expect(clippy::indexing_slicing, reason = "positions in the table")]
    pub(crate) fn string(&self, reference: u32) -> Result<&[u8]> {
        let offset = (reference & 0x7fff_ffff) as usize;
        let table = match reference >> 31 {
            0 => self.part(&self.header.strings),
            _ => self.surroundings.strings,
        };
        let bad = || Error::new(ErrorKind::Name(reference), self.header.size());
        let tail = match table.get(offset..) {
            // A dict without strings still has the empty one.
            None | Some([]) if reference == 0 => return Ok(&[]),
            tail => tail.ok_or_else(bad)?,
        };
        let len = tail.iter().position(|&byte| byte == 0).ok_or_else(bad)?;
        Ok(&tail[..len])
    }

    fn optional(&self, reference: u32) -> Result<Option<&[u8]>> {
        match reference {
            0 => Ok(None),
            reference => self.string(reference).map(Some),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "32-bit positions in the body")]
    fn pairs(&self, range: Range<u32>) -> impl Iterator<Item = Result<(&[u8], TypeId)>> {
        range.step_by(8).map(|at| {
            let body = self.body();
            let (name, id) = (body.u32(at as usize)?, body.u32(at as usize + 4)?);
            Ok((self.string(name)?, TypeId::from_raw(id, self.layout())))
        })
    }

    /// The contents after the header.
    pub(crate) fn body(&self) -> Bytes<'_> {
        Bytes::new(&self.body, self.header.endian)
    }

    /// The number of bytes after the header.
    pub(crate) fn body_len(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn layout(&self) -> &'static Layout {
        self.header.layout()
    }

    pub(crate) fn lent_pointer(&self) -> u64 {
        self.surroundings.pointer.into()
    }

    /// The values of an own enum that its record cannot have.
    pub(crate) fn wide_values(&self, id: TypeId) -> &[WideValue] {
        let wide = self.surroundings.wide;
        if wide.is_empty() {
            return &[];
        }
        let unit = self.cu_name().ok().flatten().unwrap_or_default();
        let place = |value: &WideValue| (&value.unit[..], value.id).cmp(&(unit, id));
        let start = wide.partition_point(|value| place(value).is_lt());
        let end = wide.partition_point(|value| place(value).is_le());
        wide.get(start..end).unwrap_or_default()
    }

    /// The record of an own type; the first has the index 1.
    pub(crate) fn record(&self, index: u32) -> Result<Record> {
        let at = (index as usize).checked_sub(1).and_then(|index| self.types.get(index));
        let at = *at.ok_or(Error::new(ErrorKind::TypeId(index), self.header.size()))?;
        Record::parse(self.body(), at as usize, self.layout())
    }

    /// The bytes of a part, which is inside the body because [`Header::parse`] has checked it.
    fn part(&self, range: &Range<u32>) -> &[u8] {
        self.body
            .get(range.start as usize..range.end as usize)
            .unwrap_or_default()
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "32-bit positions in the body"
    )]
    fn find_types(&self) -> Result<Vec<u32>> {
        let range = self.header.types.clone();
        let body = Bytes::new(&self.body[..range.end as usize], self.header.endian);
        // Most records have 12 to 24 bytes, so there is room for at least half of them.
        let mut types = Vec::with_capacity(range.len() / 24);
        let mut at = range.start as usize;
        let layout = self.layout();
        while at < range.end as usize {
            let next = Record::next(body, at, layout).map_err(|error| self.located(error))?;
            types.push(at as u32);
            at = next;
            if at > range.end as usize {
                let missing = at as u64 - u64::from(range.end);
                return Err(self.located(Error::new(ErrorKind::Truncated { missing }, range.end as usize)));
            }
        }
        Ok(types)
    }

    /// Converts an error's offset in the body to an offset in the dict.
    pub(crate) fn located(&self, error: Error) -> Error {
        error.shifted(self.header.size())
    }
}

/// Inflates exactly `size` bytes from a zlib stream, unless that is more than it can hold.
fn inflate(packed: &[u8], size: usize) -> Result<Vec<u8>> {
    let wrong_size = Error::new(ErrorKind::InflatedSize(size as u64), 0);
    if size as u64 > (packed.len() as u64).saturating_mul(MOST_INFLATED) {
        return Err(wrong_size);
    }
    let mut body = Vec::with_capacity(size);
    // With room for everything, no data goes through an intermediate buffer.
    match Decompress::new(true).decompress_vec(packed, &mut body, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) if body.len() == size => Ok(body),
        // The stream is shorter or longer than that.
        Ok(Status::StreamEnd) => Err(wrong_size),
        Ok(_) if body.len() == size => Err(wrong_size),
        Ok(_) => Err(Error::new(ErrorKind::Inflate, 0)),
        Err(_) => Err(Error::new(ErrorKind::Inflate, 0)),
    }
}
