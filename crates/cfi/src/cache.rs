//! Results are stored in files for later runs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Build IDs of other lengths are not hashes, and would collide.
const BUILD_ID_BYTES: std::ops::RangeInclusive<usize> = 8..=64;

/// The user's cache folder: `$XDG_CACHE_HOME/backtrail`, or `~/.cache/backtrail`. The XDG base
/// directory specification says to ignore a relative path in the variable.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    base.map(|base| base.join("backtrail"))
}

/// The file in `folder` for a module with this build ID; `None` if the build ID does not identify
/// the module.
pub fn entry(folder: &Path, build_id: &[u8], ending: &str) -> Option<PathBuf> {
    BUILD_ID_BYTES.contains(&build_id.len()).then(|| {
        let name: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        folder.join(format!("{name}.{ending}"))
    })
}

/// Writes a file completely or not at all: it writes a temporary file and renames it. Only the user
/// may read the file.
///
/// # Errors
/// If the folder can't be created or the file can't be written.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
