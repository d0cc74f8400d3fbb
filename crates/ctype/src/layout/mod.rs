//! The differences between the versions, widths and bits, as data for a single reader.

mod v1;
mod v3;

use crate::constants::{Kind, Version};

/// The layout of a version's header and types.
pub(crate) struct Layout {
    /// The size of the header in bytes.
    pub(crate) header: usize,
    /// The size of a type's id, and of the info and size words of a record, in bytes.
    pub(crate) word: usize,
    /// The lowest bit of the kind in the info word.
    pub(crate) kind_shift: u32,
    /// The bit of the info word that makes a type visible to look-ups by name.
    pub(crate) root: u32,
    /// The bits of the info word that hold the number of members, arguments or values.
    pub(crate) vlen: u32,
    /// The bit of an id that marks the child's own types.
    pub(crate) child: u32,
    /// `CTF_LSIZE_SENT`: the size is in two further words.
    pub(crate) large_size: u32,
    /// `CTF_LSTRUCT_THRESH`: structs from this size on have members with offsets of 64 bits.
    pub(crate) large_struct: u64,
    /// The data after the records of each kind, by the kind's number.
    pub(crate) data: [Data; KINDS],
}

/// The number of kinds.
const KINDS: usize = Kind::ALL.len();

/// The data after the records of a kind: a fixed size, plus a size for each member, argument or
/// value.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    fixed: usize,
    each: usize,
    /// 1 if an odd number of these is padded, otherwise 0.
    pad: usize,
}

impl Data {
    const NONE: Data = Data {
        fixed: 0,
        each: 0,
        pad: 0,
    };

    /// The data of all kinds, with ids of `word` bytes and members of `member` bytes.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "kinds index their own table; sizes of single entries"
    )]
    const fn of_kinds(word: usize, member: usize) -> [Data; KINDS] {
        let mut all = [Data::NONE; KINDS];
        all[Kind::Integer as usize].fixed = 4;
        all[Kind::Float as usize].fixed = 4;
        all[Kind::Array as usize].fixed = 4 + 2 * word;
        all[Kind::Slice as usize].fixed = 8;
        all[Kind::Function as usize] = Data {
            each: word,
            pad: 1,
            ..Data::NONE
        };
        all[Kind::Struct as usize].each = member;
        all[Kind::Union as usize].each = member;
        all[Kind::Enum as usize].each = 8;
        all
    }

    /// The size in bytes with `vlen` members, arguments or values. Not for structs whose members
    /// have offsets of 64 bits.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`vlen` has 24 bits, and entries at most 24 bytes"
    )]
    pub(crate) fn bytes(self, vlen: usize) -> usize {
        self.fixed + self.each * (vlen + (vlen & self.pad))
    }
}

impl Layout {
    pub(crate) fn of(version: Version) -> &'static Layout {
        match version {
            Version::V1 => &v1::LAYOUT,
            Version::V1Upgraded => &v3::LAYOUT_UPGRADED,
            Version::V2 => &v3::LAYOUT_2,
            Version::V3 => &v3::LAYOUT,
        }
    }

    /// Whether ids have 32 bits.
    pub(crate) fn wide(&self) -> bool {
        self.word == 4
    }

    /// The size of a record without its kind's data; `large` if the record has a large size.
    #[expect(clippy::arithmetic_side_effects, reason = "at most 20 bytes")]
    pub(crate) fn record(&self, large: bool) -> usize {
        4 + 2 * self.word + if large { 8 } else { 0 }
    }

    /// The size in bytes of a member of a struct of this size.
    pub(crate) fn member(&self, size: u64) -> usize {
        match (size >= self.large_struct, self.wide()) {
            (true, _) => 16,
            (false, true) => 12,
            (false, false) => 8,
        }
    }
}
