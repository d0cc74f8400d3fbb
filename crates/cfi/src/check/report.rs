//! What a check finds.

use std::collections::BTreeMap;
use std::ops::Range;

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// The canonical frame address.
    Cfa,
    /// The return address, how it is signed, or whether there is one at all.
    Ra,
    /// The frame pointer.
    Fp,
    /// Whether it is a signal trampoline.
    SignalFrame,
    /// The table has rows for code of which `.eh_frame` says nothing.
    Code,
}

impl What {
    /// Its name in JSON.
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

/// Code for which the two say different things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first pc (svma).
    pub pc: u64,
    /// How many pcs; in a function of repeated blocks not all of them follow `pc`.
    pub pcs: u64,
    /// What differs.
    pub what: What,
    /// The table's rule.
    pub sframe: String,
    /// The rule of `.eh_frame`.
    pub eh_frame: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Functions of the table.
    pub functions: u64,
    /// Rows of the table; shared ones count for each function.
    pub rows: u64,
    /// Pcs that either side covers; all of them were looked at unless it gave up.
    pub pcs: u64,
    /// Code that `.eh_frame` describes and the table does not, by address.
    pub uncovered: Vec<Range<u64>>,
    /// How many pieces of such code there are for each reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// What differs, by address.
    pub mismatches: Vec<Mismatch>,
    /// Bytes between frames that are in one function of the table with code on both sides: padding
    /// between joined functions.
    pub padding: u64,
    /// The first part of the table that can't be read; it counts as not there.
    pub damage: Option<backtrail_sframe::Error>,
    /// Where the work became out of proportion to the input, which no honest table causes.
    pub gave_up_at: Option<u64>,
}

impl Report {
    /// Bytes of code that `.eh_frame` describes and the table does not.
    pub fn uncovered_bytes(&self) -> u64 {
        self.uncovered.iter().map(|range| range.end - range.start).sum()
    }
}
