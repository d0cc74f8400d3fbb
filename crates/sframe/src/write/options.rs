//! How it is written.

use backtrail_wire::Endian;

use crate::constants::{Abi, Version};
use crate::layout::Context;

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The version.
    pub version: Version,
    /// The ABI; it gives the byte order.
    pub abi: Abi,
    /// Where the section's first byte will lie.
    pub address: u64,
    /// Whether start fields count from themselves, and the flag says so. Not in version 1.
    pub pcrel: bool,
    /// Whether functions with the same rows share them. libsframe can't decode shared rows in a
    /// byte order that is not the machine's.
    pub share: bool,
    /// Up to how many neighbouring functions may stand under one FDE where that is smaller; 0 and
    /// 1: each has its own. If more than one, functions are also cut where the pieces share
    /// rows with others, and padding between functions under one FDE gets the row before it.
    /// What the rows say of every other address stays the same.
    pub merge: u8,
}

impl Options {
    /// The usual way of the version's producers; rows are shared where the byte order is this
    /// machine's.
    pub fn new(version: Version, abi: Abi, address: u64) -> Options {
        Options {
            version,
            abi,
            address,
            pcrel: version == Version::V3,
            share: abi.endian() == Endian::NATIVE,
            merge: 1,
        }
    }
    /// The properties of a section that is written so.
    pub(crate) fn context(&self) -> Context {
        Context {
            version: self.version,
            abi: self.abi,
            fixed_fp: 0,
            fixed_ra: self.abi.fixed_ra_offset(),
        }
    }
}
