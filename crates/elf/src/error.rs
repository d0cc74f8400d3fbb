//! Errors in ELF files, and their positions.

use core::fmt;

use crate::budget::Limit;

/// The result of reading ELF.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not begin with the magic number of ELF.
    NotElf,
    /// `EI_CLASS` is not `ELFCLASS64`, or, if the code does not matter, neither `ELFCLASS32` nor
    /// `ELFCLASS64`.
    Class(u8),
    /// `EI_DATA` is neither little-endian nor big-endian.
    ByteOrder(u8),
    /// `e_machine` is not x86-64, AArch64 or s390x.
    Machine(u16),
    /// The machine does not exist in this byte order.
    MachineByteOrder(u16),
    /// `e_type` is not relocatable, executable, shared or core.
    Type(u16),
    /// `e_phentsize` is not the size of a program header.
    ProgramHeaderSize(u16),
    /// The data ends before the end that the headers give.
    Truncated {
        /// Bytes that are missing.
        missing: u64,
    },
    /// A compressed section states an impossible size.
    CompressedSize(u64),
    /// A section's compression type is not known.
    Compression(u32),
    /// Compressed data is damaged.
    Decompress,
    /// A relocation of a type that tables about code don't use.
    Relocation(u32),
    /// Relocations for a machine (`e_machine`) whose relocations are not known.
    RelocationMachine(u16),
    /// A relocation of bytes outside its section, by their offset in the section.
    RelocationOffset(u64),
    /// A relocation with a symbol that its symbol table doesn't contain.
    RelocationSymbol(u64),
    /// A section that has to be read has relocations of an unknown section type (`sh_type`).
    RelocationSort(u32),
    /// A section with code that no symbol for a relocation belongs to.
    NoSymbol(u64),
    /// Several sections with the same name, of which other files have one.
    Several(u64),
    /// An archive member with an invalid header, or cut off.
    ArchiveMember,
    /// An archive's symbol index is not GNU's, is damaged, or cannot hold a member's offset.
    ArchiveIndex,
    /// Only executables and shared libraries can get a table.
    NotLinked,
    /// The file has no loaded segments.
    NotLoaded,
    /// Loaded segments are out of order or can't be mapped.
    Segments,
    /// More headers than the ELF header can count.
    TooManyHeaders(u64),
    /// The section headers lie outside the file or have the wrong size.
    SectionHeaders,
    /// This many bytes follow the last part that ELF describes: programs find their own data from
    /// the file's end.
    Appended(u64),
    /// The file is the dynamic linker, which kernels before 6.7 can't load with a segment after its
    /// last one.
    DynamicLinker,
    /// The file is not a core.
    NotCore,
    /// A note is longer than its container, or has more entries than bytes.
    Note(u32),
    /// Reading it exceeds the budget.
    Limit(Limit),
    /// The core has no note with a thread's registers.
    NoThreads,
    /// The program headers can't grow in place: something that code may refer to follows them
    /// directly.
    NoRoom,
}

/// An error in an ELF file, and the offset in bytes from the start of the data to the byte that is
/// wrong.
pub type Error = backtrail_wire::Located<ErrorKind>;

impl From<backtrail_wire::ErrorKind> for ErrorKind {
    fn from(kind: backtrail_wire::ErrorKind) -> Self {
        let missing = match kind {
            backtrail_wire::ErrorKind::Truncated { missing } => missing,
            // ELF has neither LEB128 numbers nor bit ranges; an unterminated string lacks its zero
            // byte.
            _ => 1,
        };
        ErrorKind::Truncated { missing }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::NotElf => write!(f, "not an ELF file"),
            ErrorKind::Class(1) => write!(f, "32-bit ELF is not supported"),
            ErrorKind::Class(class) => write!(f, "unknown ELF class {class}"),
            ErrorKind::ByteOrder(order) => write!(f, "unknown byte order {order}"),
            ErrorKind::Machine(machine) => {
                write!(
                    f,
                    "ELF machine {machine} is not supported (x86-64, AArch64 and s390x are)"
                )
            }
            ErrorKind::MachineByteOrder(machine) => {
                write!(f, "ELF machine {machine} in a byte order it does not have")
            }
            ErrorKind::Type(kind) => write!(f, "unknown ELF type {kind}"),
            ErrorKind::ProgramHeaderSize(size) => write!(
                f,
                "program headers of {size} bytes instead of 56 (of 32 in a 32-bit file)"
            ),
            ErrorKind::Truncated { missing } => write!(f, "data ends {missing} bytes too early"),
            ErrorKind::CompressedSize(size) => write!(f, "impossible uncompressed size {size}"),
            ErrorKind::Compression(kind) => write!(f, "unknown compression {kind}"),
            ErrorKind::Decompress => write!(f, "damaged compressed data"),
            ErrorKind::Relocation(kind) => write!(f, "relocation of type {kind} is not supported"),
            ErrorKind::RelocationMachine(machine) => {
                write!(
                    f,
                    "relocations of ELF machine {machine} are not known: link the object first"
                )
            }
            ErrorKind::RelocationOffset(offset) => {
                write!(f, "relocation past the section's end, at {offset:#x} of it")
            }
            ErrorKind::RelocationSort(kind) => write!(f, "relocations of section type {kind:#x} are not supported"),
            ErrorKind::NoSymbol(section) => write!(f, "no symbol for the code in section {section}"),
            ErrorKind::Several(count) => write!(f, "{count} sections with the name .eh_frame"),
            ErrorKind::ArchiveMember => write!(f, "a member of the archive is damaged or cut off"),
            ErrorKind::ArchiveIndex => write!(f, "the archive's index of symbols is damaged or of an unknown sort"),
            ErrorKind::NotLinked => write!(f, "neither an executable nor a shared library"),
            ErrorKind::NotLoaded => write!(f, "nothing of the file is loaded into memory"),
            ErrorKind::Segments => write!(f, "a segment that is out of order or can't be loaded"),
            ErrorKind::TooManyHeaders(count) => write!(f, "{count} headers are too many"),
            ErrorKind::SectionHeaders => write!(f, "damaged section headers"),
            ErrorKind::Appended(size) => write!(f, "{size} bytes of data appended that ELF does not know of"),
            ErrorKind::DynamicLinker => write!(
                f,
                "the dynamic linker has no room for a table, and older kernels can't load it with one more segment"
            ),
            ErrorKind::Limit(limit) => write!(f, "{limit}"),
            ErrorKind::NotCore => write!(f, "not a core file"),
            ErrorKind::Note(kind) => write!(f, "damaged note of type {kind:#x}"),
            ErrorKind::NoThreads => write!(f, "the core has no thread's registers"),
            ErrorKind::NoRoom => write!(f, "no room after the program headers, and what is there can't be moved"),
            ErrorKind::RelocationSymbol(index) => write!(f, "relocation with the missing symbol {index}"),
        }
    }
}

impl std::error::Error for ErrorKind {}
