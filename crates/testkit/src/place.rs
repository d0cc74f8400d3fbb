//! Where things are: the workspace, what lies beside it, and what is built.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("the crate lies two levels below the root")
        .to_path_buf()
}

/// The shared notes and cases beside the workspace, where they are there.
pub fn shared() -> Result<PathBuf, crate::Missing> {
    let folder = workspace().join("../shared");
    if folder.is_dir() {
        Ok(folder)
    } else {
        Err(crate::Missing("no ../shared beside the workspace".to_owned()))
    }
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace().join(folder),
        None => workspace().join("target"),
    }
}

/// The sources of the test programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}
