//! Where a store's files are: a folder, or a bucket. All files of a store are listed, read and
//! written here.
//!
//! A file in a bucket is named by a path too, `s3://bucket/prefix/samples/…`.

#[cfg(feature = "s3")]
mod bucket;
mod folder;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{LocationError, StoreError};
use crate::partition::Partition;
#[cfg(feature = "s3")]
use crate::tables::PARTITIONS;

#[cfg(feature = "s3")]
use bucket::Bucket;

/// The folder of files that are being written where the file system has no nameless files. Engines
/// do not look there.
pub(crate) const WRITING: &str = ".writing";

/// Where a store's files are.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// A folder of the file system.
    Folder(PathBuf),
    /// A part of a bucket.
    #[cfg(feature = "s3")]
    Bucket(Bucket),
}

impl Storage {
    /// The storage that a user names: a folder, or `s3://BUCKET/PREFIX`. Nothing is opened yet.
    pub(crate) fn of(root: &Path) -> Result<Storage, StoreError> {
        let Some((scheme, rest)) = root.to_str().and_then(scheme) else {
            return Ok(Storage::Folder(root.to_owned()));
        };
        if scheme != "s3" {
            return Err(StoreError::Location(scheme_only(scheme), LocationError::Scheme));
        }
        let (bucket, prefix) = bucket_and_prefix(rest)
            .ok_or_else(|| StoreError::Location(scheme_only(scheme), LocationError::Malformed))?;
        Storage::bucket(bucket, prefix)
    }

    #[cfg(feature = "s3")]
    fn bucket(bucket: &str, prefix: &str) -> Result<Storage, StoreError> {
        Bucket::of(bucket, prefix).map(Storage::Bucket)
    }

    #[cfg(not(feature = "s3"))]
    fn bucket(bucket: &str, prefix: &str) -> Result<Storage, StoreError> {
        let root = ["s3:/", bucket, prefix].join("/");
        Err(StoreError::Location(root.into(), LocationError::WithoutS3))
    }

    /// A part of a bucket that exists in memory only.
    #[cfg(all(test, feature = "s3"))]
    pub(crate) fn in_memory() -> Storage {
        Storage::Bucket(Bucket::in_memory("fleet"))
    }

    /// Its name, with which the names of all its files begin.
    pub(crate) fn root(&self) -> &Path {
        match self {
            Storage::Folder(folder) => folder,
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.root(),
        }
    }

    /// Its name in a query, wherever that is run.
    pub(crate) fn absolute(&self) -> Result<PathBuf, StoreError> {
        match self {
            Storage::Folder(folder) => folder.canonicalize().map_err(StoreError::file(folder)),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => Ok(bucket.root().to_owned()),
        }
    }

    /// The folder, if it is one.
    pub(crate) fn as_folder(&self) -> Option<&Path> {
        match self {
            Storage::Folder(folder) => Some(folder),
            #[cfg(feature = "s3")]
            Storage::Bucket(_) => None,
        }
    }

    /// Makes sure that files can be written; only its owner can look into a new folder.
    pub(crate) fn prepare(&self) -> Result<(), StoreError> {
        match self {
            Storage::Folder(folder) => folder::create(folder),
            #[cfg(feature = "s3")]
            Storage::Bucket(_) => Ok(()),
        }
        .map_err(StoreError::file(self.root()))
    }

    /// The names of the files and folders directly in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Storage::Folder(folder) => folder::names(folder),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.names(),
        }
        .map_err(StoreError::file(self.root()))
    }

    /// A file's bytes, for reading. A missing file is [`io::ErrorKind::NotFound`].
    pub(crate) fn open(&self, path: &Path) -> Result<File, StoreError> {
        match self {
            Storage::Folder(_) => File::open(path),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.open(path),
        }
        .map_err(StoreError::file(path))
    }

    /// Writes a file that appears whole, or not at all. Returns `false` if there is one of this
    /// name, which stays.
    pub(crate) fn create(
        &self,
        path: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<bool, StoreError> {
        match self {
            Storage::Folder(root) => folder::write_new(root, path, write),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.create(path, write),
        }
        .map_err(StoreError::file(path))
    }

    /// The tables' files directly in a folder, in order; none if there is no such folder.
    pub(crate) fn files(&self, folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
        match self {
            Storage::Folder(_) => folder::files(folder),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.files(folder).map_err(StoreError::file(folder)),
        }
    }

    /// The partitions in a table's folder, in order.
    pub(crate) fn partitions(&self, table: &Path) -> Result<Vec<Partition>, StoreError> {
        let mut found = match self {
            Storage::Folder(_) => folder::partitions(table)?,
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.partitions(table).map_err(StoreError::file(table))?,
        };
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Whether there is a table's file anywhere below a folder: an engine refuses to read a table
    /// without any.
    pub(crate) fn has_files(&self, folder: &Path) -> Result<bool, StoreError> {
        match self {
            Storage::Folder(_) => Ok(folder::has_files(folder)),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.has_files(folder).map_err(StoreError::file(folder)),
        }
    }

    /// Removes files.
    pub(crate) fn remove(&self, paths: &[PathBuf]) -> Result<(), StoreError> {
        match self {
            Storage::Folder(_) => {
                let mut paths = paths.iter();
                paths.try_for_each(|path| fs::remove_file(path).map_err(StoreError::file(path)))
            }
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.remove(paths).map_err(StoreError::file(self.root())),
        }
    }

    /// What DuckDB needs before it reads these files, as statements without credentials.
    pub(crate) fn duckdb(&self) -> Vec<String> {
        match self {
            Storage::Folder(_) => Vec::new(),
            #[cfg(feature = "s3")]
            Storage::Bucket(bucket) => bucket.duckdb(),
        }
    }
}

/// Whether a file is one of a table.
fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "parquet")
}

/// The value of a partition's key in the name of a folder.
fn value<'n>(name: &'n str, key: &str) -> Option<&'n str> {
    name.strip_prefix(key)?.strip_prefix('=')
}

/// The partition that a path below a table's folder is in.
#[cfg(feature = "s3")]
fn partition_of(path: &Path) -> Option<Partition> {
    let mut names = path.iter().map(|name| name.to_str());
    let mut next = |key| value(names.next()??, key).map(str::to_owned);
    let [date, hour, service] = PARTITIONS;
    Some(Partition {
        date: next(date)?,
        hour: next(hour)?,
        service: next(service)?,
    })
}

/// The scheme of a URL and what follows it; `None` for a path.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some((scheme, rest))
}

/// What is shown of a URL that is refused: users write passwords into URLs.
fn scheme_only(scheme: &str) -> PathBuf {
    PathBuf::from(format!("{scheme}://\u{2026}"))
}

/// The bucket and the prefix, without slashes around it. Only characters are accepted that neither
/// engines nor URLs take for anything else.
fn bucket_and_prefix(rest: &str) -> Option<(&str, &str)> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = |name: &str| {
        let is_dots = name.chars().all(|c| c == '.');
        // Engines take `KEY=VALUE` for a partition.
        !is_dots && name.chars().all(is_plain)
    };
    let is_bucket = (3..=63).contains(&bucket.len()) && bucket.chars().all(is_plain) && !bucket.starts_with('.');
    let is_prefix = prefix.is_empty() || prefix.split('/').all(is_name);
    (is_bucket && is_prefix).then_some((bucket, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_bucket_and_a_prefix() {
        for (url, wanted) in [
            ("bucket", Some(("bucket", ""))),
            ("bucket/", Some(("bucket", ""))),
            ("my.bucket-1/a/b_c", Some(("my.bucket-1", "a/b_c"))),
            ("bucket/a/", Some(("bucket", "a"))),
            ("", None),
            ("/a", None),
            ("ab", None),
            ("bucket//a", None),
            ("bucket/a//b", None),
            ("bucket/a//", None),
            ("bucket/../a", None),
            ("bucket/a*", None),
            ("bucket/a=b", None),
            ("bucket/a b", None),
            ("bucket/it's", None),
            ("key:secret@bucket/a", None),
            ("bucket?x=y", None),
        ] {
            assert_eq!(bucket_and_prefix(url), wanted, "{url}");
        }
    }

    #[test]
    fn a_path_is_no_url() {
        for (text, wanted) in [
            ("s3://a/b", Some(("s3", "a/b"))),
            ("gs://a", Some(("gs", "a"))),
            ("fleet", None),
            ("./s3://a", None),
            ("/x/s3://a", None),
            ("s3:/a", None),
            ("://a", None),
        ] {
            assert_eq!(scheme(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_url_makes_no_folder() {
        let refused = |url: &str| Storage::of(url.as_ref()).map(|_| ()).unwrap_err();
        for (url, what) in [
            ("gs://bucket/fleet", "other than s3://"),
            ("s3://", "not s3://BUCKET/PREFIX"),
            #[cfg(not(feature = "s3"))]
            ("s3://bucket/fleet", "without S3"),
        ] {
            assert!(refused(url).to_string().contains(what), "{url}: {}", refused(url));
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn keys_have_a_partition() {
        let of = |path: &str| partition_of(path.as_ref()).map(|partition| partition.path());
        let path = "date=2026-11-23/hour=16/service=web";
        assert_eq!(of(&format!("{path}/1.parquet")), Some(path.into()));
        assert_eq!(of("date=2026-11-23/hour=16/1.parquet"), None);
        assert_eq!(of("1.parquet"), None);
    }
}
