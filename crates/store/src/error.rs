//! Why a store cannot be read or written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use backtrail_recording::ReadError;
use parquet::errors::ParquetError;

/// Why a store cannot be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// A file or a folder.
    File(PathBuf, io::Error),
    /// The contents of a file.
    Table(PathBuf, ParquetError),
    /// The file's contents are not what the table has.
    Shape(PathBuf, String),
    /// The file is compressed in a way that is not read; the name of that compression.
    Compression(PathBuf, String),
    /// The store's schema document.
    Schema(PathBuf, SchemaError),
    /// The recording cannot be read.
    Recording(ReadError),
    /// The times of a recording are beyond what a table can have, or too far apart.
    Times(String),
    /// Another compaction holds the store.
    Busy(PathBuf),
    /// The store cannot be where it is, or not be used there as asked.
    Location(PathBuf, LocationError),
}

/// Why a store cannot be where it is, or not be used there as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocationError {
    /// The URL of a bucket, which this program is built without (feature `s3`).
    WithoutS3,
    /// A URL other than `s3://`.
    Scheme,
    /// A URL of no bucket and prefix.
    Malformed,
    /// The server replaces objects that are to be kept: it ignores `If-None-Match`.
    Replaces,
    /// Objects cannot be exchanged for others in one step, so none can be merged.
    NoMerging,
}

/// What is wrong with a schema document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaError {
    /// It is not one.
    Damaged,
    /// It is of a later version than this program knows.
    Later(u64),
    /// The folder is not a store.
    Missing,
}

impl StoreError {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_owned();
        move |error| StoreError::File(path, error)
    }

    pub(crate) fn table(path: &Path) -> impl FnOnce(ParquetError) -> StoreError {
        let path = path.to_owned();
        move |error| StoreError::Table(path, error)
    }

    /// The file or folder that it is about, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            StoreError::File(path, _)
            | StoreError::Table(path, _)
            | StoreError::Shape(path, _)
            | StoreError::Compression(path, _)
            | StoreError::Schema(path, _)
            | StoreError::Busy(path)
            | StoreError::Location(path, _) => Some(path),
            StoreError::Recording(_) | StoreError::Times(_) => None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::File(_, error) => error.fmt(f),
            // A failure to write reaches us through the library.
            StoreError::Table(_, ParquetError::External(error)) => error.fmt(f),
            StoreError::Table(_, error) => write!(f, "damaged: {error}"),
            StoreError::Shape(_, what) | StoreError::Times(what) => f.write_str(what),
            StoreError::Compression(_, name) => {
                write!(
                    f,
                    "compressed with {name}; Backtrail reads files with gzip or no compression"
                )
            }
            StoreError::Schema(_, SchemaError::Damaged) => f.write_str("damaged schema document"),
            StoreError::Schema(_, SchemaError::Later(version)) => write!(
                f,
                "the store is of version {version}, this program reads up to {}",
                crate::tables::VERSION
            ),
            StoreError::Schema(_, SchemaError::Missing) => f.write_str("not a store"),
            StoreError::Recording(error) => error.fmt(f),
            StoreError::Busy(_) => f.write_str("another program is compacting the store"),
            StoreError::Location(_, what) => what.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::File(_, error) => Some(error),
            StoreError::Table(_, error) => Some(error),
            StoreError::Recording(error) => Some(error),
            StoreError::Location(_, error) => Some(error),
            StoreError::Shape(..)
            | StoreError::Compression(..)
            | StoreError::Schema(..)
            | StoreError::Times(_)
            | StoreError::Busy(_) => None,
        }
    }
}

impl fmt::Display for LocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocationError::WithoutS3 => "this program is built without S3 storage",
            LocationError::Scheme => {
                "a store is a folder or s3://BUCKET/PREFIX; URLs other than s3:// are not supported"
            }
            LocationError::Malformed => "not s3://BUCKET/PREFIX, of letters, digits, '-', '_' and '.'",
            LocationError::Replaces => {
                "the server ignores If-None-Match, so that writers would replace each other's files"
            }
            LocationError::NoMerging => {
                "files in a bucket cannot be merged: no reader may see rows twice, or miss them"
            }
        })
    }
}

impl std::error::Error for LocationError {}
