//! The releases of GNU binutils that write SFrame V1, V2 and V3, for each machine whose tables they
//! make.

use super::debian::Unpacked;
use super::{Peer, run};
use crate::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A release, by the version of SFrame that its assembler and linker write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 2.40, of bookworm: SFrame V1.
    V2_40,
    /// 2.44, of trixie: SFrame V2.
    V2_44,
    /// 2.47, of sid: SFrame V3.
    V2_47,
}

impl Release {
    /// Each of them.
    pub const ALL: [Release; 3] = [Release::V2_40, Release::V2_44, Release::V2_47];

    /// As `--version` says it.
    pub fn number(self) -> &'static str {
        match self {
            Release::V2_40 => "2.40",
            Release::V2_44 => "2.44",
            Release::V2_47 => "2.47",
        }
    }

    /// The number of the version of SFrame.
    pub fn sframe_version(self) -> u8 {
        match self {
            Release::V2_40 => 1,
            Release::V2_44 => 2,
            Release::V2_47 => 3,
        }
    }

    pub(super) fn suite(self) -> &'static str {
        match self {
            Release::V2_40 => "bookworm",
            Release::V2_44 => "trixie",
            Release::V2_47 => "sid",
        }
    }
}

/// The target of the assembler and the linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64, either byte order: `as -EB`, `ld -m aarch64linuxb`.
    Aarch64,
    /// s390x, whose tables are made by 2.45 and later.
    S390x,
}

impl Machine {
    /// The prefix of the names of its tools.
    pub fn triplet(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64-linux-gnu",
            Machine::Aarch64 => "aarch64-linux-gnu",
            Machine::S390x => "s390x-linux-gnu",
        }
    }
}

/// One release, unpacked.
pub struct Binutils {
    release: Release,
    unpacked: Unpacked,
}

impl Binutils {
    /// The release, installed on first use; `None`, with a `SKIPPED:` line, if that is not
    /// possible.
    pub fn get(release: Release) -> Option<Binutils> {
        let found = Self::find(release);
        if let Err(why) = &found {
            skip(format_args!("binutils {}: {why}", release.number()));
        }
        found.ok()
    }

    fn find(release: Release) -> Result<Binutils, String> {
        let name = format!("binutils-{}", release.number());
        let packages = [
            "binutils",
            "binutils-x86-64-linux-gnu",
            "binutils-aarch64-linux-gnu",
            "binutils-s390x-linux-gnu",
        ];
        let unpacked = Unpacked::get(&name, release.suite(), &packages)?;
        let binutils = Binutils { release, unpacked };
        let version = run(binutils.tool(Machine::X86_64, "ld").command().arg("--version"))?;
        let first = version.lines().next().unwrap_or_default();
        match first.contains(release.number()) {
            true => Ok(binutils),
            false => Err(format!("the suite {} has another one: {first}", release.suite())),
        }
    }

    /// The release of these tools.
    pub fn release(&self) -> Release {
        self.release
    }

    /// `as`, `ld`, `readelf`, `objcopy`, `objdump`, `strip`, …
    pub fn tool(&self, machine: Machine, name: &str) -> Peer {
        self.unpacked.program(&format!("{}-{name}", machine.triplet()))
    }

    /// The library of that name that has the highest version (`libsframe.so` is of several
    /// packages).
    pub fn shared_library(&self, name: &str) -> Option<PathBuf> {
        let libraries = fs::read_dir(self.unpacked.libraries()).ok()?;
        let versions = libraries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix(name)?.strip_prefix('.')?;
            Some((version.parse::<u32>().ok()?, path))
        });
        versions.max().map(|(_, path)| path)
    }

    /// A directory for `gcc -B DIR/` that holds just `as` and `ld` of this release.
    ///
    /// # Panics
    /// If the wrappers can't be written where the tools themselves were unpacked.
    pub fn for_gcc(&self, machine: Machine) -> PathBuf {
        let directory = self.unpacked.directory().join(format!("gcc-{}", machine.triplet()));
        for name in ["as", "ld"] {
            let wrapper = directory.join(name);
            if !wrapper.exists() {
                write_wrapper(&wrapper, &self.tool(machine, name)).expect("the wrapper can be written");
            }
        }
        directory
    }

    /// Whether the suite's package has tools for the machine.
    pub fn has(&self, machine: Machine) -> bool {
        self.unpacked.has(&format!("{}-ld", machine.triplet()))
    }
}

/// Written aside and renamed, since other tests may be about to run it.
pub(super) fn write_wrapper(wrapper: &Path, tool: &Peer) -> std::io::Result<()> {
    let folder = wrapper.parent().unwrap_or(wrapper);
    fs::create_dir_all(folder)?;
    let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"));
    let mut line = format!("exec {}", quoted(tool.program.as_os_str()));
    for argument in &tool.arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    let file = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(file.path(), format!("#!/bin/sh\n{line} \"$@\"\n"))?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755))?;
    // Closed before it is renamed: a file that is open for writing can't be executed.
    let path = file.into_temp_path();
    path.persist(wrapper).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn each_release_writes_its_version() {
        for release in Release::ALL {
            let Some(binutils) = Binutils::get(release) else {
                continue;
            };
            let folder = crate::scratch();
            let (source, object) = (folder.path().join("p.c"), folder.path().join("p"));
            fs::write(&source, "int main(void) { return 0; }\n").unwrap();
            let mut gcc = Command::new("gcc");
            gcc.arg("-B")
                .arg(binutils.for_gcc(Machine::X86_64))
                .arg("-Wa,--gsframe");
            run(gcc.arg("-o").arg(&object).arg(&source)).unwrap();
            let mut readelf = binutils.tool(Machine::X86_64, "readelf").command();
            let text = run(readelf.arg("--sframe").arg(&object)).unwrap();
            let version = format!("SFRAME_VERSION_{}", release.sframe_version());
            assert!(text.contains(&version), "{text}");
            for machine in [Machine::Aarch64, Machine::S390x] {
                assert!(binutils.has(machine), "{machine:?}");
            }
        }
    }
}
