//! A store: its schema document, and where the files of its tables are.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{LocationError, SchemaError, StoreError};
use crate::files::TableReader;
use crate::partition::Partition;
use crate::storage::{Storage, WRITING};
use crate::tables::{ALL, PARTITIONS, Table, VERSION};

/// The schema document's name.
pub const SCHEMA: &str = "backtrail-store.json";
/// A store, in a folder or in a bucket.
#[derive(Clone, Debug)]
pub struct Store {
    storage: Storage,
}

impl Store {
    /// Opens a store in a folder, or in a bucket: `s3://BUCKET/PREFIX`, which the feature `s3`
    /// knows. Server, region and credentials of a bucket are those of the environment (`AWS_…`).
    ///
    /// # Errors
    ///
    /// If there is no store, or one of a later version.
    pub fn open(place: &Path) -> Result<Store, StoreError> {
        Store::open_in(Storage::of(place)?)
    }

    fn open_in(storage: Storage) -> Result<Store, StoreError> {
        let path = storage.root().join(SCHEMA);
        let mut text = Vec::new();
        match storage.open(&path) {
            Ok(mut file) => file.read_to_end(&mut text).map_err(StoreError::file(&path))?,
            Err(StoreError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Schema(storage.root().to_owned(), SchemaError::Missing));
            }
            Err(error) => return Err(error),
        };
        let version = serde_json::from_slice::<Value>(&text)
            .ok()
            .and_then(|document| document["version"].as_u64());
        match version {
            Some(1..) if version <= Some(VERSION.into()) => Ok(Store { storage }),
            Some(later @ 1..) => Err(StoreError::Schema(path, SchemaError::Later(later))),
            _ => Err(StoreError::Schema(path, SchemaError::Damaged)),
        }
    }

    /// Opens a store, or begins one in a folder or below a prefix that is new or empty. Only its
    /// owner can look into a new folder.
    ///
    /// # Errors
    ///
    /// If the place contains anything else, or cannot be written.
    pub fn open_or_create(place: &Path) -> Result<Store, StoreError> {
        Store::open_or_create_in(Storage::of(place)?)
    }

    fn open_or_create_in(storage: Storage) -> Result<Store, StoreError> {
        match Store::open_in(storage.clone()) {
            Err(StoreError::Schema(_, SchemaError::Missing)) => {}
            result => return result,
        }
        storage.prepare()?;
        // Another writer may be at the same point: its schema document, or our common folder, is no
        // stranger's.
        let is_strange = |name: &String| name != SCHEMA && name != WRITING;
        if storage.names()?.iter().any(is_strange) {
            // That writer may have gone on, too.
            return Store::open_in(storage);
        }
        let path = storage.root().join(SCHEMA);
        let text = format!("{:#}\n", document());
        let write = || storage.create(&path, |out| out.write_all(text.as_bytes()));
        // A server that replaces an object here would mix the files of two writers later.
        if write()? && storage.as_folder().is_none() && write()? {
            storage.remove(std::slice::from_ref(&path))?;
            return Err(StoreError::Location(storage.root().to_owned(), LocationError::Replaces));
        }
        Store::open_in(storage)
    }

    /// Its folder, or the URL of its place in a bucket.
    pub fn folder(&self) -> &Path {
        self.storage.root()
    }

    /// Whether it is in a bucket.
    pub fn is_remote(&self) -> bool {
        self.storage.as_folder().is_none()
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The folder of a table.
    pub fn table(&self, table: &Table) -> PathBuf {
        self.folder().join(table.name)
    }

    /// The partitions that a table has, in order.
    ///
    /// # Errors
    ///
    /// If a folder cannot be read.
    pub fn partitions(&self, table: &Table) -> Result<Vec<Partition>, StoreError> {
        self.storage.partitions(&self.table(table))
    }

    /// The files of a table in a partition, in order.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn files(&self, table: &Table, partition: &Partition) -> Result<Vec<PathBuf>, StoreError> {
        self.storage.files(&self.table(table).join(partition.path()))
    }

    /// Opens a file of a table.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is damaged, or is of a later version.
    pub fn reader(&self, path: &Path, table: &'static Table) -> Result<TableReader, StoreError> {
        TableReader::of(self.storage.open(path)?, path, table)
    }

    /// Writes a file that appears whole, or not at all. Returns `false` if there is one of this
    /// name, which stays.
    pub(crate) fn write(
        &self,
        path: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<bool, StoreError> {
        self.storage.create(path, write)
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
    use std::fs;

    use super::*;

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

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_has_a_store() {
        let storage = Storage::in_memory();
        let missing = Store::open_in(storage.clone()).unwrap_err();
        assert!(
            matches!(missing, StoreError::Schema(_, SchemaError::Missing)),
            "{missing}"
        );
        let store = Store::open_or_create_in(storage.clone()).unwrap();
        assert!(store.is_remote() && Store::open_or_create_in(storage).is_ok());

        let crash = json!({"id": "1", "time": "2026-11-23T16:00:00Z", "host": "a7", "pid": 7, "name": "cart"});
        let added = |new, files| {
            let added = store
                .add_crashes(std::slice::from_ref(&crash), &Default::default())
                .unwrap();
            assert_eq!((added.new, added.files), (new, files));
        };
        added(1, 2);
        added(0, 0);
        let checked = store.check().unwrap();
        assert_eq!((checked.crashes, checked.files), (1, 2));
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        let views = store.views(crate::Engine::DuckDb).unwrap().concat();
        assert!(views.contains("'s3://bucket/fleet/crashes/*/*/*/*.parquet'"), "{views}");
        assert!(!store.has_names().unwrap());

        let refused = store.compact().unwrap_err();
        assert!(
            matches!(refused, StoreError::Location(_, LocationError::NoMerging)),
            "{refused}"
        );
        assert_eq!(store.remove_before("2026-11-23", "16").unwrap(), 0);
        assert_eq!(store.remove_before("2026-11-23", "17").unwrap(), 1);
        assert_eq!(store.check().unwrap().files, 0);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn objects_of_others_are_no_store() {
        let storage = Storage::in_memory();
        let letter = storage.root().join("letter");
        storage.create(&letter, |out| out.write_all(b"dear")).unwrap();
        let refused = Store::open_or_create_in(storage).unwrap_err();
        assert_eq!(refused.to_string(), "not a store");
    }
}
