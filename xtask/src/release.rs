//! Makes the files of a release from the current commit: archives, packages for Debian and for
//! RPM's systems, a static command, checksums.
//!
//! Two runs on one commit give the same bytes, wherever the checkout, cargo's folders and the
//! toolchain are: their paths are mapped to fixed ones, and every file has the commit's time.

mod build;
mod check;
mod deb;
mod licences;
mod machine;
mod rpm;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::place;

use crate::cargo::{output, run};
use crate::files::{below, copy, named, write};
use crate::library::{self, Layout};
use machine::Machine;

/// A release in the making.
struct Release {
    machine: &'static Machine,
    /// The time of the commit, in seconds since 1970.
    time: String,
    /// The folder of intermediate files, empty at first.
    work: PathBuf,
    /// The folder of the results.
    folder: PathBuf,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The packages that have the programs and libraries.
const PACKAGES: [&str; 6] = {
    let [capi, tracer, preload, unwind] = library::PACKAGES;
    ["backtrail", "backtrail-crash-names", capi, tracer, preload, unwind]
};

/// Makes all files for a target, by default the machine's own, in a folder.
pub(crate) fn make(folder: Option<&Path>, target: Option<&str>, is_checked: bool) -> Result<(), String> {
    let machine = machine::of(target)?;
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(place::workspace()).args(arguments));
    if !git(&["status", "--porcelain"])?.is_empty() {
        return Err("there are changes without a commit: a release is made from a commit".to_owned());
    }
    let release = Release {
        machine,
        time: git(&["log", "-1", "--format=%ct"])?.trim().to_owned(),
        work: place::target().join("release-work").join(machine.multiarch),
        folder: match folder {
            Some(folder) => std::path::absolute(folder).map_err(|error| named(folder, error))?,
            None => place::target().join("release-files"),
        },
    };
    empty(&release.work)?;
    match folder {
        Some(given) if given.exists() => return Err(format!("{}: it exists", given.display())),
        _ => empty(&release.folder)?,
    }
    release.make()?;
    if is_checked {
        check::check(&release)?;
    }
    Ok(())
}

/// Whether packages cannot be made, which it then reports.
fn is_missing(tool: &str, package: &str) -> bool {
    let is_missing = output(Command::new(tool).arg("--version")).is_err();
    if is_missing {
        println!("no packages by {tool}, which is missing (apt-get install {package})");
    }
    is_missing
}

/// The name of an archive, without its ending, and of the folder in it.
fn archive_name(machine: &Machine, libc: &str) -> String {
    format!("backtrail-{VERSION}-{}-linux-{libc}", machine.cpu)
}

/// The compressor of an archive, and the ending of its file's name. The static command is for any
/// system, and minimal ones, such as Debian's images for containers, have no xz.
fn compressor(name: &str) -> (&'static str, &'static str) {
    match name.ends_with("-musl") {
        true => ("gzip -9 --no-name", "tar.gz"),
        // One thread: the number of threads changes the output.
        false => ("xz -9 -T1", "tar.xz"),
    }
}

fn empty(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| named(folder, error))?;
    }
    fs::create_dir_all(folder).map_err(|error| named(folder, error))
}

impl Release {
    fn make(&self) -> Result<(), String> {
        let machine = self.machine;
        let built = build::build(machine, machine.gnu, &PACKAGES, &self.time)?;
        let licences = licences::collect(machine.gnu)?;
        stage::generate(self, &built)?;
        let name = archive_name(machine, "gnu");
        let root = self.work.join(&name);
        stage::stage(
            self,
            &built,
            &Layout {
                prefix: "${pcfiledir}/../..".to_owned(),
                lib: "lib".to_owned(),
                preloaded: "lib".to_owned(),
                root: root.clone(),
            },
        )?;
        self.archive(&root, &licences)?;
        deb::make(self, &built, &licences)?;
        rpm::make(self, &built, &licences)?;
        match build::missing(machine.musl)? {
            None => self.make_static()?,
            Some(missing) => println!("no static command: {missing}"),
        }
        self.write_sums()
    }

    /// The command alone, which runs on any Linux.
    fn make_static(&self) -> Result<(), String> {
        let musl = self.machine.musl;
        let built = build::build(self.machine, musl, &["backtrail"], &self.time)?;
        let root = self.work.join(archive_name(self.machine, "musl"));
        copy(&built.join("backtrail"), &root.join("bin/backtrail"))?;
        stage::put_generated(self, &root)?;
        self.archive(&root, &licences::collect(musl)?)
    }

    /// Packs a folder.
    fn archive(&self, root: &Path, licences: &str) -> Result<(), String> {
        for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "NOTICE"] {
            copy(&place::workspace().join(file), &root.join(file))?;
        }
        write(&root.join("LICENSES-OF-CRATES"), licences)?;
        stage::finish(root)?;
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        let (program, ending) = compressor(&name);
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--format=gnu", "--owner=root:0", "--group=root:0"])
            .arg(format!("--mtime=@{}", self.time))
            .arg(format!("--use-compress-program={program}"))
            .args(["--create", "--file"])
            .arg(self.folder.join(format!("{name}.{ending}")))
            .arg("--directory")
            .arg(&self.work)
            .arg(&*name);
        run(&mut tar)
    }

    fn write_sums(&self) -> Result<(), String> {
        let mut sums = Command::new("sha256sum");
        sums.current_dir(&self.folder);
        let sums = output(sums.args(below(&self.folder)?))?;
        print!("{sums}");
        write(&self.folder.join("SHA256SUMS"), sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template of cargo-binstall for a target in the command's manifest, filled in as it does.
    fn binstall(key: &str, machine: &Machine, libc: &str) -> String {
        let manifest = fs::read_to_string(place::workspace().join("crates/cli/Cargo.toml")).unwrap();
        let table = "[package.metadata.binstall";
        let target = format!("{table}.overrides.{}-unknown-linux-{libc}]", machine.cpu);
        let start = format!("{key} = \"");
        let template = [target, format!("{table}]")]
            .iter()
            .filter_map(|header| manifest.split_once(header.as_str()))
            .find_map(|(_, rest)| {
                let mut lines = rest.lines().skip(1).take_while(|line| !line.starts_with('['));
                lines.find_map(|line| line.strip_prefix(&start))
            })
            .unwrap();
        [
            ("{ repo }", "https://example.org"),
            ("{ name }", "backtrail"),
            ("{ bin }", "backtrail"),
            ("{ version }", VERSION),
            ("{ target-arch }", machine.cpu),
            ("{ target-libc }", libc),
            ("{ binary-ext }", ""),
        ]
        .iter()
        .fold(template.trim_end_matches('"').to_owned(), |text, (variable, value)| {
            text.replace(variable, value)
        })
    }

    #[test]
    fn cargo_binstall_looks_for_the_names_of_the_archives() {
        for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
            let machine = machine::of(Some(target)).unwrap();
            for (libc, format) in [("gnu", "txz"), ("musl", "tgz")] {
                let name = archive_name(machine, libc);
                let (_, ending) = compressor(&name);
                let url = format!("https://example.org/releases/download/v{VERSION}/{name}.{ending}");
                assert_eq!(binstall("pkg-url", machine, libc), url);
                assert_eq!(binstall("bin-dir", machine, libc), format!("{name}/bin/backtrail"));
                assert_eq!(binstall("pkg-fmt", machine, libc), format);
            }
        }
    }
}
