//! A table built from call frame information, and the code that it could not describe.

use std::collections::BTreeMap;

use backtrail_sframe::write::{Options, WriteError};

use backtrail_elf::Image;

use crate::combined;
use crate::eh_frame::{self, Converted};
use crate::error::Error;

/// Code that `.eh_frame` describes and the table does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Address of the first byte (svma); 0 if an FDE does not even give that.
    pub start: u64,
    /// Size in bytes; 0 if other FDEs describe all of it, or it is empty.
    pub size: u64,
    /// The reason's name: one of [`eh_frame::Reason`] if no version can express it, or of
    /// [`backtrail_sframe::write::Reason`] if only this version can't.
    pub reason: &'static str,
}

impl Skipped {
    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// A table with its statistics and what is missing from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The section's bytes.
    pub bytes: Vec<u8>,
    /// Functions in it.
    pub functions: u32,
    /// Rows in it; shared rows count once for each function.
    pub rows: u32,
    /// Bytes of code that rows describe.
    pub covered_bytes: u64,
    /// Code that is missing, by start.
    pub skipped: Vec<Skipped>,
    /// The first invalid place in `.eh_frame`; the table contains everything before it.
    pub damage: Option<eh_frame::Error>,
}

impl Built {
    /// Bytes of code that `.eh_frame` describes and rows do not.
    pub fn uncovered_bytes(&self) -> u64 {
        self.skipped
            .iter()
            .fold(0u64, |sum, skipped| sum.saturating_add(skipped.size))
    }

    /// The number of pieces of code and their bytes, for each reason.
    pub fn skipped_by_reason(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let mut reasons = BTreeMap::new();
        for skipped in &self.skipped {
            let (count, bytes) = reasons.entry(skipped.reason).or_insert((0, 0u64));
            *count += 1;
            *bytes = bytes.saturating_add(skipped.size);
        }
        reasons
    }
}

/// Builds the table of `image` from its call frame information. The sections of a relocatable file
/// should have been placed.
///
/// Fails if it is missing, if nothing in it is valid, or if the section would be larger than its
/// header can express.
pub fn of_image(image: &Image<'_>, options: &Options) -> Result<Built, Error> {
    table(&functions(image)?, options).map_err(Error::Write)
}

/// The contents of `image`'s call frame information, of which at least a part must be valid.
pub(crate) fn functions(image: &Image<'_>) -> Result<Converted, Error> {
    if !combined::has_any(image)? {
        return Err(Error::NoEhFrame);
    }
    let converted = combined::of_image(image)?;
    if let (Some(damage), true) = (converted.damage, converted.functions.is_empty()) {
        return Err(Error::Cfi(damage));
    }
    Ok(converted)
}

/// Writes the converted rows as a table.
///
/// Fails if the section would be larger than its header can express.
pub fn table(converted: &Converted, options: &Options) -> Result<Built, WriteError> {
    let output = converted.write(options)?;
    let by_version = output.skipped.iter().map(|skipped| Skipped {
        start: skipped.start,
        size: skipped.size,
        reason: skipped.reason.name(),
    });
    let by_any = converted.skipped.iter().map(|skipped| Skipped {
        start: skipped.start,
        size: skipped.size,
        reason: skipped.reason.name(),
    });
    let mut skipped: Vec<Skipped> = by_any.chain(by_version).collect();
    skipped.sort_by_key(|skipped| (skipped.start, skipped.size));
    let described: u64 = converted
        .functions
        .iter()
        .map(|function| u64::from(function.size))
        .sum();
    let lost: u64 = output.skipped.iter().map(|skipped| skipped.size).sum();
    Ok(Built {
        bytes: output.bytes,
        functions: output.functions,
        rows: output.rows,
        covered_bytes: described - lost,
        skipped,
        damage: converted.damage,
    })
}
