//! Findings: what is wrong, in which item, and where.

use core::fmt;

use crate::constants::Version;
use crate::error::{Error, ErrorKind};

/// The item that a finding is about.
///
/// Its text form is, for example, `header.flags`, `fde[3].start` or `fde[3].row[2].offset[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Index of the FDE; `None` for the header.
    pub fde: Option<u32>,
    /// Index of the row in its function.
    pub row: Option<u32>,
    /// The field, if the finding is about one.
    pub field: Option<Field>,
}

/// A field of the header, of an FDE or of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `sfp_flags`
    Flags,
    /// `sfh_abi_arch`
    AbiArch,
    /// `sfh_cfa_fixed_fp_offset`
    CfaFixedFpOffset,
    /// `sfh_cfa_fixed_ra_offset`
    CfaFixedRaOffset,
    /// `sfh_auxhdr_len`
    AuxhdrLen,
    /// `sfh_num_fdes`
    NumFdes,
    /// `sfh_num_fres`
    NumFres,
    /// `sfh_fdeoff`
    Fdeoff,
    /// `sfh_freoff`
    Freoff,
    /// `sfde_func_start_address`
    Start,
    /// `sfde_func_num_fres`
    Rows,
    /// `sfde_func_info`
    Info,
    /// The second info byte of version 3.
    Info2,
    /// `sfde_func_padding2`
    Padding,
    /// `sfre_start_address`
    RowStart,
    /// `sfre_info`
    RowInfo,
    /// A word after the row's info byte, by its index.
    Offset(u8),
}

impl Path {
    pub(super) const fn header(field: Field) -> Path {
        Path {
            fde: None,
            row: None,
            field: Some(field),
        }
    }

    pub(super) const fn fde(fde: u32, field: Option<Field>) -> Path {
        Path {
            fde: Some(fde),
            row: None,
            field,
        }
    }

    pub(super) const fn row(fde: u32, row: u32, field: Option<Field>) -> Path {
        Path {
            fde: Some(fde),
            row: Some(row),
            field,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fde, self.row) {
            (None, _) => write!(f, "header")?,
            (Some(fde), None) => write!(f, "fde[{fde}]")?,
            (Some(fde), Some(row)) => write!(f, "fde[{fde}].row[{row}]")?,
        }
        let name = match self.field {
            None => return Ok(()),
            Some(Field::Offset(index)) => return write!(f, ".offset[{index}]"),
            Some(Field::Flags) => "flags",
            Some(Field::AbiArch) => "abi_arch",
            Some(Field::CfaFixedFpOffset) => "cfa_fixed_fp_offset",
            Some(Field::CfaFixedRaOffset) => "cfa_fixed_ra_offset",
            Some(Field::AuxhdrLen) => "auxhdr_len",
            Some(Field::NumFdes) => "num_fdes",
            Some(Field::NumFres | Field::Rows) => "num_fres",
            Some(Field::Fdeoff) => "fdeoff",
            Some(Field::Freoff) => "freoff",
            Some(Field::Start | Field::RowStart) => "start",
            Some(Field::Info | Field::RowInfo) => "info",
            Some(Field::Info2) => "info2",
            Some(Field::Padding) => "padding",
        };
        write!(f, ".{name}")
    }
}

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// The item can't be read.
    Unreadable(ErrorKind),
    /// The version does not define these flags.
    UnknownFlags(u8),
    /// The functions are not flagged as sorted by their start.
    NotFlaggedAsSorted,
    /// The ABI's byte order is not that of the section.
    AbiByteOrder,
    /// The version does not have this ABI.
    AbiOfVersion(Version),
    /// The ABI does not have this fixed offset.
    FixedOffset(i8),
    /// The section has an auxiliary header of this many bytes; no specification defines one.
    AuxiliaryHeader(u8),
    /// The section has no functions or no rows.
    Empty,
    /// The FDE sub-section comes after the FRE sub-section.
    SubSectionOrder,
    /// The FDE sub-section extends this many bytes into the FRE sub-section.
    SubSectionOverlap(u64),
    /// All functions together have this number of rows, not the header's.
    RowSum(u64),
    /// The function starts before its predecessor in the table.
    FunctionOrder,
    /// The function starts this many bytes before the end of an earlier one.
    FunctionOverlap(u64),
    /// These bits have no meaning in this version and ABI.
    UnusedBits(u8),
    /// Padding bytes are not 0.
    Padding(u16),
    /// The function has no rows.
    NoRows,
    /// The row does not start after the previous one.
    RowOrder(u32),
    /// The row starts at or after the end of its function or repeated block.
    RowRange {
        /// The start of the row.
        start: u32,
        /// The size of the function or block.
        size: u32,
    },
    /// The row's type and ABI do not allow this number of words.
    WordCount(u8),
    /// A control word has bits without a meaning.
    Control(u32),
    /// A register is saved at the CFA itself, which belongs to the caller's frame.
    SavedAtCfa,
}

/// A fault in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// The item that is wrong.
    pub path: Path,
    /// The kind of fault.
    pub kind: FindingKind,
    /// Offset in bytes from the section's start.
    pub offset: u64,
}

impl Finding {
    /// An FDE that can't be read.
    pub(crate) fn of_fde(fde: u32, error: Error) -> Finding {
        Finding {
            path: Path::fde(fde, None),
            ..Finding::from(error)
        }
    }

    /// A row that can't be read.
    pub(crate) fn of_row(fde: u32, row: u32, error: Error) -> Finding {
        Finding {
            path: Path::row(fde, row, None),
            ..Finding::from(error)
        }
    }
}

impl From<Error> for Finding {
    /// An error in the header; only its offset identifies the field.
    fn from(error: Error) -> Finding {
        Finding {
            path: Path {
                fde: None,
                row: None,
                field: None,
            },
            kind: FindingKind::Unreadable(error.kind),
            offset: error.offset,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at offset {:#x}", self.path, self.kind, self.offset)
    }
}

impl core::error::Error for Finding {}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FindingKind::Unreadable(kind) => write!(f, "{kind}"),
            FindingKind::UnknownFlags(bits) => write!(f, "unknown flags {bits:#x}"),
            FindingKind::NotFlaggedAsSorted => write!(f, "functions are not flagged as sorted"),
            FindingKind::AbiByteOrder => write!(f, "ABI of the other byte order"),
            FindingKind::AbiOfVersion(version) => write!(f, "ABI that {} does not have", version.name()),
            FindingKind::FixedOffset(offset) => write!(f, "fixed offset {offset}, which the ABI does not have"),
            FindingKind::AuxiliaryHeader(len) => write!(f, "auxiliary header of {len} bytes"),
            FindingKind::Empty => write!(f, "nothing in the table"),
            FindingKind::SubSectionOrder => write!(f, "FDE sub-section after the FRE sub-section"),
            FindingKind::SubSectionOverlap(bytes) => {
                write!(
                    f,
                    "last {bytes} bytes of the FDE sub-section lie in the FRE sub-section"
                )
            }
            FindingKind::RowSum(rows) => write!(f, "functions have {rows} rows together"),
            FindingKind::FunctionOrder => write!(f, "function starts before the one before it"),
            FindingKind::FunctionOverlap(bytes) => write!(f, "function starts {bytes} bytes before the end of another"),
            FindingKind::UnusedBits(bits) => write!(f, "bits {bits:#x} have no meaning here"),
            FindingKind::Padding(bits) => write!(f, "padding is {bits:#x}"),
            FindingKind::NoRows => write!(f, "function without rows"),
            FindingKind::RowOrder(start) => write!(f, "row starts at {start:#x}, not after the one before it"),
            FindingKind::RowRange { start, size } => write!(f, "row starts at {start:#x} of {size:#x} bytes of code"),
            FindingKind::WordCount(count) => write!(f, "row of {count} words"),
            FindingKind::Control(control) => write!(f, "control word {control:#x} has bits without a meaning"),
            FindingKind::SavedAtCfa => write!(f, "register saved at the CFA, in the caller's frame"),
        }
    }
}
