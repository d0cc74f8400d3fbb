//! What can be wrong with debug information.

use std::fmt;

/// Why debug information cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A section cannot be read or decompressed.
    Elf(backtrail_elf::Error),
    /// The debug information is invalid.
    Dwarf(gimli::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Elf(error) => error.fmt(f),
            Error::Dwarf(error) => write!(f, "damaged debug information: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<gimli::Error> for Error {
    fn from(error: gimli::Error) -> Self {
        Error::Dwarf(error)
    }
}
