//! Sources of the programs on which tables are measured.

use super::binutils::{Machine, Release};
use super::{debian, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// The source of a release of binutils as Debian has it, unpacked.
///
/// # Errors
/// If it cannot be fetched or unpacked.
pub fn binutils_source(release: Release) -> Result<PathBuf, String> {
    let name = match release {
        Release::V2_44 => "binutils-source".to_owned(),
        release => format!("binutils-source-{}", release.number()),
    };
    let root = debian::contents(&name, release.suite(), "", &["binutils-source"])?;
    let source = root.join("usr/src/binutils");
    let name = format!("binutils-{}", release.number());
    let unpacked = source.join(&name);
    if !unpacked.exists() {
        let partial = source.join("partial");
        fs::create_dir_all(&partial).map_err(|error| error.to_string())?;
        let archive = source.join(format!("{name}.tar.xz"));
        run(Command::new("tar").arg("-C").arg(&partial).arg("-xf").arg(archive))?;
        fs::rename(partial.join(&name), &unpacked).map_err(|error| error.to_string())?;
    }
    Ok(unpacked)
}

/// The folders of zlib's headers for programs of another machine, and the folder with the library.
///
/// # Errors
/// If it cannot be fetched.
pub fn zlib(machine: Machine) -> Result<([PathBuf; 2], PathBuf), String> {
    let architecture = match machine {
        Machine::X86_64 => "amd64",
        Machine::Aarch64 => "arm64",
        Machine::S390x => "s390x",
    };
    let name = format!("zlib-{architecture}");
    let root = debian::contents(&name, "bookworm", architecture, &["zlib1g", "zlib1g-dev"])?;
    let headers = root.join("usr/include");
    // The package's own link leads into the system.
    let (library, link) = (
        root.join("lib").join(machine.triplet()).join("libz.so.1"),
        root.join("link/libz.so"),
    );
    if !link.exists() {
        fs::create_dir_all(root.join("link"))
            .and_then(|()| symlink(library, &link))
            .map_err(|error| error.to_string())?;
    }
    Ok(([headers.join(machine.triplet()), headers], root.join("link")))
}
