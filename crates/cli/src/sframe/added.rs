//! Describes how tables are added to files, and what was added.

use std::path::PathBuf;

use backtrail_args::table::write::Places;
use backtrail_cfi::build::Built;
use backtrail_debuginfo::arguments::ArgumentTable;
use backtrail_elf::Image;
use backtrail_sframe::write::Options;

use super::build::Summary;
use crate::replacement::Durable;

/// How to write tables.
pub(crate) struct How<'o> {
    pub(crate) options: &'o dyn Fn(&Image<'_>) -> Options,
    /// One table for all functions of an object file.
    pub(crate) one_table: bool,
    /// Add the table of arguments too, for these places.
    pub(crate) args: Option<Places>,
    /// Applies to linked files.
    pub(crate) durable: Durable,
}

/// What was added.
#[derive(Default)]
pub(crate) struct Added {
    pub(super) summary: Summary,
    /// Each result with the name to report it under: the file's, or that of each archive member.
    pub(super) parts: Vec<(PathBuf, Built)>,
    /// The table of arguments.
    pub(super) arguments: Option<ArgumentTable>,
}

impl Added {
    pub(super) fn push(&mut self, whose: PathBuf, built: Built, bytes: usize) {
        self.summary.add(&built, bytes);
        self.parts.push((whose, built));
    }
}

/// Why a file with nothing to describe gets no table.
pub(super) const NO_FUNCTIONS: &str = "no function that a table could describe";
