//! What is wrong with a table.

use core::fmt;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// It does not begin as tables do.
    Magic(u16),
    /// A version that is not known.
    Version(u8),
    /// A calling convention that is not known.
    Abi(u8),
    /// It ends before this many bytes.
    Truncated(u64),
    /// No number begins with these bits.
    Code,
    /// A record with this number, of which there is none.
    Record(u64),
    /// This number stands where it can't.
    Value(u64),
}

/// What is wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Bytes from the table's start.
    pub offset: u64,
}

/// Of reading a table.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ErrorKind::Magic(magic) => write!(f, "no table of arguments: it begins with {magic:#06x}")?,
            ErrorKind::Version(version) => write!(f, "version {version} of tables of arguments is not known")?,
            ErrorKind::Abi(abi) => write!(f, "calling convention {abi} is not known")?,
            ErrorKind::Truncated(wanted) => write!(f, "the table ends before byte {wanted}")?,
            ErrorKind::Code => f.write_str("no number begins like this")?,
            ErrorKind::Record(number) => write!(f, "there is no record {number}")?,
            ErrorKind::Value(value) => write!(f, "{value} can't stand here")?,
        }
        write!(f, ", at byte {:#x}", self.offset)
    }
}

impl core::error::Error for Error {}
