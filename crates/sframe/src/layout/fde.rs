//! The fields of an FDE, independent of the version.

use crate::constants::{FdeInfo, FdeType, FreType};
use crate::error::{Error, ErrorKind, Result};

/// The fields of an FDE, wherever its version stores them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFde {
    /// The start as stored, without its base.
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) num_fres: u32,
    pub(crate) info: FdeInfo,
    pub(crate) fre_type: FreType,
    pub(crate) fde_type: FdeType,
    pub(crate) rep_size: u8,
    /// Offset of `info` in bytes from the section's start.
    pub(crate) info_at: usize,
    /// The unused bits of the second info byte (version 3).
    pub(crate) unused_bits: u8,
    /// Offset of the first row in bytes from the section's start.
    pub(crate) rows: usize,
}

pub(super) fn row_type(info: FdeInfo, at: usize) -> Result<FreType> {
    info.fre_type()
        .ok_or_else(|| Error::new(ErrorKind::FreType(info.0 & 0xf), at))
}
