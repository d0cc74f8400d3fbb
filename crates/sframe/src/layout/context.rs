//! What rows depend on beside their words.

use crate::constants::{Abi, Version};
use crate::row::Location;

/// A section's properties that its rows depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) version: Version,
    pub(crate) abi: Abi,
    pub(crate) fixed_fp: i8,
    pub(crate) fixed_ra: i8,
}

impl Context {
    /// Where the return address is if a row says nothing: at the fixed offset, or still in its
    /// register.
    #[inline]
    pub(crate) fn default_ra(&self) -> Location {
        match self.fixed_ra {
            0 => Location::register(self.abi.arch().ra.0, 0),
            offset => Location::saved(offset.into()),
        }
    }

    /// Where the caller's frame pointer is if a row says nothing.
    #[inline]
    pub(crate) fn default_fp(&self) -> Option<Location> {
        match self.fixed_fp {
            0 => None,
            offset => Some(Location::saved(offset.into())),
        }
    }
}
