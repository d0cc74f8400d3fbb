//! Backtrail for Rust programs: one crate, no logic of its own.
//!
//! | module | purpose | feature |
//! |---|---|---|
//! | [`sframe`] | SFrame unwind tables: read, look up, write | |
//! | [`unwind`] | one step up a stack, by tables or frame pointers | |
//! | [`cbf`] | compact backtraces | |
//! | [`trace`] | Common Trace Format | |
//! | [`recording`] | stacks in a trace | |
//! | [`ctype`] | compact C types | |
//! | [`elf`] | ELF files | |
//! | `local` | backtraces of the own process, crash reports | `local` (default) |
//! | `record`, `stacks` | sample programs; stacks of processes and cores | `record` |
//! | `profile`, `export` | names, flame graphs, tables; formats of other tools | `report` |
//! | `tracer` | typed events of the own process | `tracer` |
//!
//! The examples: `own_backtrace`, `crash_reports`, `look_up_a_row`, `compact_backtrace`,
//! `write_and_read_a_trace`, `record_and_report`.
//!
//! ```
//! # #[cfg(feature = "local")] {
//! backtrail_api::local::init()?;
//! println!("{}", backtrail_api::local::Backtrace::capture());
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

pub use backtrail_cbf as cbf;
pub use backtrail_ctype as ctype;
pub use backtrail_elf as elf;
#[cfg(feature = "report")]
pub use backtrail_export as export;
#[cfg(feature = "local")]
pub use backtrail_local as local;
#[cfg(feature = "report")]
pub use backtrail_profile as profile;
#[cfg(feature = "record")]
pub use backtrail_record as record;
pub use backtrail_recording as recording;
pub use backtrail_sframe as sframe;
#[cfg(feature = "record")]
pub use backtrail_stacks as stacks;
pub use backtrail_trace as trace;
#[cfg(feature = "tracer")]
pub use backtrail_tracer as tracer;
pub use backtrail_unwind as unwind;
