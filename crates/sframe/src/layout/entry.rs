//! The stored parts of a function to write.

use core::ops::Range;

use crate::constants::{FdeInfo, FdeType, FreType};

/// The encoded rows of a function, and the properties stored with them.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) num_fres: u32,
    pub(crate) info: FdeInfo,
    pub(crate) fre_type: FreType,
    pub(crate) fde_type: FdeType,
    pub(crate) rep_size: u8,
    /// Its bytes for the FRE sub-section, as a range of the encoder's arena.
    pub(crate) bytes: Range<usize>,
}

/// An entry of the FDE table.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) fre_off: u32,
    /// The block's info byte; only the width of starts may differ.
    pub(crate) info: FdeInfo,
    pub(crate) block: &'a Block,
}
