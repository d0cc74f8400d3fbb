//! Ids and records of types ("Type indexes and type IDs", "The type section").

use std::fmt;

use backtrail_wire::Bytes;

use crate::constants::Kind;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;

/// The bit of an id that marks the child's own types, in every version.
const CHILD: u32 = 0x8000_0000;

/// The id of a type; 0 means no type ("Type indexes and type IDs").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

impl TypeId {
    pub(crate) fn new(index: u32, child: bool) -> TypeId {
        TypeId(index | if child { CHILD } else { 0 })
    }

    /// Converts an id as stored in a file.
    pub(crate) fn from_raw(raw: u32, layout: &Layout) -> TypeId {
        match raw & layout.child {
            0 => TypeId(raw),
            bit => TypeId::new(raw & !bit, true),
        }
    }

    /// Whether the id means no type.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the type is a child's own.
    pub fn is_child(self) -> bool {
        self.0 & CHILD != 0
    }

    pub(crate) fn index(self) -> u32 {
        self.0 & !CHILD
    }
}

impl fmt::Display for TypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The record at the start of every type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(super) name: u32,
    pub(super) kind: Kind,
    pub(super) root: bool,
    pub(super) vlen: usize,
    /// The third word: an id or a size.
    pub(super) word: u32,
    pub(super) size: u64,
    /// Offset of the kind's data, in bytes from the header's end; then its length.
    pub(super) data: usize,
    pub(super) bytes: usize,
}

impl Record {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a record of 20 bytes at most, from a position in the body on"
    )]
    pub(crate) fn parse(body: Bytes<'_>, at: usize, layout: &Layout) -> Result<Record> {
        let (name, info, third) = match layout.wide() {
            true => {
                let words = body.record::<12>(at)?;
                (words.u32::<0>(), words.u32::<4>(), words.u32::<8>())
            }
            false => {
                let words = body.record::<8>(at)?;
                (words.u32::<0>(), words.u16::<4>().into(), words.u16::<6>().into())
            }
        };
        let large = third == layout.large_size;
        let small = at + layout.record(false);
        let size = match large {
            true => u64::from(body.u32(small)?) << 32 | u64::from(body.u32(small + 4)?),
            false => u64::from(third),
        };
        let number = info >> layout.kind_shift;
        let kind = Kind::from_number(number).ok_or(Error::new(ErrorKind::Kind(number), at + 4))?;
        let vlen = (info & layout.vlen) as usize;
        Ok(Record {
            name,
            kind,
            root: info & layout.root != 0,
            vlen,
            word: third,
            size,
            data: at + layout.record(large),
            bytes: data_bytes(kind, vlen, size, layout),
        })
    }

    /// Offset of the record after the one at `at`. Opening a dict skips over all its records, so
    /// this decodes only what it must: nearly all records are narrow and small, and only a number
    /// in a table depends on their kind.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a record in the body; at most 2^24 entries of 16 bytes"
    )]
    pub(crate) fn next(body: Bytes<'_>, at: usize, layout: &Layout) -> Result<usize> {
        let small = || {
            let words = body.record::<12>(at).ok().filter(|_| layout.wide())?;
            let (info, third) = (words.u32::<4>(), words.u32::<8>());
            let data = layout.data.get((info >> layout.kind_shift) as usize)?;
            let vlen = (info & layout.vlen) as usize;
            (u64::from(third) < layout.large_struct).then(|| at + layout.record(false) + data.bytes(vlen))
        };
        match small() {
            Some(next) => Ok(next),
            None => Ok(Record::parse(body, at, layout)?.end()),
        }
    }

    /// Offset of the next record.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a record in the body; at most 2^24 entries of 16 bytes"
    )]
    pub(crate) fn end(&self) -> usize {
        self.data + self.bytes
    }
}

/// The number of bytes after the record.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a record in the body; at most 2^24 entries of 16 bytes"
)]
fn data_bytes(kind: Kind, vlen: usize, size: u64, layout: &Layout) -> usize {
    match kind {
        Kind::Struct | Kind::Union => layout.member(size) * vlen,
        kind => layout.data[kind as usize].bytes(vlen),
    }
}
