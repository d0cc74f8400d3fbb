//! Several readers of one table.

use super::Reader;
use crate::constants::Version;

/// A set of readers, for tables that all of them should read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readers {
    /// A bit for each of [`Reader::ALL`].
    bits: u8,
}

impl Readers {
    /// Whether there is no reader in it.
    pub const fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Whether it contains the reader.
    pub const fn contains(self, reader: Reader) -> bool {
        self.bits & reader.bit() != 0
    }

    /// Its readers, in the order of [`Reader::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Reader> {
        Reader::ALL.into_iter().filter(move |reader| self.contains(*reader))
    }

    /// Whether all of them read this version.
    pub fn read(self, version: Version) -> bool {
        self.iter().all(|reader| reader.reads(version))
    }

    /// The newest version that all of them read, if any.
    pub fn version(self) -> Option<Version> {
        Version::ALL.into_iter().rev().find(|version| self.read(*version))
    }
}

impl FromIterator<Reader> for Readers {
    fn from_iter<I: IntoIterator<Item = Reader>>(readers: I) -> Readers {
        let bits = readers.into_iter().fold(0, |bits, reader| bits | reader.bit());
        Readers { bits }
    }
}

impl Reader {
    const fn bit(self) -> u8 {
        match self {
            Reader::Kernel => 1,
            Reader::Glibc2_42 => 2,
            Reader::Binutils2_47 => 4,
        }
    }
}
