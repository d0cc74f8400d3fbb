//! Debian packages that tests and measurements need.

use std::process::{Command, Stdio};

/// Installs the packages of missing `tools`, if possible, and returns those that are still missing.
/// A tool is a program, or a file by its whole path.
pub fn install(tools: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let missing = || {
        let missing = tools.iter().filter(|(tool, _)| !on_path(tool));
        let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
        packages.dedup();
        packages
    };
    let packages = missing();
    if packages.is_empty() {
        return packages;
    }
    println!("installing {}", packages.join(" "));
    // Any failure (no root, no network, no Debian) shows in the tools that are still missing.
    let succeeds = |mut apt: Command| apt.status().is_ok_and(|status| status.success());
    if succeeds(apt(&["update"])) && !succeeds(installation(&packages)) {
        // One unknown name is enough for apt to install nothing.
        for package in &packages {
            succeeds(installation(&[package]));
        }
    }
    missing()
}

/// The command that installs these packages, and what they need.
pub(crate) fn installation(packages: &[&str]) -> Command {
    apt(&[&["install", "-y", "--no-install-recommends"], packages].concat())
}

fn apt(arguments: &[&str]) -> Command {
    let mut apt = Command::new("apt-get");
    // Somebody else may be installing.
    apt.args(["-qq", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null());
    apt
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Root's tools are not on everybody's path but are found by those who need them.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).exists())
}
