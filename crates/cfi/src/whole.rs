//! The one table of a linked file: the rows of its call frame information, and rows that only the
//! file's present table has.

use backtrail_elf::{Image, Kind};
use backtrail_sframe::Section;
use backtrail_sframe::write::{FunctionRows, Options, WriteError};

use crate::build::{self, Built};
use crate::combined;
use crate::eh_frame::{self, Converted};
use crate::error::Error;
use crate::plt;
use crate::tables;
use crate::undescribed::{described, not_described};

/// The contents of the table, or of the tables of a relocatable file. It can be written more than
/// once, since the table's address may depend on its length.
#[derive(Clone, Debug)]
pub struct Whole {
    converted: Converted,
    kept: usize,
}

impl Whole {
    /// Reads all unwind information of `image`. Linkers that do not know the format concatenate the
    /// tables of several object files: each of them is read.
    ///
    /// Fails if there is neither call frame information nor a table, or if `.eh_frame` is not valid
    /// to its end: half a table would hide the damage.
    pub fn of_image(image: &Image<'_>) -> Result<Whole, Error> {
        let mut converted = combined::of_image(image)?;
        if let Some(damage) = converted.damage {
            return Err(Error::Cfi(damage));
        }
        let code = image.code_ranges();
        plt::add(&mut converted, image);
        // Code that only the present table describes.
        let kept = not_described(own_functions(image), &described(&converted), &code);
        if kept.is_empty() && !combined::has_any(image)? {
            return Err(Error::NoEhFrame);
        }
        let count = kept.len();
        // If they were joined with neighbours, the next run could not distinguish them from
        // padding.
        let ranges = kept.iter().map(|function| function.start..eh_frame::end_of(function));
        converted.unsaid.extend(ranges);
        converted.functions.extend(kept);
        converted.functions.sort_by_key(|function| function.start);
        Ok(Whole { converted, kept: count })
    }

    /// Number of functions in the present table that `.eh_frame` does not describe.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Whether there are no functions to write.
    pub fn is_empty(&self) -> bool {
        self.converted.functions.is_empty()
    }

    pub(crate) fn into_converted(self) -> Converted {
        self.converted
    }

    /// Writes the table.
    pub fn table(&self, options: &Options) -> Result<Built, WriteError> {
        build::table(&self.converted, options)
    }
}

/// The functions of the present tables.
fn own_functions(image: &Image<'_>) -> Vec<FunctionRows> {
    let mut functions = Vec::new();
    for (_, own) in image.sframe_tables().unwrap_or_default() {
        let mut at = 0usize;
        while let Some(rest) = own.data.get(at..).filter(|rest| !rest.is_empty()) {
            let Ok(mut table) = Section::parse(rest, own.address.wrapping_add(at as u64)) else {
                break;
            };
            if image.kind() == Kind::Relocatable {
                // Relocations count from the field, whether or not a flag says so.
                table = table.starts_relative_to_field();
            }
            if table.abi() == tables::abi(image)
                && let Ok(read) = FunctionRows::read_all(&table)
            {
                functions.extend(read);
            }
            at = (at + table.size()).next_multiple_of(8);
        }
    }
    functions
}
