//! What is added to files, and how.

use std::path::PathBuf;

use backtrail_args::table::write::Places;
use backtrail_cfi::build::Built;
use backtrail_debuginfo::arguments::Made;
use backtrail_elf::Image;
use backtrail_sframe::write::Options;

use super::build::Summary;
use crate::replacement::Durable;

/// How tables are to be written.
pub(crate) struct How<'o> {
    pub(crate) options: &'o dyn Fn(&Image<'_>) -> Options,
    /// One for all functions of an object file.
    pub(crate) one_table: bool,
    /// With the table of arguments, and where it tells them.
    pub(crate) args: Option<Places>,
    /// Of a linked file.
    pub(crate) durable: Durable,
}

/// What was added.
#[derive(Default)]
pub(crate) struct Added {
    pub(super) summary: Summary,
    /// By whose name it is to be told: the file, or each member of an archive.
    pub(super) parts: Vec<(PathBuf, Built)>,
    /// The table of arguments.
    pub(super) arguments: Option<Made>,
}

impl Added {
    pub(super) fn push(&mut self, whose: PathBuf, built: Built, bytes: usize) {
        self.summary.add(&built, bytes);
        self.parts.push((whose, built));
    }
}

/// Why a file gets no table that has nothing to describe.
pub(super) const NO_FUNCTIONS: &str = "no function that a table could describe";
