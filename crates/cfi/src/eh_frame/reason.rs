//! The reasons why code could not be converted.

use std::fmt;

/// Why rows cannot express call frame information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The FDE, its CIE or an instruction is invalid.
    Damaged,
    /// An instruction is not known.
    UnknownInstruction,
    /// The FDE describes no code.
    Empty,
    /// The FDE is outside the executable segments: its section was discarded, or it is damaged.
    OutsideCode,
    /// The function is larger than 4 GiB.
    TooLarge,
    /// Another FDE describes the same code: the first one counts if they begin at the same address,
    /// otherwise the one that begins later.
    Overlap,
    /// The column of the return address is not a register that rows can name.
    ReturnColumn,
    /// The CFA is an expression that is neither `register + offset` nor the word there.
    CfaExpression,
    /// The CFA counts from a register that rows cannot name.
    CfaRegister,
    /// The return address is an expression that is neither `base + offset` nor the word there.
    RaExpression,
    /// The return address is in a register that rows cannot name.
    RaRegister,
    /// Nothing gives the place of the return address.
    RaUnsaved,
    /// The frame pointer is an expression that is neither `base + offset` nor the word there.
    FpExpression,
    /// The frame pointer is in a register that rows cannot name.
    FpRegister,
    /// The caller's frame pointer is lost.
    FpUndefined,
    /// The caller's stack pointer is not what the ABI derives from the CFA.
    SpRule,
    /// An offset does not fit into 32 bits.
    WideOffset,
    /// The code runs on another stack than its caller, and nothing in it leads back.
    StackSwitch,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 18] = [
        Reason::Damaged,
        Reason::UnknownInstruction,
        Reason::Empty,
        Reason::OutsideCode,
        Reason::TooLarge,
        Reason::Overlap,
        Reason::ReturnColumn,
        Reason::CfaExpression,
        Reason::CfaRegister,
        Reason::RaExpression,
        Reason::RaRegister,
        Reason::RaUnsaved,
        Reason::FpExpression,
        Reason::FpRegister,
        Reason::FpUndefined,
        Reason::SpRule,
        Reason::WideOffset,
        Reason::StackSwitch,
    ];

    /// The reason's name in JSON and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Damaged => "damaged",
            Reason::UnknownInstruction => "unknown_instruction",
            Reason::Empty => "empty",
            Reason::OutsideCode => "outside_code",
            Reason::TooLarge => "too_large",
            Reason::Overlap => "overlap",
            Reason::ReturnColumn => "return_column",
            Reason::CfaExpression => "cfa_expression",
            Reason::CfaRegister => "cfa_register",
            Reason::RaExpression => "ra_expression",
            Reason::RaRegister => "ra_register",
            Reason::RaUnsaved => "ra_unsaved",
            Reason::FpExpression => "fp_expression",
            Reason::FpRegister => "fp_register",
            Reason::FpUndefined => "fp_undefined",
            Reason::SpRule => "sp_rule",
            Reason::WideOffset => "wide_offset",
            Reason::StackSwitch => "stack_switch",
        }
    }

    pub(crate) fn of(error: gimli::Error) -> Reason {
        match error {
            gimli::Error::UnknownCallFrameInstruction(_) => Reason::UnknownInstruction,
            _ => Reason::Damaged,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Code that has an FDE and no rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Address of the first byte (svma); 0 if the FDE does not even give that.
    pub start: u64,
    /// Bytes without rows; 0 if other FDEs cover all of them, or there are none.
    pub size: u64,
    /// The reason.
    pub reason: Reason,
}

/// The kind of damage in the section's structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The section ends within the length of an entry.
    Truncated,
    /// An entry has an impossible length.
    EntryLength(u64),
}

/// The first invalid place in an `.eh_frame` section, with its offset in bytes from the section's
/// start.
pub type Error = backtrail_wire::Located<ErrorKind>;

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Truncated => write!(f, "call frame information ends within an entry"),
            ErrorKind::EntryLength(len) => write!(f, "call frame information entry of impossible length {len}"),
        }
    }
}

impl std::error::Error for ErrorKind {}
