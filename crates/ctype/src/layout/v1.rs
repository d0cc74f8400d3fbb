//! Version 1: 16 bits for ids, sizes and the info word.

use super::{Data, Layout};

pub(super) static LAYOUT: Layout = Layout {
    header: 40,
    word: 2,
    kind_shift: 11,
    root: 1 << 10,
    vlen: 0x3ff,
    child: 0x8000,
    large_size: 0xffff,
    large_struct: 8192,
    data: Data::of_kinds(2, 8),
};
