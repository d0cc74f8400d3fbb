//! Where the versions differ: widths and bits, as data. One reader goes by them.

mod v1;
mod v3;

use crate::constants::{Kind, Version};

/// How a version lays out its header and its types.
pub(crate) struct Layout {
    /// Bytes of the header.
    pub(crate) header: usize,
    /// Bytes of a type's id, and of the info and size words of a record.
    pub(crate) word: usize,
    /// Where the kind begins in the info word.
    pub(crate) kind_shift: u32,
    /// The bit of the info word that says that look-ups by name see the type.
    pub(crate) root: u32,
    /// The bits of the info word with the number of members, arguments or values.
    pub(crate) vlen: u32,
    /// The bit of an id that says that the type is the child's own.
    pub(crate) child: u32,
    /// `CTF_LSIZE_SENT`: the size is in two words more.
    pub(crate) large_size: u32,
    /// `CTF_LSTRUCT_THRESH`: structs from this size on have members with offsets of 64 bits.
    pub(crate) large_struct: u64,
    /// What follows the records of each kind, by its number.
    pub(crate) data: [Data; KINDS],
}

/// How many kinds there are.
const KINDS: usize = Kind::ALL.len();

/// What follows records of a kind: so many bytes, and so many for each member, argument or value.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    fixed: usize,
    each: usize,
    /// 1 where there is a pad for each odd number of these, or else 0.
    pad: usize,
}

impl Data {
    const NONE: Data = Data {
        fixed: 0,
        each: 0,
        pad: 0,
    };

    /// Of all kinds, with ids of `word` bytes and members of `member`.
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

    /// Bytes, with so many members, arguments or values. Not of structs whose members have offsets
    /// of 64 bits.
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

    /// Whether ids are of 32 bits.
    pub(crate) fn wide(&self) -> bool {
        self.word == 4
    }

    /// Bytes of a record without its kind's data; of one with a large size.
    pub(crate) fn record(&self, large: bool) -> usize {
        4 + 2 * self.word + if large { 8 } else { 0 }
    }

    /// Bytes of a member of a struct of this size.
    pub(crate) fn member(&self, size: u64) -> usize {
        match (size >= self.large_struct, self.wide()) {
            (true, _) => 16,
            (false, true) => 12,
            (false, false) => 8,
        }
    }
}
