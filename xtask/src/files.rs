//! Files and folders, with errors that name them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Copies a file into a folder that is created if needed.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    create_folder_of(to)?;
    fs::copy(from, to).map(drop).map_err(|error| named(from, error))
}

/// Writes a file into a folder that is created if needed.
pub(crate) fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    create_folder_of(file)?;
    fs::write(file, content).map_err(|error| named(file, error))
}

/// Creates the folder that a file is to be in.
pub(crate) fn create_folder_of(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|error| named(folder, error))
}

pub(crate) fn named(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The path below a folder of every file and link in it, in order.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).map_err(|error| named(&next, error))?.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ => files.push(path.strip_prefix(folder).unwrap_or(&path).to_owned()),
            }
        }
    }
    files.sort();
    Ok(files)
}
