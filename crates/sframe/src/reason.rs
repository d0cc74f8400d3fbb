//! What a version cannot say.

use core::fmt;

/// Why a function can't be said in the chosen version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// It has no rows; in version 3 that would say "outermost frame".
    NoRows,
    /// The rows' starts don't ascend.
    RowOrder,
    /// More rows than the version can count (65,535 in version 3).
    TooManyRows,
    /// It lies farther from the section than the start field reaches.
    StartOutOfRange,
    /// The size of its repeated blocks has no place in the version, or is 0.
    Repeat,
    /// A signal frame; only version 3 can mark it.
    SignalFrame,
    /// A row marks the outermost frame, which version 1 can't.
    Outermost,
    /// The CFA counts from a register other than SP and FP, which needs version 3.
    CfaRegister,
    /// The CFA is read from memory, which needs version 3.
    CfaInMemory,
    /// The CFA is said to count from the CFA.
    CfaFromCfa,
    /// The CFA's offset is not one that s390x's scaling can hold.
    CfaOffset,
    /// The return address is where the version can't say it is.
    RaPlace,
    /// The frame pointer is where the version can't say it is.
    FpPlace,
    /// The frame pointer is saved and the return address is not, which needs version 3.
    FpWithoutRa,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 14] = [
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
    ];

    /// Its name in JSON.
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
        })
    }
}
