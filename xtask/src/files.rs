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

/// The project's files that are text, in order.
pub(crate) fn texts(root: &Path) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    all_files(root, &mut paths);
    paths.sort();
    let file = |path: PathBuf| {
        let name = path.strip_prefix(root).ok()?.to_string_lossy().into_owned();
        Some((name, fs::read_to_string(&path).ok()?))
    };
    paths.into_iter().filter_map(file).collect()
}

/// Every file of the project; what is built, and what is hidden, is not part of it.
fn all_files(folder: &Path, files: &mut Vec<PathBuf>) {
    // Cargo marks the folders that it builds in, and cargo-fuzz has names for its own.
    const BUILT: &str = "CACHEDIR.TAG";
    const SEARCHED: [&str; 3] = ["fuzz/corpus", "fuzz/artifacts", "fuzz/coverage"];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let hidden =
            name.to_string_lossy().starts_with('.') && ![".ci", ".cargo", ".github"].iter().any(|known| name == *known);
        let generated = path.join(BUILT).exists() || SEARCHED.iter().any(|built| path.ends_with(built));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !hidden && !generated => all_files(&path, files),
            Ok(kind) if kind.is_file() && !hidden => files.push(path),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_called_target_is_read() {
        let folder = backtrail_testkit::scratch();
        let of = |name: &str| folder.path().join(name);
        for (folder, is_built) in [("crates/x/src/target", false), ("target", true)] {
            fs::create_dir_all(of(folder)).unwrap();
            fs::write(of(folder).join("a.rs"), "").unwrap();
            if is_built {
                fs::write(of(folder).join("CACHEDIR.TAG"), "").unwrap();
            }
        }
        let names: Vec<_> = texts(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["crates/x/src/target/a.rs"]);
    }
}
