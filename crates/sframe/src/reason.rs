//! Why a version of the format cannot express a function.

use core::fmt;

/// Why the chosen version can't express a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// It has no rows, which in version 3 would mean "outermost frame".
    NoRows,
    /// The starts of its rows don't ascend.
    RowOrder,
    /// It has more rows than the version can count (65,535 in version 3).
    TooManyRows,
    /// It is farther from the section than the start field can express.
    StartOutOfRange,
    /// The version can't store the size of its repeated blocks, or the size is 0.
    Repeat,
    /// It is a signal frame, which only version 3 can mark.
    SignalFrame,
    /// A row marks the outermost frame, which version 1 can't do.
    Outermost,
    /// The CFA is relative to a register other than SP and FP, which needs version 3.
    CfaRegister,
    /// The CFA is read from memory, which needs version 3.
    CfaInMemory,
    /// The CFA is relative to itself.
    CfaFromCfa,
    /// The scaled offset that s390x stores can't represent the CFA's offset.
    CfaOffset,
    /// The version can't express the location of the return address.
    RaPlace,
    /// The version can't express the location of the frame pointer.
    FpPlace,
    /// The frame pointer is saved and the return address is not, which needs version 3.
    FpWithoutRa,
    /// A row leaves the return address in its register, which a reader of the table refuses.
    RaInRegister,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 15] = [
        Reason::NoRows,
        Reason::RowOrder,
        Reason::TooManyRows,
        Reason::StartOutOfRange,
        Reason::Repeat,
        Reason::SignalFrame,
        Reason::Outermost,
        Reason::CfaRegister,
        Reason::CfaInMemory,
        Reason::CfaFromCfa,
        Reason::CfaOffset,
        Reason::RaPlace,
        Reason::FpPlace,
        Reason::FpWithoutRa,
        Reason::RaInRegister,
    ];

    /// The reason's name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NoRows => "no_rows",
            Reason::RowOrder => "row_order",
            Reason::TooManyRows => "too_many_rows",
            Reason::StartOutOfRange => "start_out_of_range",
            Reason::Repeat => "repeat",
            Reason::SignalFrame => "signal_frame",
            Reason::Outermost => "outermost",
            Reason::CfaRegister => "cfa_register",
            Reason::CfaInMemory => "cfa_in_memory",
            Reason::CfaFromCfa => "cfa_from_cfa",
            Reason::CfaOffset => "cfa_offset",
            Reason::RaPlace => "ra_place",
            Reason::FpPlace => "fp_place",
            Reason::FpWithoutRa => "fp_without_ra",
            Reason::RaInRegister => "ra_in_register",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoRows => "it has no rows",
            Reason::RowOrder => "its rows are not in ascending order",
            Reason::TooManyRows => "it has too many rows",
            Reason::StartOutOfRange => "it lies too far from the section",
            Reason::Repeat => "the size of its repeated blocks can't be expressed",
            Reason::SignalFrame => "a signal frame can't be marked",
            Reason::Outermost => "the outermost frame can't be marked",
            Reason::CfaRegister => "the CFA counts from a register other than SP and FP",
            Reason::CfaInMemory => "the CFA is read from memory",
            Reason::CfaFromCfa => "the CFA counts from itself",
            Reason::CfaOffset => "the CFA's offset can't be expressed",
            Reason::RaPlace => "the place of the return address can't be expressed",
            Reason::FpPlace => "the place of the frame pointer can't be expressed",
            Reason::FpWithoutRa => "the frame pointer is saved without the return address",
            Reason::RaInRegister => "the return address is still in its register",
        })
    }
}
