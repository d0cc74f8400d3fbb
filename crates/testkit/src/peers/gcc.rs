//! The compiler proper of gcc 16, which the system's gcc can run instead of its own.

use std::path::PathBuf;
use std::process::Command;

use super::binutils::write_wrapper;
use super::debian::Unpacked;
use super::run;

/// A folder for `gcc -B DIR/` that holds just `cc1` of gcc 16, of sid, with its own headers. What
/// it writes is for the assembler of the same suite.
pub(super) fn cc1_16() -> Result<PathBuf, String> {
    let unpacked = Unpacked::get("gcc-16", "sid", &["cpp-16-x86-64-linux-gnu", "libgcc-16-dev"])?;
    let directory = unpacked.directory().join("cc1");
    let wrapper = directory.join("cc1");
    if !wrapper.exists() {
        let mut cc1 = unpacked.run_by_loader(&unpacked.file("usr/libexec/gcc/x86_64-linux-gnu/16/cc1"));
        let headers = unpacked.file("usr/lib/gcc/x86_64-linux-gnu/16/include");
        cc1.arguments.extend(["-isystem".into(), headers.into()]);
        write_wrapper(&wrapper, &cc1).map_err(|error| error.to_string())?;
    }
    let version = run(Command::new(&wrapper).args(["-version", "-o", "-", "/dev/null"]))?;
    match version.contains("GCC: (Debian 16.") {
        true => Ok(directory),
        false => Err("the suite sid has another gcc".to_owned()),
    }
}
