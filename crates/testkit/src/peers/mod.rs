//! Other implementations of the formats, installed when a test first needs them.
//!
//! Installing needs root and a network. Without these, or without the peer, a `SKIPPED:` line says
//! so and the function returns `None`.

mod babeltrace;
mod barectf;
mod binutils;
mod c_programs;
mod debian;
mod gcc;
mod guest;
mod libcxx;
mod lttng;
mod mold;
mod source;
mod stacktraces;

pub use babeltrace::{babeltrace1, babeltrace2_2_0, babeltrace2_2_1};
pub use barectf::Barectf;
pub use binutils::{Binutils, Machine, Release};
pub use c_programs::{CProgram, Compiler};
pub(crate) use guest::{kernel as guest_kernel, root as guest_root};
pub use libcxx::libcxx;
pub use lttng::Lttng;
pub use mold::mold_3;
pub use source::{binutils_source, zlib};
pub use stacktraces::{cpptrace, std_stacktrace};

use crate::packages::installation;
use crate::{Missing, place};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

/// A program with the arguments that make it run.
#[derive(Clone, Debug)]
pub struct Peer {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Peer {
    /// A command to which its own arguments must still be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }
}

/// Installs GNU libunwind with its headers on the system; returns whether it is there.
pub fn libunwind() -> bool {
    let installed = || run(Command::new("pkg-config").args(["--exists", "libunwind"]));
    let found = installed().or_else(|_| {
        let (_directory, _lock) = locked_directory("libunwind").map_err(|error| error.to_string())?;
        run(&mut installation(&["libunwind-dev"]))?;
        installed()
    });
    if let Err(why) = &found {
        crate::skip(format_args!("libunwind: {why}"));
    }
    found.is_ok()
}

/// A root directory with GNU libunwind, its headers, and all that it needs, of Debian 12 for
/// AArch64.
///
/// # Errors
/// [`Missing`] if the packages can't be had.
pub fn aarch64_libunwind() -> Result<PathBuf, Missing> {
    debian::unpacked_for("libunwind-arm64", "bookworm", "arm64", &["libunwind-dev"]).map_err(Missing)
}

/// A directory for one peer under the workspace's target directory, locked against other test
/// processes.
fn locked_directory(name: &str) -> std::io::Result<(PathBuf, File)> {
    let directory = place::target().join("peers").join(name);
    fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let lock = File::create(directory.join("lock"))?;
    lock.lock()?;
    Ok((directory, lock))
}

/// Runs a step of an installation; its output becomes the error.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().last().unwrap_or("failed");
            Err(format!("{}: {last}", command.get_program().to_string_lossy()))
        }
    }
}
