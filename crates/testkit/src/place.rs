//! Paths of the workspace, its surroundings, and build products.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The folder of cargo's build products.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace().join(folder),
        None => workspace().join("target"),
    }
}

/// A program or library of the workspace, built as it is shipped; cargo's output goes to ours.
///
/// # Errors
/// The exit status of cargo.
pub fn release(package: &str, file: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", package]);
    match build.current_dir(workspace()).status() {
        Ok(status) if status.success() => Ok(target().join("release").join(file)),
        Ok(status) => Err(format!("cargo build: {status}")),
        Err(error) => Err(format!("cargo can't be started: {error}")),
    }
}

/// The sources of the test programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}
