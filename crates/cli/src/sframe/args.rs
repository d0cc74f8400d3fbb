//! `--args`: adds the table of arguments, and the types that it refers to, to the file.

use std::path::Path;

use backtrail_args::table::SECTION;
use backtrail_args::table::write::Places;
use backtrail_debuginfo::arguments::{self, ArgumentTable, TypesOfFile};
use backtrail_debuginfo::types::surroundings;
use backtrail_elf::{Image, edit};
use clap::Args;

use crate::error::Failure;
use crate::types;

/// Whether to add a table of arguments.
#[derive(Args)]
pub(crate) struct WithArguments {
    /// Add a table of arguments too, made from debug information, so that `backtrail stack --args`
    /// shows what functions were called with; also add compact types if the file has none. Debug
    /// information can be stripped afterwards.
    #[arg(long)]
    args: bool,
    /// Describe where arguments are at each instruction of every function [default: at calls, and
    /// at each instruction of as many functions as a table of 8 % of the code has room for].
    #[arg(long, requires = "args")]
    innermost: bool,
}

impl WithArguments {
    /// Which instructions the table describes; `None` for no table.
    pub(crate) fn places(&self) -> Option<Places> {
        self.args.then_some(match self.innermost {
            true => Places::Everywhere,
            false => Places::Chosen,
        })
    }
}

/// The section of types.
const TYPES: &str = ".ctf";

/// The bytes of the linked file at `path`, which is `image`, with the table of its functions'
/// arguments, and a summary of it. Types are made if the file has none, or lacks those of
/// arguments.
pub(super) fn add(path: &Path, image: &Image<'_>, places: Places) -> Result<(Vec<u8>, ArgumentTable), Failure> {
    let elf = |error| Failure::of(path, error);
    let present = image.section(TYPES).map_err(elf)?;
    let types = match present.filter(|section| !section.data.is_empty()) {
        Some(present) => types::add::with_types_of_arguments(path, image, &present.data)?,
        None => Some(types::add::section_quietly(path, image)?),
    };
    let with_types = match types {
        Some(types) => Some(written(&edit::set_section(image.bytes(), TYPES, &types).map_err(elf)?)?),
        None => None,
    };
    let bytes = with_types.as_deref().unwrap_or(image.bytes());
    let image = Image::parse(bytes).map_err(elf)?;
    let section = image.section(TYPES).map_err(elf)?;
    let section = section.ok_or_else(|| Failure::of(path, "no .ctf section"))?.data;
    let types_of_file = TypesOfFile {
        section: &section,
        surroundings: surroundings(&image, &section),
    };
    let made = types::with_debug_information(path, &image, types::ARGUMENTS, |_, sections| {
        arguments::table(&image, sections, types_of_file, places).map_err(|error| Failure::of(path, error))
    })?;
    let made = made.ok_or_else(|| types::no_debug_information(path))?;
    let edited = edit::set_section(bytes, SECTION, &made.bytes).map_err(elf)?;
    Ok((written(&edited)?, made))
}

fn written(edited: &edit::Edited<'_>) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    edited.write_to(&mut bytes).map_err(Failure::new)?;
    Ok(bytes)
}
