//! The reasons why a module has no table.

use std::fmt;

use backtrail_elf::isolation::Lost;
use backtrail_sframe::write::WriteError;

use crate::eh_frame;

/// Why a module has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A section cannot be read.
    Elf(backtrail_elf::Error),
    /// The module has neither `.sframe` nor `.eh_frame`, nor any other unwind information.
    NoUnwindInformation,
    /// The file has no `.eh_frame`, nor `.debug_frame` or `.gopclntab`, or their contents are
    /// missing.
    NoEhFrame,
    /// Nothing in `.eh_frame` is valid.
    Cfi(eh_frame::Error),
    /// The table would be larger than its format allows.
    Write(WriteError),
    /// The process that reads files of other users made no table of it.
    Isolated(Lost),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Elf(error) => error.fmt(f),
            Error::NoUnwindInformation => f.write_str("has neither .sframe nor .eh_frame"),
            Error::NoEhFrame => f.write_str("no .eh_frame section, nor .debug_frame or .gopclntab"),
            Error::Cfi(error) => error.fmt(f),
            Error::Write(error) => error.fmt(f),
            Error::Isolated(lost) => lost.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::Isolated(lost)
    }
}

impl From<backtrail_elf::Error> for Error {
    fn from(error: backtrail_elf::Error) -> Self {
        Error::Elf(error)
    }
}
