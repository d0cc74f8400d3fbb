//! mold of a later Debian, which merges SFrame V3.

use super::debian::Unpacked;
use super::{binutils, run};
use crate::skip;
use std::path::PathBuf;

/// mold 3 or later, unpacked beside the system and run by its own loader, in a directory for `gcc
/// -B DIR/` that holds it as `ld`; a `SKIPPED:` line where that can't be.
pub fn mold_3() -> Option<PathBuf> {
    let found = unpacked();
    if let Err(why) = &found {
        skip(format_args!("mold 3: {why}"));
    }
    found.ok()
}

fn unpacked() -> Result<PathBuf, String> {
    let unpacked = Unpacked::get("mold-sid", "sid", &["mold"])?;
    let mold = unpacked.program("mold");
    let version = run(mold.command().arg("--version"))?;
    let number = version.strip_prefix("mold ").and_then(|rest| rest.split('.').next());
    if number.and_then(|number| number.parse::<u32>().ok()) < Some(3) {
        return Err(format!("the suite has another one: {version}"));
    }
    let directory = unpacked.directory().join("gcc");
    if !directory.join("ld").exists() {
        binutils::write_wrapper(&directory.join("ld"), &mold).map_err(|error| error.to_string())?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn it_is_the_linker_of_gcc() {
        let Some(directory) = mold_3() else { return };
        let version = run(Command::new("gcc").arg("-B").arg(directory).arg("-Wl,--version")).unwrap();
        assert!(version.starts_with("mold "), "{version}");
    }
}
