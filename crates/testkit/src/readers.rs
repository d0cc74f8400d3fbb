//! Programs from npm and PyPI that read what is exported, installed on first use below the target
//! directory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{Missing, alone, command, place};

const LIMIT: Duration = Duration::from_secs(240);

/// A package of npm, installed with what it needs; the folder `node_modules`.
///
/// # Errors
/// [`Missing`] if npm is, or cannot install it.
pub fn npm(packages: &[&str]) -> Result<PathBuf, Missing> {
    let folder = folder("npm");
    let done = folder.join(format!("{}.installed", packages.join("+").replace('/', "-")));
    let _alone = alone("npm");
    if !done.exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]);
        install(npm.args(packages).current_dir(&folder))?;
        fs::write(&done, "").map_err(|error| Missing(error.to_string()))?;
    }
    Ok(folder.join("node_modules"))
}

/// A package of PyPI; the folder for `PYTHONPATH`.
///
/// # Errors
/// [`Missing`] if pip is, or cannot install it.
pub fn python(package: &str) -> Result<PathBuf, Missing> {
    python_in("python", &[package])
}

/// Packages of PyPI in a folder of this name, so that their versions may differ from those of
/// others; the folder for `PYTHONPATH`.
///
/// # Errors
/// [`Missing`] if pip is, or cannot install them.
pub fn python_in(name: &str, packages: &[&str]) -> Result<PathBuf, Missing> {
    let folder = folder(name);
    let done = folder.join(format!("{}.installed", packages.join("+")));
    let _alone = alone("pip");
    if !done.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--break-system-packages", "--target"]);
        install(pip.arg(&folder).args(packages))?;
        fs::write(&done, "").map_err(|error| Missing(error.to_string()))?;
    }
    Ok(folder)
}

fn folder(name: &str) -> PathBuf {
    let folder = place::target().join("readers").join(name);
    fs::create_dir_all(&folder).expect("the target directory can be written");
    folder
}

fn install(command: &mut Command) -> Result<(), Missing> {
    let finished = command::run(command, LIMIT)?;
    match finished.status.success() {
        true => Ok(()),
        false => Err(Missing(format!("{command:?}: {}", finished.describe()))),
    }
}
