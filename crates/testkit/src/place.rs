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
    run(&mut build).map(|()| target().join("release").join(file))
}

/// The same for another machine, linked by a cross-compiler.
///
/// # Errors
/// The exit status of cargo.
pub fn release_for(machine: &str, linker: &str, package: &str, file: &str) -> Result<PathBuf, String> {
    let mut build = std::env::var_os("CARGO").map_or_else(|| Command::new("cargo"), Command::new);
    build.args(["build", "--release", "--package", package, "--target", machine]);
    let variable = machine.replace('-', "_").to_uppercase();
    build.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
    run(&mut build).map(|()| target().join(machine).join("release").join(file))
}

/// The test program that a message of cargo (`--message-format json`) is about: its package and
/// target, the file, and the folder that cargo starts it in.
pub fn test_program(message: &serde_json::Value) -> Option<(String, PathBuf, PathBuf)> {
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some((name, executable, folder))
}

/// The variable by which a run of all tests says that it has built all programs and libraries.
pub const ALL_BUILT: &str = "BACKTRAIL_ALL_BUILT";

/// Builds more of the workspace than cargo builds for a test: `what` is `--lib`, or the program
/// after `--bin`. Returns the folder with programs and libraries.
///
/// # Errors
/// The exit status of cargo.
pub fn built(what: &[&str]) -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = test.ancestors().nth(2).ok_or("a test is in target/debug/deps")?;
    if std::env::var_os(ALL_BUILT).is_some() {
        return Ok(folder.to_owned());
    }
    // All packages are named, since one alone would have its dependencies built again with fewer
    // features.
    let mut build = std::env::var_os("CARGO").map_or_else(|| Command::new("cargo"), Command::new);
    build.args(["build", "--quiet", "--workspace"]).args(what);
    build.arg("--target-dir").args(folder.parent());
    run(&mut build).map(|()| folder.to_owned())
}

fn run(build: &mut Command) -> Result<(), String> {
    match build.current_dir(workspace()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo build: {status}")),
        Err(error) => Err(format!("cargo can't be started: {error}")),
    }
}

/// The sources of the test programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}
