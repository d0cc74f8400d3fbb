//! The folders of a store, and files that appear there whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::error::{SchemaError, StoreError};
use crate::tables::{ALL, PARTITIONS, Table, VERSION};

/// The schema document's name.
pub const SCHEMA: &str = "backtrail-store.json";
/// Files that are being written where the file system has no nameless files. Engines do not look
/// there.
pub(crate) const WRITING: &str = ".writing";

/// A store: its folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A part of the store that is written and removed as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The day, `2026-11-23`, in UTC.
    pub date: String,
    /// The hour, `00` to `23`.
    pub hour: String,
    /// The service.
    pub service: String,
}

impl Partition {
    /// Its folder within a table's.
    pub fn path(&self) -> PathBuf {
        let values = [&self.date, &self.hour, &self.service];
        let names = PARTITIONS
            .iter()
            .zip(values)
            .map(|(key, value)| format!("{key}={value}"));
        names.collect()
    }
}

/// Whether a service can be the name of a folder in every engine without escapes.
pub fn is_service(name: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&name.len()) && name.chars().all(is_fine) && !name.starts_with('.')
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    ///
    /// If the folder is not a store, or one of a later version.
    pub fn open(folder: &Path) -> Result<Store, StoreError> {
        let path = folder.join(SCHEMA);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Schema(folder.to_owned(), SchemaError::Missing));
            }
            Err(error) => return Err(StoreError::File(path, error)),
        };
        let version = serde_json::from_slice::<Value>(&text)
            .ok()
            .and_then(|document| document["version"].as_u64());
        match version {
            Some(1..) if version <= Some(VERSION.into()) => Ok(Store {
                folder: folder.to_owned(),
            }),
            Some(later @ 1..) => Err(StoreError::Schema(path, SchemaError::Later(later))),
            _ => Err(StoreError::Schema(path, SchemaError::Damaged)),
        }
    }

    /// Opens a store, or begins one in a folder that is new or empty. Only its owner can look into
    /// a new folder.
    ///
    /// # Errors
    ///
    /// If the folder contains anything else, or cannot be written.
    pub fn open_or_create(folder: &Path) -> Result<Store, StoreError> {
        match Store::open(folder) {
            Err(StoreError::Schema(_, SchemaError::Missing)) => {}
            result => return result,
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(StoreError::file(folder))?;
        // Another writer may be at the same point: its schema document, or our common folder, is no
        // stranger's.
        let mut entries = fs::read_dir(folder).map_err(StoreError::file(folder))?;
        let is_strange = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name() != SCHEMA && entry.file_name() != WRITING)
        };
        if entries.any(is_strange) && !folder.join(SCHEMA).exists() {
            return Err(StoreError::Schema(folder.to_owned(), SchemaError::Missing));
        }
        let store = Store {
            folder: folder.to_owned(),
        };
        let text = format!("{:#}\n", document());
        store.write(&folder.join(SCHEMA), |out| out.write_all(text.as_bytes()))?;
        Store::open(folder)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a table.
    pub fn table(&self, table: &Table) -> PathBuf {
        self.folder.join(table.name)
    }

    /// The partitions that a table has, in order.
    ///
    /// # Errors
    ///
    /// If a folder cannot be read.
    pub fn partitions(&self, table: &Table) -> Result<Vec<Partition>, StoreError> {
        let mut found = Vec::new();
        let root = self.table(table);
        for (date, path) in values(&root, PARTITIONS[0])? {
            for (hour, path) in values(&path, PARTITIONS[1])? {
                for (service, _) in values(&path, PARTITIONS[2])? {
                    let (date, hour) = (date.clone(), hour.clone());
                    found.push(Partition { date, hour, service });
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// The files of a table in a partition, in order.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn files(&self, table: &Table, partition: &Partition) -> Result<Vec<PathBuf>, StoreError> {
        files_in(&self.table(table).join(partition.path()))
    }

    /// Writes a file that appears whole, or not at all. Returns `false` if there is one of this
    /// name, which stays.
    pub(crate) fn write(
        &self,
        path: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<bool, StoreError> {
        self.write_new(path, write).map_err(StoreError::file(path))
    }

    fn write_new(&self, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<bool> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let written = match nameless(folder) {
            Some(mut file) => {
                write(&mut file)?;
                file.sync_all()?;
                name(&file, path)
            }
            None => {
                let common = self.folder.join(WRITING);
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
}

/// The values of a partition's key in a folder, and their folders.
fn values(folder: &Path, key: &str) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::File(folder.to_owned(), error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::file(folder))?;
        let name = entry.file_name();
        let value = name.to_str().and_then(|name| name.strip_prefix(key)?.strip_prefix('='));
        if let Some(value) = value {
            found.push((value.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

/// The tables' files in a folder, in order; none if there is no such folder.
pub(crate) fn files_in(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::File(folder.to_owned(), error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::file(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
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

/// What the tables mean, for readers without this program.
fn document() -> Value {
    let tables = ALL.iter().map(|table| {
        let columns = table
            .columns
            .iter()
            .map(|column| json!({"name": column.name, "type": column.kind.name(), "meaning": column.meaning}));
        let columns: Vec<Value> = columns.collect();
        json!({"name": table.name, "row": table.meaning, "columns": columns})
    });
    let tables: Vec<Value> = tables.collect();
    json!({
        "format": "backtrail store",
        "version": VERSION,
        "partitions": PARTITIONS,
        "tables": tables,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_names_of_folders() {
        for (name, fine) in [
            ("web-1.x_y", true),
            ("", false),
            ("a/b", false),
            ("..", false),
            ("a=b", false),
        ] {
            assert_eq!(is_service(name), fine, "{name}");
        }
        assert!(!is_service(&"a".repeat(129)));
    }

    #[test]
    fn a_file_that_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(&folder.path().join("new")).unwrap();
        let path = store.folder().join("samples/x.parquet");
        assert!(store.write(&path, |out| out.write_all(b"first")).unwrap());
        assert!(!store.write(&path, |out| out.write_all(b"second")).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let failed = store.write(&store.folder().join("y"), |out| {
            out.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(failed.is_err() && !store.folder().join("y").exists());
    }

    #[test]
    fn only_a_store_or_an_empty_folder_is_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("letter"), "dear").unwrap();
        let refused = Store::open_or_create(folder.path()).unwrap_err();
        assert_eq!(refused.to_string(), "not a store");
        fs::write(folder.path().join(SCHEMA), "{\"version\": 4}").unwrap();
        let refused = Store::open_or_create(folder.path()).unwrap_err();
        assert!(refused.to_string().contains("version 4"), "{refused}");
        fs::write(folder.path().join(SCHEMA), "{").unwrap();
        assert!(Store::open(folder.path()).is_err());
    }
}
