//! Errors in tables.

use core::fmt;

/// The kind of an error in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The magic number is wrong.
    Magic(u16),
    /// The version is not known.
    Version(u8),
    /// The calling convention is not known.
    Abi(u8),
    /// The table is shorter than this many bytes.
    Truncated(u64),
    /// These bits do not begin with a code.
    Code,
    /// There is no record with this number.
    Record(u64),
    /// This number is not allowed here.
    Value(u64),
}

/// An error in a table, and its offset in bytes from the table's start.
pub type Error = backtrail_wire::Located<ErrorKind>;

/// The result of reading a table.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Magic(magic) => write!(f, "no table of arguments: it begins with {magic:#06x}"),
            ErrorKind::Version(version) => write!(f, "version {version} of tables of arguments is not known"),
            ErrorKind::Abi(abi) => write!(f, "calling convention {abi} is not known"),
            ErrorKind::Truncated(wanted) => write!(f, "the table ends before byte {wanted}"),
            ErrorKind::Code => f.write_str("no number begins like this"),
            ErrorKind::Record(number) => write!(f, "there is no record {number}"),
            ErrorKind::Value(value) => write!(f, "{value} can't stand here"),
        }
    }
}

impl core::error::Error for ErrorKind {}
