//! The flag that raises the limits of what files may cost.

use backtrail_elf::budget;
use clap::Args;

/// What reading files may cost.
#[derive(Args)]
pub(crate) struct Limits {
    /// Multiply the limits on the size of files, on the memory for their contents and on the time
    /// to read them, if a note reports that a file exceeds them.
    #[arg(long = "read-limits", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    factor: u32,
}

impl Limits {
    /// Sets them, before the first file is opened.
    pub(crate) fn set(&self) {
        budget::raise(self.factor);
    }
}
