//! Packages of another Debian suite, unpacked beside the system and run by their own loader.

use super::{Peer, locked_directory, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The loaders of the machines that tests run on.
const LOADERS: [&str; 2] = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// A root directory with packages and all that they need.
#[derive(Debug)]
pub(super) struct Unpacked {
    root: PathBuf,
    loader: PathBuf,
    libraries: PathBuf,
}

impl Unpacked {
    /// Gets the packages of a suite from the machine's own mirror, unless an earlier call has.
    ///
    /// `name` is the directory, so it must differ for different packages.
    pub(super) fn get(name: &str, suite: &str, packages: &[&str]) -> Result<Unpacked, String> {
        let (directory, _lock) = locked_directory(name).map_err(|error| error.to_string())?;
        let root = directory.join("root");
        if !root.exists() {
            unpack(&directory, &root, suite, "", packages)?;
        }
        let loader = LOADERS
            .iter()
            .find_map(|name| find(&root, name))
            .ok_or("no loader in the packages")?;
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        Ok(Unpacked {
            root,
            loader,
            libraries,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    pub(super) fn libraries(&self) -> &Path {
        &self.libraries
    }

    pub(super) fn loader(&self) -> &Path {
        &self.loader
    }

    pub(super) fn has(&self, program: &str) -> bool {
        self.root.join("usr/bin").join(program).exists()
    }

    /// A file or folder of the packages.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A program of `/usr/bin`.
    pub(super) fn program(&self, name: &str) -> Peer {
        self.run_by_loader(&self.root.join("usr/bin").join(name))
    }

    /// A shell script that is a program, for those who have to be given one file.
    pub(super) fn script(&self, program: &Path) -> String {
        let peer = self.run_by_loader(program);
        let mut script = format!("#!/bin/sh\nexec '{}'", peer.program.display());
        for argument in &peer.arguments {
            script += &format!(" '{}'", argument.display());
        }
        script + " \"$@\"\n"
    }

    /// A program that needs the packages' libraries.
    pub(super) fn run_by_loader(&self, program: &Path) -> Peer {
        let mut paths = self.libraries.clone().into_os_string();
        // Up to bookworm, libc and what else the system needs to start is in /lib and not in
        // /usr/lib.
        if let Some(with_loader) = self.loader.parent() {
            paths.push(":");
            paths.push(with_loader);
        }
        Peer {
            program: self.loader.clone(),
            arguments: vec![
                "--argv0".into(),
                program.into(),
                "--library-path".into(),
                paths,
                program.into(),
            ],
        }
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

/// Packages of a suite without what they need, unpacked; gets them unless an earlier call has.
///
/// `name` is the directory, so it must differ for different packages. `architecture` is Debian's
/// name.
pub(super) fn contents(name: &str, suite: &str, architecture: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let (directory, _lock) = locked_directory(name).map_err(|error| error.to_string())?;
    let root = directory.join("root");
    if !root.exists() {
        let apt = Apt::new(&directory, suite, architecture)?;
        apt.run(&[&["download"], packages].concat())?;
        apt.unpack(&root)?;
    }
    Ok(root)
}

/// Packages of a suite for an architecture, and all that they need, unpacked; gets them unless an
/// earlier call has.
///
/// `name` is the directory, so it must differ for different packages.
pub(super) fn unpacked_for(name: &str, suite: &str, architecture: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let (directory, _lock) = locked_directory(name).map_err(|error| error.to_string())?;
    let root = directory.join("root");
    if !root.exists() {
        unpack(&directory, &root, suite, architecture, packages)?;
    }
    Ok(root)
}

/// The folder with a package's source as the suite has it; gets and unpacks it unless an earlier
/// call has.
pub(super) fn source(suite: &str, package: &str) -> Result<PathBuf, String> {
    let (directory, _lock) = locked_directory(&format!("source-{package}")).map_err(|error| error.to_string())?;
    let root = directory.join("root");
    if !root.exists() {
        let apt = Apt::new(&directory, suite, "")?;
        apt.run(&["source", "--download-only", package])?;
        let archives = fs::read_dir(&apt.archives).map_err(|error| error.to_string())?;
        let mut files = archives.filter_map(|entry| Some(entry.ok()?.path()));
        let description = files.find(|path| path.extension().is_some_and(|extension| extension == "dsc"));
        let description = description.ok_or("no description of the source")?;
        let partial = directory.join("root.partial");
        // From a run that was broken off.
        let _ = fs::remove_dir_all(&partial);
        run(Command::new("dpkg-source")
            .args(["--no-check", "-x"])
            .arg(description)
            .arg(&partial))?;
        fs::rename(partial, &root).map_err(|error| error.to_string())?;
    }
    Ok(root)
}

/// Gets packages and all that they need.
fn unpack(directory: &Path, root: &Path, suite: &str, architecture: &str, packages: &[&str]) -> Result<(), String> {
    let apt = Apt::new(directory, suite, architecture)?;
    apt.run(
        &[
            &["install", "--yes", "--download-only", "--no-install-recommends"],
            packages,
        ]
        .concat(),
    )?;
    apt.unpack(root)
}

/// How long lists of packages are taken as new. Reading them takes longer than most packages.
const LISTS_ARE_NEW: Duration = Duration::from_secs(3_600);

/// Downloads with the apt configuration of this machine, but lists and caches of its own: the lists
/// are shared by all packages of a suite.
struct Apt {
    directory: PathBuf,
    archives: PathBuf,
    /// As options of the command line.
    configuration: Vec<String>,
}

impl Apt {
    /// For packages of an architecture; an empty one is the machine's own.
    fn new(directory: &Path, suite: &str, architecture: &str) -> Result<Apt, String> {
        let io = |error: std::io::Error| error.to_string();
        let mirror = mirror()?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let sources = ["deb", "deb-src"].map(|kind| format!("{kind} [signed-by={keyring}] {mirror} {suite} main\n"));
        let (shared, _lock) = locked_directory(&format!("apt-{suite}-{architecture}")).map_err(io)?;
        fs::write(shared.join("sources.list"), sources.concat()).map_err(io)?;
        let archives = directory.join("archives");
        for folder in [
            shared.join("state/lists/partial"),
            shared.join("cache"),
            archives.join("partial"),
        ] {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let mut configuration = vec![
            option("Dir::Etc::SourceList", shared.join("sources.list")),
            option("Dir::Etc::SourceParts", shared.join("none")),
            option("Dir::State", shared.join("state")),
            option("Dir::Cache", shared.join("cache")),
            option("Dir::Cache::Archives", archives.clone()),
            // Nothing counts as installed, so that all libraries come along.
            "Dir::State::status=/dev/null".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            // The lock would be beside the file that says what is installed, and nothing is
            // installed.
            "Debug::NoLocking=true".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // A mirror's copy of sid may be older than its signature allows.
            "Acquire::Check-Valid-Until=false".to_owned(),
        ];
        if !architecture.is_empty() {
            configuration.push(format!("APT::Architecture={architecture}"));
            configuration.push(format!("APT::Architectures::={architecture}"));
        }
        let apt = Apt {
            directory: directory.to_owned(),
            archives,
            configuration,
        };
        let updated = shared.join("updated");
        let age = fs::metadata(&updated).and_then(|file| file.modified()).ok();
        let age = age.and_then(|time| time.elapsed().ok());
        if age.is_none_or(|age| age > LISTS_ARE_NEW) {
            apt.run(&["update"])?;
            fs::write(updated, "").map_err(io)?;
        }
        Ok(apt)
    }

    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("apt-get");
        for option in &self.configuration {
            command.arg("-o").arg(option);
        }
        // Where `download` puts what it gets.
        run(command.args(arguments).current_dir(&self.archives))
    }

    /// The contents of all packages that are there, as one tree.
    fn unpack(&self, root: &Path) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let partial = self.directory.join("root.partial");
        for entry in fs::read_dir(&self.archives).map_err(io)?.filter_map(Result::ok) {
            if entry.path().extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&partial))?;
            }
        }
        fs::rename(partial, root).map_err(io)
    }
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
