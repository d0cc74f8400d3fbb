//! What was worked out once is kept in files, for the next time.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Build ids of other lengths are no hashes, and would meet each other.
const BUILD_ID_BYTES: std::ops::RangeInclusive<usize> = 8..=64;

/// The user's folder for such files: `$XDG_CACHE_HOME/backtrail`, or `~/.cache/backtrail`. By the
/// XDG base directory specification a relative path in the variable is to be ignored.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    base.map(|base| base.join("backtrail"))
}

/// The file for a module with this build id, below `folder`; `None` where the build id does not
/// tell it from others.
pub fn entry(folder: &Path, build_id: &[u8], ending: &str) -> Option<PathBuf> {
    BUILD_ID_BYTES.contains(&build_id.len()).then(|| {
        let name: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        folder.join(format!("{name}.{ending}"))
    })
}

/// Writes a file whole or not at all: into one of its own, which is then renamed. Nobody but the
/// user may read it.
///
/// # Errors
/// Where the folder can't be made or the file can't be written.
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
