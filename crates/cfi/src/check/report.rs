//! The result of a check.

use std::collections::BTreeMap;
use std::ops::Range;

/// The part of a rule that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// The canonical frame address.
    Cfa,
    /// The return address, its signature, or whether there is one at all.
    Ra,
    /// The frame pointer.
    Fp,
    /// Whether the frame is a signal trampoline.
    SignalFrame,
    /// The table has rows for code that `.eh_frame` does not describe.
    Code,
}

impl What {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            What::Cfa => "cfa",
            What::Ra => "ra",
            What::Fp => "fp",
            What::SignalFrame => "signal_frame",
            What::Code => "code",
        }
    }
}

/// Code for which the table and `.eh_frame` differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first pc (svma).
    pub pc: u64,
    /// Number of pcs; in a function of repeated blocks not all of them follow `pc`.
    pub pcs: u64,
    /// The part that differs.
    pub what: What,
    /// The table's rule.
    pub sframe: String,
    /// The rule of `.eh_frame`.
    pub eh_frame: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Functions in the table.
    pub functions: u64,
    /// Rows in the table; shared rows count once for each function.
    pub rows: u64,
    /// Pcs that either side covers; all of them were compared unless the check gave up.
    pub pcs: u64,
    /// Code that `.eh_frame` describes and the table does not, by address.
    pub uncovered: Vec<Range<u64>>,
    /// The number of pieces of such code, for each reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// The mismatches, by address.
    pub mismatches: Vec<Mismatch>,
    /// Bytes between frames that lie in one function of the table with code on both sides: padding
    /// between joined functions.
    pub padding: u64,
    /// The first unreadable part of the table, which is treated as missing.
    pub damage: Option<backtrail_sframe::Error>,
    /// The pc at which the work became disproportionate to the input; no honest table causes that.
    pub gave_up_at: Option<u64>,
}

impl Report {
    /// Bytes of code that `.eh_frame` describes and the table does not.
    pub fn uncovered_bytes(&self) -> u64 {
        self.uncovered.iter().map(|range| range.end - range.start).sum()
    }
}
