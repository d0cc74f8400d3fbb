//! Errors of reading types, and where they occurred.

use core::fmt;

/// The result of a read.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A related format that this crate does not read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Foreign {
    /// The CTF of Solaris, illumos and the BSDs.
    Sun,
    /// The BPF Type Format.
    Btf,
    /// CTF version 4, of a development branch.
    Ctf4,
    /// An archive of CTF version 4.
    Archive2,
}

impl Foreign {
    fn name(self) -> &'static str {
        match self {
            Foreign::Sun => "the CTF of Solaris, illumos and the BSDs",
            Foreign::Btf => "BTF, the BPF Type Format",
            Foreign::Ctf4 => "CTF version 4",
            Foreign::Archive2 => "an archive of CTF version 4",
        }
    }
}

/// The kind of error found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The data ends this many bytes too early.
    Truncated {
        /// The number of missing bytes.
        missing: u64,
    },
    /// The first two bytes, here as a little-endian number, are not a magic number of the format.
    Magic(u16),
    /// Another format.
    Foreign(Foreign),
    /// Unknown version.
    Version(u8),
    /// Unknown version of BTF.
    BtfVersion(u8),
    /// Unknown flag.
    Flags(u8),
    /// A part of the dict begins before the previous part, or after the end. Contains the offset in
    /// the header.
    PartOffset(u32),
    /// An index and its table differ in length, or a table has an incomplete entry. Contains the
    /// length in bytes.
    PartLength(u32),
    /// The zlib stream is damaged.
    Inflate,
    /// The zlib stream does not inflate to this many bytes.
    InflatedSize(u64),
    /// An unknown kind of type.
    Kind(u32),
    /// There is no type with this id.
    TypeId(u32),
    /// The id is one of the parent's, which is not available.
    NoParent(u32),
    /// Types of this kind do not have the requested property.
    WrongKind(crate::Kind),
    /// There is no string at this offset of the table; bit 31 selects the external table.
    Name(u32),
    /// The type with this id must have a name but has none.
    Nameless(u32),
    /// The type with this id contains itself, or its chain of references is too long.
    Cycle(u32),
    /// The type with this id has no size: it is only declared, or not represented.
    NoSize(u32),
    /// The size of the type with this id does not fit into 64 bits.
    SizeOverflow(u32),
    /// The text for the type with this id is longer than any plausible type's.
    TooLong(u32),
}

/// A failed read: the kind of error and its offset in bytes from the start of the archive or of the
/// inflated dict.
pub type Error = backtrail_wire::Located<ErrorKind>;

impl From<backtrail_wire::ErrorKind> for ErrorKind {
    #[cold]
    fn from(kind: backtrail_wire::ErrorKind) -> ErrorKind {
        let missing = match kind {
            backtrail_wire::ErrorKind::Truncated { missing } => missing,
            // An unterminated string lacks its zero byte; nothing else is read here.
            _ => 1,
        };
        ErrorKind::Truncated { missing }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Truncated { missing } => write!(f, "types end {missing} bytes too early"),
            ErrorKind::Magic(found) => write!(f, "no compact C types: magic number {found:#06x}"),
            ErrorKind::Foreign(foreign) => write!(f, "{}, which is not read", foreign.name()),
            ErrorKind::Version(found) => write!(f, "version {found} of compact C types is not known"),
            ErrorKind::BtfVersion(found) => write!(f, "version {found} of BTF is not known"),
            ErrorKind::Flags(found) => write!(f, "unknown flags {found:#04x}"),
            ErrorKind::PartOffset(found) => write!(f, "part of the dict at the impossible place {found:#x}"),
            ErrorKind::PartLength(found) => write!(f, "part of the dict with the impossible length {found:#x}"),
            ErrorKind::Inflate => write!(f, "damaged compressed data"),
            ErrorKind::InflatedSize(size) => write!(f, "compressed data that are not {size} bytes"),
            ErrorKind::Kind(found) => write!(f, "unknown kind of type {found}"),
            ErrorKind::TypeId(id) => write!(f, "no type has the id {id:#x}"),
            ErrorKind::NoParent(id) => write!(f, "type {id:#x} is in a parent that is not there"),
            ErrorKind::WrongKind(kind) => write!(f, "a type of kind {} has no such thing", kind.name()),
            ErrorKind::Name(name) if name >> 31 != 0 => {
                write!(f, "no string at {:#x} of the external table", name & 0x7fff_ffff)
            }
            ErrorKind::Name(name) => write!(f, "no string at {name:#x} of the table"),
            ErrorKind::Nameless(id) => write!(f, "type {id:#x} has no name"),
            ErrorKind::Cycle(id) => write!(f, "type {id:#x} is made of itself"),
            ErrorKind::NoSize(id) => write!(f, "type {id:#x} has no size"),
            ErrorKind::SizeOverflow(id) => write!(f, "type {id:#x} is too large"),
            ErrorKind::TooLong(id) => write!(f, "type {id:#x} takes too long a text"),
        }
    }
}
