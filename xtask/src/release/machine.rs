//! The CPUs that releases are made for.

use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// A CPU, by its names.
pub(super) struct Machine {
    /// Linux's name and RPM's.
    pub(super) cpu: &'static str,
    /// Debian's name.
    pub(super) debian: &'static str,
    /// Debian's folder of libraries, and the prefix of compilers for it.
    pub(super) multiarch: &'static str,
    /// Rust's targets.
    pub(super) gnu: &'static str,
    pub(super) musl: &'static str,
}

const MACHINES: [Machine; 2] = [
    Machine {
        cpu: "x86_64",
        debian: "amd64",
        multiarch: "x86_64-linux-gnu",
        gnu: "x86_64-unknown-linux-gnu",
        musl: "x86_64-unknown-linux-musl",
    },
    Machine {
        cpu: "aarch64",
        debian: "arm64",
        multiarch: "aarch64-linux-gnu",
        gnu: "aarch64-unknown-linux-gnu",
        musl: "aarch64-unknown-linux-musl",
    },
];

/// The machine of a target, or this one.
pub(super) fn of(target: Option<&str>) -> Result<&'static Machine, String> {
    let known = |machine: &&Machine| target.map_or(machine.cpu == ARCH, |target| machine.gnu == target);
    MACHINES.iter().find(known).ok_or_else(|| {
        let names = MACHINES.each_ref().map(|machine| machine.gnu);
        format!(
            "{}: releases are made for {}",
            target.unwrap_or(ARCH),
            names.join(" and ")
        )
    })
}

impl Machine {
    pub(super) fn is_here(&self) -> bool {
        self.cpu == ARCH
    }

    /// A tool of binutils or gcc for this machine.
    pub(super) fn tool(&self, name: &str) -> String {
        match (self.is_here(), name) {
            (true, _) => name.to_owned(),
            (false, "cc") => format!("{}-gcc", self.multiarch),
            (false, _) => format!("{}-{name}", self.multiarch),
        }
    }

    /// Runs a program of this machine.
    pub(super) fn command(&self, program: &Path) -> Command {
        if self.is_here() {
            return Command::new(program);
        }
        let mut emulator = Command::new(format!("qemu-{}-static", self.cpu));
        emulator.args([
            OsStr::new("-L"),
            OsStr::new(&format!("/usr/{}", self.multiarch)),
            program.as_os_str(),
        ]);
        emulator
    }
}
