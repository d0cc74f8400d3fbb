//! Versions 2 and 3: 32 bits for ids, sizes and the info word. They differ in the header.

use super::{Data, Layout};

pub(super) static LAYOUT: Layout = Layout {
    header: 52,
    word: 4,
    kind_shift: 26,
    root: 1 << 25,
    vlen: 0xff_ffff,
    child: 0x8000_0000,
    large_size: 0xffff_ffff,
    large_struct: 536_870_912,
    data: Data::of_kinds(4, 12),
};

pub(super) static LAYOUT_2: Layout = Layout { header: 40, ..LAYOUT };

/// For dicts upgraded from version 1, which keep the limits of its ids.
pub(super) static LAYOUT_UPGRADED: Layout = Layout {
    child: 0x8000,
    ..LAYOUT_2
};
