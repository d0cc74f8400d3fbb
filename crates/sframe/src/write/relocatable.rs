//! Writing a table for a relocatable file: a linker fills in the functions' starts.

use alloc::vec::Vec;

use super::assemble::section;
use super::function::FunctionRows;
use super::options::Options;
use super::output::{Output, WriteError};
use crate::constants::{Flags, Version};
use crate::read::{Fde, Section};

/// Offset of `sfp_flags` in the header.
const FLAGS_OFFSET: usize = 3;

/// A start field that a linker has to fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartField {
    /// Its offset in bytes from the section's start.
    pub offset: usize,
    /// Its width in bytes: 8 in version 3, 4 before.
    pub width: usize,
    /// The function's start, as the caller passed it. The linker must store the distance from the
    /// field itself to this start.
    pub start: u64,
}

/// Writes a section as assemblers do: all starts are 0, for the linker to relocate.
///
/// Address, sharing and merging of `options` do not apply.
/// The section is not flagged as sorted and shares no rows, so a linker can drop single functions.
pub fn relocatable(functions: &[FunctionRows], options: &Options) -> Result<(Output, Vec<StartField>), WriteError> {
    let version = options.version;
    let options = Options {
        share: false,
        readers: options.readers,
        ..Options::new(version, options.abi, 0)
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
