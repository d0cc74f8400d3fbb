//! Options for writing a section.

use backtrail_wire::Endian;

use crate::constants::{Abi, Version};
use crate::layout::Context;
use crate::readers::Readers;

/// Options for writing a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The version.
    pub version: Version,
    /// The ABI; it determines the byte order.
    pub abi: Abi,
    /// The address of the section's first byte.
    pub address: u64,
    /// Whether start fields are relative to themselves, with the flag set. Not in version 1.
    pub pcrel: bool,
    /// Whether functions with the same rows share them. libsframe can't decode shared rows in a
    /// byte order other than the machine's.
    pub share: bool,
    /// The most neighbouring functions that one FDE may describe, if that is smaller. With 0 or 1,
    /// each function has its own FDE.
    ///
    /// With more, functions are also cut if the pieces share rows with others, and padding between
    /// the functions of an FDE gets the row before it. All other addresses keep their rules.
    pub merge: u8,
    /// Rows that one of these readers refuses are left out, with their code. See
    /// [`Options::for_readers`].
    pub readers: Readers,
}

impl Options {
    /// The usual options of the version's producers; rows are shared if the byte order is that of
    /// this machine.
    pub fn new(version: Version, abi: Abi, address: u64) -> Options {
        Options {
            version,
            abi,
            address,
            pcrel: version == Version::V3,
            share: abi.endian() == Endian::NATIVE,
            merge: 1,
            readers: Readers::default(),
        }
    }

    /// The same, restricted to what all of `readers` read. The version remains, and should be one
    /// that they read ([`Readers::version`]).
    pub fn for_readers(self, readers: Readers) -> Options {
        let relative = !readers.is_empty() && self.version != Version::V1;
        Options {
            pcrel: self.pcrel || relative,
            readers,
            ..self
        }
    }

    /// The properties of a section that is written with these options.
    pub(crate) fn context(&self) -> Context {
        Context {
            version: self.version,
            abi: self.abi,
            fixed_fp: 0,
            fixed_ra: self.abi.fixed_ra_offset(),
        }
    }
}
