//! Describes how tables are added to files, and what was added.

use std::path::PathBuf;

use backtrail_args::table::write::Places;
use backtrail_cfi::build::Built;
use backtrail_debuginfo::arguments::ArgumentTable;

use super::build::Summary;
use super::layout::Plan;
use crate::edited::Names;
use crate::replacement::Durable;

/// How to write tables.
pub(crate) struct How {
    pub(crate) plan: Plan,
    /// One table for all functions of an object file.
    pub(crate) one_table: bool,
    /// Add the table of arguments too, for these places.
    pub(crate) args: Option<Places>,
    /// Applies to linked files.
    pub(crate) durable: Durable,
    pub(crate) names: Names,
}

/// What was added.
#[derive(Default)]
pub(crate) struct Added {
    pub(super) summary: Summary,
    /// Each result with the name to report it under: the file's, or that of each archive member.
    pub(super) parts: Vec<(PathBuf, Built)>,
    /// The table of arguments.
    pub(super) arguments: Option<ArgumentTable>,
    /// The file already was what it would have become, and was not written.
    pub(super) unchanged: bool,
    /// The table of a linker was replaced.
    pub(super) replaced: bool,
}

impl Added {
    pub(super) fn push(&mut self, whose: PathBuf, built: Built, bytes: usize) {
        self.summary.add(&built, bytes);
        self.parts.push((whose, built));
    }

    /// The same without the tables' bytes, for those who keep the results of many files.
    pub(super) fn without_tables(mut self) -> Added {
        for (_, built) in &mut self.parts {
            built.bytes = Vec::new();
        }
        self.arguments = None;
        self
    }
}

/// Why a file with nothing to describe gets no table.
pub(super) const NO_FUNCTIONS: &str = "no function that a table could describe";
