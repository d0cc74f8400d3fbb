//! Files that are kept open because no path leads to them, or only as long as a process of another
//! root lives: those of containers, and deleted ones.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use crate::door::Root;

/// A file that is open, with what a recording says about it.
#[derive(Clone, Debug)]
pub struct HeldFile {
    /// Its path, as recorded.
    pub path: String,
    /// Its build ID; empty without.
    pub build_id: Vec<u8>,
    /// Distinguishes it from others with this path and build ID; 0 for the one whose path led to it
    /// when it was opened.
    pub elsewhere: u32,
    /// The file, open for reading.
    pub file: Arc<File>,
    /// The root of the process that mapped it, where its debug files may be.
    pub root: Option<Arc<Root>>,
}

impl HeldFile {
    /// A path to the root, as long as this value exists.
    pub fn root_path(&self) -> Option<PathBuf> {
        self.root.as_ref().map(|root| root.path())
    }
}
