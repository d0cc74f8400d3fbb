//! babeltrace2 in the two series that are in use: 2.0 reads CTF 1.8, 2.1 also CTF 2.

use super::{Peer, locked_directory, run, skipped};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// babeltrace2 2.0, which Debian bookworm has.
pub fn babeltrace2_2_0() -> Option<Peer> {
    let found = installed_2_0();
    if let Err(why) = &found {
        skipped("babeltrace2 2.0", why);
    }
    found.ok()
}

/// babeltrace2 2.1, from a later Debian, unpacked beside the system and run by its own loader.
pub fn babeltrace2_2_1() -> Option<Peer> {
    let found = unpacked_2_1();
    if let Err(why) = &found {
        skipped("babeltrace2 2.1", why);
    }
    found.ok()
}

fn installed_2_0() -> Result<Peer, String> {
    let peer = Peer {
        program: "babeltrace2".into(),
        arguments: Vec::new(),
    };
    let version = || run(peer.command().arg("--version"));
    if version().is_err() {
        let (_directory, _lock) = locked_directory("babeltrace2-2.0").map_err(|error| error.to_string())?;
        run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", "babeltrace2"]))?;
    }
    match version()?.contains("Babeltrace 2.0.") {
        true => Ok(peer),
        false => Err("the installed one is of another series".to_owned()),
    }
}

fn unpacked_2_1() -> Result<Peer, String> {
    let (directory, _lock) = locked_directory("babeltrace2-2.1").map_err(|error| error.to_string())?;
    let root = directory.join("root");
    if !root.join("usr/bin/babeltrace2").exists() {
        unpack(&directory, &root)?;
    }
    let library = find(&root.join("usr/lib"), "libbabeltrace2.so.0").ok_or("no library in the package")?;
    let libraries = library.parent().ok_or("no library directory")?;
    let loader = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
        .iter()
        .find_map(|name| find(&root, name))
        .ok_or("no loader in the package")?;
    let peer = Peer {
        program: loader,
        arguments: vec![
            "--library-path".into(),
            libraries.into(),
            root.join("usr/bin/babeltrace2").into(),
            // The system's own plugins are of the other series.
            "--omit-system-plugin-path".into(),
            "--plugin-path".into(),
            libraries.join("babeltrace2/plugins").into(),
        ],
    };
    let version = run(peer.command().arg("--version"))?;
    match version.contains("Babeltrace 2.1.") {
        true => Ok(peer),
        false => Err(format!("unexpected version: {version}")),
    }
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).ok()?.filter_map(Result::ok) {
            if entry.file_name() == name {
                return Some(entry.path());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
        }
    }
    None
}

/// Downloads the package and all that it needs with apt's configuration of this machine, but lists and caches of its own.
fn unpack(directory: &Path, root: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let mirror = mirror()?;
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let sources = format!("deb [signed-by={keyring}] {mirror} trixie main\n");
    fs::write(directory.join("sources.list"), sources).map_err(io)?;
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(directory.join(folder)).map_err(io)?;
    }
    let apt = |arguments: &[&str]| {
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let mut command = Command::new("apt-get");
        for option in [
            option("Dir::Etc::SourceList", directory.join("sources.list")),
            option("Dir::Etc::SourceParts", directory.join("none")),
            option("Dir::State", directory.join("state")),
            option("Dir::Cache", directory.join("cache")),
            // Nothing counts as installed, so that all libraries come along.
            "Dir::State::status=/dev/null".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        run(command.args(arguments))
    };
    apt(&["update"])?;
    apt(&[
        "install",
        "--yes",
        "--download-only",
        "--no-install-recommends",
        "babeltrace2",
    ])?;
    let partial = directory.join("root.partial");
    for entry in fs::read_dir(directory.join("cache/archives"))
        .map_err(io)?
        .filter_map(Result::ok)
    {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&partial))?;
        }
    }
    fs::rename(partial, root).map_err(io)
}

/// The mirror that this machine gets Debian from.
fn mirror() -> Result<String, String> {
    let format = [
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI)",
        "Created-By: Packages",
    ];
    let targets = run(Command::new("apt-get").args(format))?;
    targets
        .lines()
        .filter_map(|line| line.strip_prefix("Debian "))
        .find(|uri| !uri.contains("security"))
        .map(str::to_owned)
        .ok_or_else(|| "apt knows no mirror of Debian; apt-get update may help".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_what_it_says() {
        for (peer, version) in [
            (babeltrace2_2_0(), "Babeltrace 2.0."),
            (babeltrace2_2_1(), "Babeltrace 2.1."),
        ] {
            let Some(peer) = peer else { continue };
            let output = peer.command().arg("--version").output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains(version));
        }
    }
}
