//! The result of converting call frame information.

use std::ops::Range;

use backtrail_sframe::Row;
use backtrail_sframe::write::{self, FunctionRows, Options, Output, WriteError};

use super::reason::{Error, Skipped};

/// The size of the code that is marked as outermost after an entry point that nothing else
/// describes.
pub(crate) const MAX_ENTRY_BYTES: u64 = 128;

/// The result of converting an `.eh_frame` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// By start; none overlap.
    pub functions: Vec<FunctionRows>,
    /// Code that rows cannot express, by start.
    pub skipped: Vec<Skipped>,
    /// Code with an FDE that rows cannot express, in no order; parts of it may have rows by another
    /// FDE.
    pub unsaid: Vec<Range<u64>>,
    /// The first invalid place in the section; everything before it is converted.
    pub damage: Option<Error>,
}

impl Converted {
    /// Bytes of code that FDEs describe and rows do not.
    pub fn uncovered_bytes(&self) -> u64 {
        self.skipped
            .iter()
            .fold(0u64, |sum, skipped| sum.saturating_add(skipped.size))
    }

    /// Writes a table of the functions. Code that rows could not express is not treated as padding.
    pub fn write(&self, options: &Options) -> Result<Output, WriteError> {
        write::section_around(&self.functions, &self.unsaid, options)
    }

    /// The function with the rows for `svma`.
    pub fn find(&self, svma: u64) -> Option<&FunctionRows> {
        let after = self.functions.partition_point(|function| function.start <= svma);
        let found = self.functions[..after].last()?;
        (svma < end_of(found)).then_some(found)
    }

    /// Marks the code from `entry`, to which nothing returns, as outermost if no FDE describes it:
    /// ABIs say that an entry point has no caller, but not every entry point has an FDE that says
    /// so. The code ends at `end` if that is known, at the next function, or after 128 bytes.
    pub fn add_entry_point(&mut self, entry: u64, end: Option<u64>) {
        let next = self.functions.partition_point(|function| function.start <= entry);
        if self.find(entry).is_some() {
            return;
        }
        let limit = entry.saturating_add(MAX_ENTRY_BYTES);
        let end = end.filter(|end| *end > entry).map_or(limit, |end| end.min(limit));
        let end = self.functions.get(next).map_or(end, |function| end.min(function.start));
        let outermost = FunctionRows::new(entry, (end - entry) as u32, vec![Row { start: 0, rule: None }]);
        if outermost.size > 0 {
            self.functions.insert(next, outermost);
        }
    }
}

/// The address after the last byte.
pub(crate) fn end_of(function: &FunctionRows) -> u64 {
    function.start + u64::from(function.size)
}
