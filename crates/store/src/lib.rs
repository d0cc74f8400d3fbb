//! A store of recordings: Parquet tables that existing engines read as they are.
//!
//! [`Store::add`] writes a recording's samples, stacks, frames, functions and modules into files of
//! their own, partitioned by day, hour and service. Ids are hashes of what they name, so any number
//! of writers share a folder without coordination, and adding a recording twice changes nothing.
//!
//! ```no_run
//! use backtrail_profile::Options;
//! use backtrail_recording::Reader;
//! use backtrail_store::{Description, Store};
//!
//! let store = Store::open_or_create("fleet".as_ref())?;
//! let mut reader = Reader::open("server.trace".as_ref())?;
//! let description = Description {
//!     service: "web".to_owned(),
//!     host: "a7".to_owned(),
//!     ..Description::default()
//! };
//! let added = store.add(&mut reader, &description, Options::default())?;
//! println!("{} samples in {} bytes", added.samples, added.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod add;
mod check;
mod columns;
mod compact;
mod crashes;
mod description;
mod error;
mod files;
mod frames;
mod id;
mod intake;
mod partition;
mod place;
mod query;
mod rows;
mod selection;
mod storage;
mod symbols;
pub mod tables;

pub use add::Added;
pub use check::{Checked, Finding};
pub use compact::Compacted;
pub use crashes::{AddedCrashes, CrashDescription};
pub use description::{Description, Resolution};
pub use error::{LocationError, SchemaError, StoreError};
pub use files::{TableReader, TableWriter, Value, read_result};
pub use partition::{Partition, is_service};
pub use place::{SCHEMA, Store};
pub use query::{By, Choice, Engine, QUESTIONS, Question};
pub use rows::{Cell, Lists, Rows, Texts, Values};
pub use selection::{CallRow, FrameRow, ModuleRow, Selection, StackRow};
pub use symbols::{ModuleNames, SymbolSources, Symbolized};
pub use tables::{ColumnShape, Kind, Table};
