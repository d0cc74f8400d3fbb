//! Errors of reading a section, and where they occurred.

use core::fmt;

/// The result of a read.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The kind of error found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The data ends this many bytes too early.
    Truncated {
        /// The number of missing bytes.
        missing: u64,
    },
    /// The first two bytes, here as a little-endian number, are not `SFRAME_MAGIC` in either order.
    Magic(u16),
    /// Unknown version.
    Version(u8),
    /// Unknown ABI.
    Abi(u8),
    /// The info byte of an FDE has an unknown row type.
    FreType(u8),
    /// The second info byte of an FDE has an unknown FDE type.
    FdeType(u8),
    /// The repeat size of a PCMASK FDE is 0.
    RepeatOfZero,
    /// The info byte of a row has an unknown word size.
    WordSize(u8),
    /// The CFA's control word has no register.
    FlexCfaBase(u32),
    /// A FLEX row ends before the offset that belongs to this control word.
    FlexOffset(u32),
    /// A register number is above 255 or below 0.
    Register(i64),
    /// The CFA's offset, after scaling, does not fit into 32 bits.
    CfaOffset(i64),
    /// The functions claim more rows than this, the limit for a section of this length.
    TooManyRows(u64),
}

/// A failed read: the kind of error and its offset in bytes from the section's start.
pub type Error = backtrail_wire::Located<ErrorKind>;

impl From<backtrail_wire::ErrorKind> for ErrorKind {
    #[cold]
    fn from(kind: backtrail_wire::ErrorKind) -> ErrorKind {
        let missing = match kind {
            backtrail_wire::ErrorKind::Truncated { missing } => missing,
            // Only fixed-size integers are read here; the only error is that they are cut off.
            _ => 0,
        };
        ErrorKind::Truncated { missing }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Truncated { missing } => write!(f, "SFrame section ends {missing} bytes too early"),
            ErrorKind::Magic(found) => write!(f, "no SFrame section: magic number {found:#06x}"),
            ErrorKind::Version(found) => write!(f, "SFrame version {found} is not known"),
            ErrorKind::Abi(found) => write!(f, "SFrame ABI {found} is not known"),
            ErrorKind::FreType(found) => write!(f, "row type {found} is not known"),
            ErrorKind::FdeType(found) => write!(f, "FDE type {found} is not known"),
            ErrorKind::RepeatOfZero => write!(f, "repeat size is 0"),
            ErrorKind::WordSize(found) => write!(f, "word size {found} is not known"),
            ErrorKind::FlexCfaBase(control) => write!(f, "control word {control:#x} gives the CFA no register"),
            ErrorKind::FlexOffset(control) => write!(f, "no offset follows control word {control:#x}"),
            ErrorKind::Register(found) => write!(f, "register number {found} is out of range"),
            ErrorKind::CfaOffset(found) => write!(f, "CFA offset {found} is out of range"),
            ErrorKind::TooManyRows(most) => write!(f, "functions claim more than {most} rows"),
        }
    }
}
