//! What an FDE says in every version.

use crate::constants::{FdeInfo, FdeType, FreType};
use crate::error::{Error, ErrorKind, Result};

/// What an FDE says, wherever its version stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFde {
    /// As stored, its base not added.
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) num_fres: u32,
    pub(crate) info: FdeInfo,
    pub(crate) fre_type: FreType,
    pub(crate) fde_type: FdeType,
    pub(crate) rep_size: u8,
    /// Where `info` is, in bytes from the section's start.
    pub(crate) info_at: usize,
    /// Bits of the second info byte that mean nothing (version 3).
    pub(crate) unused_bits: u8,
    /// Where the first row is, in bytes from the section's start.
    pub(crate) rows: usize,
}

pub(super) fn row_type(info: FdeInfo, at: usize) -> Result<FreType> {
    info.fre_type()
        .ok_or_else(|| Error::new(ErrorKind::FreType(info.0 & 0xf), at))
}
