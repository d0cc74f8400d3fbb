//! The section properties that decoding a row depends on.

use crate::constants::{Abi, Version};
use crate::row::Location;

/// The properties of a section that its rows depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) version: Version,
    pub(crate) abi: Abi,
    pub(crate) fixed_fp: i8,
    pub(crate) fixed_ra: i8,
}

impl Context {
    /// The return address if a row has no word for it: at the fixed offset, or still in its
    /// register.
    #[inline]
    pub(crate) fn default_ra(&self) -> Location {
        match self.fixed_ra {
            0 => Location::register(self.abi.arch().ra.0, 0),
            offset => Location::saved(offset.into()),
        }
    }

    /// The location of the caller's frame pointer if a row has no word for it.
    #[inline]
    pub(crate) fn default_fp(&self) -> Option<Location> {
        match self.fixed_fp {
            0 => None,
            offset => Some(Location::saved(offset.into())),
        }
    }
}
