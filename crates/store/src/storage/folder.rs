//! Files in a folder, which appear there whole.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use super::{WRITING, is_table, value};
use crate::error::StoreError;
use crate::partition::Partition;
use crate::tables::PARTITIONS;

pub(super) fn create(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.flatten();
    Ok(entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = entries(folder)?;
    files.retain(|path| is_table(path));
    files.sort();
    Ok(files)
}

pub(super) fn partitions(table: &Path) -> Result<Vec<Partition>, StoreError> {
    let mut found = Vec::new();
    for (date, path) in values(table, PARTITIONS[0])? {
        for (hour, path) in values(&path, PARTITIONS[1])? {
            for (service, _) in values(&path, PARTITIONS[2])? {
                let (date, hour) = (date.clone(), hour.clone());
                found.push(Partition { date, hour, service });
            }
        }
    }
    Ok(found)
}

pub(super) fn has_files(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| match path.is_dir() {
        true => has_files(&path),
        false => is_table(&path),
    })
}

/// The values of a partition's key in a folder, and their folders.
fn values(folder: &Path, key: &str) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let of = |path: PathBuf| {
        let value = value(path.file_name()?.to_str()?, key)?.to_owned();
        Some((value, path))
    };
    Ok(entries(folder)?.into_iter().filter_map(of).collect())
}

/// What is in a folder; nothing if there is no such folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::File(folder.to_owned(), error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<io::Result<_>>().map_err(StoreError::file(folder))
}

/// Writes a file below `root`; see [`Storage::create`](super::Storage::create).
pub(super) fn write_new(root: &Path, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<bool> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let written = match nameless(folder) {
        Some(mut file) => {
            write(&mut file)?;
            file.sync_all()?;
            name(&file, path)
        }
        None => {
            let common = root.join(WRITING);
            fs::create_dir_all(&common)?;
            let mut temporary = tempfile::Builder::new().prefix("file-").tempfile_in(&common)?;
            write(temporary.as_file_mut())?;
            temporary.as_file().sync_all()?;
            match temporary.persist_noclobber(path) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.error),
            }
        }
    };
    match written {
        Ok(()) => {
            File::open(folder)?.sync_all()?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A new file without a name: if the writer is killed, nothing remains of it.
fn nameless(folder: &Path) -> Option<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits() as i32);
    let file = options.open(folder).ok()?;
    // Files get names through this path.
    Path::new(&path_of(&file)).exists().then_some(file)
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Gives a nameless file a name that no other has.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let link = || rustix::fs::linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW);
    match link() {
        // Retention has just removed the empty folder.
        Err(Errno::NOENT) => {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            Ok(link()?)
        }
        result => Ok(result?),
    }
}
