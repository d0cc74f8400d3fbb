//! Builds programs and libraries that contain no path of the machine that built them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::place;

use super::machine::Machine;
use crate::cargo::{cargo_in, output, run};

/// Builds packages as they are shipped; returns the folder with the results.
pub(super) fn build(machine: &Machine, target: &str, packages: &[&str], time: &str) -> Result<PathBuf, String> {
    let mut cargo = cargo_in(
        &place::workspace(),
        &["build", "--locked", "--profile", "dist", "--target", target],
    );
    for package in packages {
        cargo.args(["--package", package]);
    }
    let flags = mapped()?.map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    cargo
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_INCREMENTAL", "0")
        .env("SOURCE_DATE_EPOCH", time)
        // The crate const-random makes its numbers of this. Cargo does not build again when it
        // changes, so it does not.
        .env("CONST_RANDOM_SEED", "backtrail")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    if !machine.is_here() {
        let name = target.replace('-', "_").to_uppercase();
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), machine.tool("cc"));
    }
    run(&mut cargo)?;
    Ok(place::target().join(target).join("dist"))
}

/// Folders of this machine, and what stands for them. The last one that fits counts.
fn mapped() -> Result<[(String, String); 4], String> {
    let rustc = |arguments: &[&str]| output(Command::new("rustc").args(arguments));
    let sysroot = rustc(&["--print", "sysroot"])?.trim().to_owned();
    let about = rustc(&["-vV"])?;
    let commit = about.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let cargo = env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
    Ok([
        (
            place::workspace().display().to_string(),
            format!("/usr/src/backtrail-{}", super::VERSION),
        ),
        (
            cargo.map_err(|error| format!("HOME: {error}"))?,
            "/usr/src/cargo".to_owned(),
        ),
        (sysroot.clone(), "/usr/src/rust".to_owned()),
        // As in the standard library that is shipped with the compiler.
        (
            format!("{sysroot}/lib/rustlib/src/rust"),
            format!("/rustc/{}", commit.unwrap_or_default()),
        ),
    ])
}

/// Fails if a file below a folder names a folder of this machine.
pub(super) fn names_no_folders(root: &Path) -> Result<(), String> {
    let mut grep = Command::new("grep");
    grep.args(["--recursive", "--files-with-matches", "--fixed-strings"]);
    for (folder, _) in mapped()? {
        grep.args(["-e", &folder]);
    }
    let found = grep.arg(root).output().map_err(|error| format!("grep: {error}"))?;
    match found.status.code() {
        Some(1) => Ok(()),
        _ => Err(format!(
            "files name folders of this machine:\n{}{}",
            String::from_utf8_lossy(&found.stdout),
            String::from_utf8_lossy(&found.stderr)
        )),
    }
}

/// What a target lacks, if it cannot be built for.
pub(super) fn missing(target: &str) -> Result<Option<String>, String> {
    let folder = output(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    let missing = !Path::new(folder.trim()).exists();
    Ok(missing.then(|| format!("{target} is missing (rustup target add {target})")))
}
