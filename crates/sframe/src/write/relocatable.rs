//! A table for a relocatable file, in which the functions' starts are for a linker to fill in.

use alloc::vec::Vec;

use super::assemble::section;
use super::function::FunctionRows;
use super::options::Options;
use super::output::{Output, WriteError};
use crate::constants::{Abi, Flags, Version};
use crate::read::{Fde, Section};

/// Where `sfp_flags` stands in the header.
const FLAGS_OFFSET: usize = 3;

/// A start field that a linker has to fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartField {
    /// Where it is, in bytes from the section's start.
    pub offset: usize,
    /// Its width in bytes: 8 in version 3, 4 before.
    pub width: usize,
    /// The function's start, as it was given. What belongs in the field is the distance to it from
    /// the field itself.
    pub start: u64,
}

/// Writes a section as assemblers do: its starts are 0, to be relocated, it is not said to be
/// sorted, and no rows are shared, so that a linker can drop functions one by one.
pub fn relocatable(
    functions: &[FunctionRows],
    version: Version,
    abi: Abi,
) -> Result<(Output, Vec<StartField>), WriteError> {
    let options = Options {
        share: false,
        merge: 1,
        ..Options::new(version, abi, 0)
    };
    let mut output = section(functions, &options)?;
    let width = match version {
        Version::V3 => 8,
        Version::V1 | Version::V2 => 4,
    };
    let mut fields = Vec::with_capacity(output.functions as usize);
    if let Ok(written) = Section::parse(&output.bytes, 0) {
        let field = |fde: Fde<'_>| StartField {
            offset: fde.offset(),
            width,
            start: fde.function().start,
        };
        fields.extend(written.functions().flatten().map(field));
    }
    for field in &fields {
        output.bytes[field.offset..field.offset + width].fill(0);
    }
    output.bytes[FLAGS_OFFSET] &= !Flags::FDE_SORTED.0;
    Ok((output, fields))
}
