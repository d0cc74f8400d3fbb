//! The differences between the versions, one file for each, and decoding a row's words to its rule.

mod context;
pub(crate) mod default;
#[cfg(feature = "write")]
mod entry;
mod fde;
pub(crate) mod flex;
#[cfg(feature = "write")]
mod sink;
mod v1;
mod v2;
mod v3;
mod words;

use backtrail_wire::Bytes;

use crate::constants::{Abi, FdeType, FreInfo, Version};
use crate::error::Result;
use crate::row::Rule;

pub(crate) use context::Context;
pub(crate) use default::PlainWords;
pub(crate) use fde::RawFde;
pub(crate) use v1::FDE_SIZE as V1_FDE_SIZE;
pub(crate) use v2::FDE_SIZE as V2_FDE_SIZE;
pub(crate) use v3::INDEX_SIZE as V3_FDE_SIZE;
pub(crate) use words::Words;
#[cfg(feature = "write")]
pub(crate) use {
    entry::{Block, Entry},
    sink::Sink,
    words::{Word, WordList},
};

/// Size of an entry in the FDE table, in bytes.
pub(crate) const fn fde_size(version: Version) -> usize {
    match version {
        Version::V1 => V1_FDE_SIZE,
        Version::V2 => V2_FDE_SIZE,
        Version::V3 => V3_FDE_SIZE,
    }
}

/// Reads the FDE at byte `at` of the section; `fres` ends with the FRE sub-section, which begins at
/// `fres_start`.
#[inline(always)]
pub(crate) fn read_fde(
    version: Version,
    fdes: Bytes<'_>,
    at: usize,
    fres: Bytes<'_>,
    fres_start: usize,
) -> Result<RawFde> {
    match version {
        Version::V1 => v1::read_fde(fdes, at, fres_start),
        Version::V2 => v2::read_fde(fdes, at, fres_start),
        Version::V3 => v3::read_fde(fdes, at, fres, fres_start),
    }
}

/// The padding between the fields of the FDE at byte `at`, which should be 0. Look-up skips this
/// check to save time.
pub(crate) fn padding(version: Version, fdes: Bytes<'_>, at: usize) -> u16 {
    match version {
        Version::V2 => v2::padding(fdes, at),
        Version::V1 | Version::V3 => 0,
    }
}

#[cfg(feature = "write")]
pub(crate) use writing::{attribute_size, push_attribute, push_fde};

#[cfg(feature = "write")]
mod writing {
    use super::{Block, Entry, Sink};
    use super::{v1, v2, v3};
    use crate::constants::Version;

    /// Size of the FDE's attribute, which version 3 stores right before the rows.
    pub(crate) const fn attribute_size(version: Version) -> usize {
        match version {
            Version::V1 | Version::V2 => 0,
            Version::V3 => v3::ATTRIBUTE_SIZE,
        }
    }

    /// Writes the FDE's attribute, if the version has one, right before the rows.
    pub(crate) fn push_attribute(version: Version, sink: &mut Sink, block: &Block) {
        if version == Version::V3 {
            v3::push_attribute(sink, block);
        }
    }

    /// Writes the entry of the FDE table.
    pub(crate) fn push_fde(version: Version, sink: &mut Sink, entry: &Entry) {
        match version {
            Version::V1 => v1::push_fde(sink, entry),
            Version::V2 => v2::push_fde(sink, entry),
            Version::V3 => v3::push_index(sink, entry),
        }
    }
}

impl Context {
    /// The words of a row, if all of them are plain offsets and can be read quickly.
    #[inline(always)]
    pub(crate) fn plain_words(&self, fde_type: FdeType, words: &Words<'_>) -> Option<PlainWords> {
        match fde_type == FdeType::Default && self.abi != Abi::S390xBig && !words.is_empty() {
            true => default::plain_words(self, words),
            false => None,
        }
    }

    /// The rule of a row with plain words.
    #[inline(always)]
    pub(crate) fn plain(&self, info: FreInfo, words: PlainWords) -> Rule {
        default::plain(self, info, words)
    }

    /// Decodes a row's words to its rule; `None` marks the outermost frame.
    #[inline]
    pub(crate) fn decode(&self, fde_type: FdeType, info: FreInfo, words: &Words<'_>) -> Result<Option<Rule>> {
        if words.is_empty() {
            return Ok(None);
        }
        match fde_type {
            FdeType::Default => default::decode(self, info, words),
            FdeType::Flex => flex::decode(self, info, words),
        }
        .map(Some)
    }
}
