//! `backtrail store`: recordings of many machines as tables, and questions to them.

mod add;
mod engine;
mod http;
mod push;
mod query;
mod samples;
mod symbols;
mod upkeep;

use std::io::ErrorKind;
use std::path::Path;

use backtrail_store::{LocationError, SchemaError, StoreError};
use clap::Subcommand;

use crate::error::{Failure, Status};

/// Keep recordings of many machines as Parquet tables, and query them.
#[derive(Subcommand)]
pub(crate) enum Command {
    Add(add::Add),
    Symbols(symbols::Symbols),
    Query(query::Query),
    Compact(upkeep::Compact),
    Check(upkeep::Check),
    Push(push::Push),
}

pub(crate) fn run(command: &Command) -> Result<Status, Failure> {
    match command {
        Command::Add(arguments) => add::run(arguments),
        Command::Symbols(arguments) => symbols::run(arguments),
        Command::Query(arguments) => query::run(arguments),
        Command::Compact(arguments) => upkeep::compact(arguments),
        Command::Check(arguments) => upkeep::check(arguments),
        Command::Push(arguments) => push::run(arguments),
    }
}

/// What the user can do about it. `store` is named where the error has no file.
fn failed(store: &Path, error: &StoreError) -> Failure {
    let failure = Failure::of(error.path().unwrap_or(store), error);
    match error {
        StoreError::Schema(_, SchemaError::Missing) => {
            failure.help("name a folder that `backtrail store add` has written, or for `add` a new or empty one")
        }
        StoreError::Schema(_, SchemaError::Later(_)) => failure.help("use a later version of backtrail"),
        StoreError::Compression(..) => {
            failure.help("write the file again with gzip; DuckDB's option is `COPY \u{2026} (COMPRESSION gzip)`")
        }
        StoreError::Location(_, LocationError::WithoutS3) => {
            failure.help("name a folder, or build the command with `cargo build -p backtrail --features s3`")
        }
        StoreError::Location(_, LocationError::Replaces) => failure.help("use a server that has conditional writes"),
        StoreError::Location(_, LocationError::NoMerging) => {
            failure.help("give --remove-before to remove old partitions; the others stay as they are")
        }
        StoreError::File(path, error) if error.kind() == ErrorKind::PermissionDenied && path.starts_with("s3:") => {
            failure.help("check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL")
        }
        StoreError::Table(..) | StoreError::Shape(..) => failure.help("`backtrail store check` lists damaged files"),
        _ => failure,
    }
}
