//! What is stored of a function when it is written.

use core::ops::Range;

use crate::constants::{FdeInfo, FdeType, FreType};

/// The rows of a function, encoded, and what stands with them.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) num_fres: u32,
    pub(crate) info: FdeInfo,
    pub(crate) fre_type: FreType,
    pub(crate) fde_type: FdeType,
    pub(crate) rep_size: u8,
    /// The bytes in the FRE sub-section, in the encoder's arena.
    pub(crate) bytes: Range<usize>,
}

/// An entry of the FDE table.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) fre_off: u32,
    /// The block's, but for the width of starts where that differs.
    pub(crate) info: FdeInfo,
    pub(crate) block: &'a Block,
}
