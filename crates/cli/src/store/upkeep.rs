//! `backtrail store compact` and `check`: keep a store in order.

use std::path::PathBuf;

use backtrail_store::Store;
use clap::{Args, ValueHint};

use super::query::time;
use crate::counted::Counted;
use crate::error::{Failure, Status, say, shown};
use crate::output;

/// Merge the files of each partition, and remove old partitions.
///
/// Readers and writers may continue. A compaction that was killed is completed by the next.
#[derive(Args)]
pub(crate) struct Compact {
    #[cfg_attr(not(feature = "s3"), doc = "Directory of the store.")]
    #[cfg_attr(
        feature = "s3",
        doc = "Directory of the store, or s3://BUCKET/PREFIX, which needs --remove-before: nothing is merged there."
    )]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// First remove everything before the hour of this time: '2026-11-01', or '30d' ago.
    #[arg(long, value_name = "TIME", value_parser = time)]
    remove_before: Option<i64>,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

/// Check a store: read every file, follow every reference, compute every id again.
#[derive(Args)]
pub(crate) struct Check {
    #[cfg_attr(not(feature = "s3"), doc = "Directory of the store.")]
    #[cfg_attr(feature = "s3", doc = "Directory of the store, or s3://BUCKET/PREFIX.")]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn compact(arguments: &Compact) -> Result<Status, Failure> {
    let failed = |error| super::failed(&arguments.store, &error);
    let store = Store::open(&arguments.store).map_err(failed)?;
    if let Some(time) = arguments.remove_before {
        let time = jiff::Timestamp::from_microsecond(time).map_err(Failure::new)?;
        let (date, hour) = (time.strftime("%Y-%m-%d").to_string(), time.strftime("%H").to_string());
        let removed = store.remove_before(&date, &hour).map_err(failed)?;
        if !arguments.quiet {
            say!("backtrail: removed {removed} partitions before {date} {hour}:00 UTC");
        }
    }
    if store.is_remote() && arguments.remove_before.is_some() {
        return Ok(Status::Done);
    }
    let compacted = store.compact().map_err(failed)?;
    if !arguments.quiet {
        say!(
            "backtrail: merged {} files, {} KiB, into {} files, {} KiB; left out {} rows that were there twice",
            compacted.files,
            compacted.bytes_before.div_ceil(1024),
            compacted.partitions,
            compacted.bytes_after.div_ceil(1024),
            compacted.duplicates
        );
    }
    Ok(Status::Done)
}

pub(super) fn check(arguments: &Check) -> Result<Status, Failure> {
    let failed = |error| super::failed(&arguments.store, &error);
    let store = Store::open(&arguments.store).map_err(failed)?;
    let checked = store.check().map_err(failed)?;
    let findings = checked.findings.iter();
    if arguments.json {
        let findings = findings
            .map(|finding| serde_json::json!({"file": finding.file.display().to_string(), "what": finding.what}));
        let document = serde_json::json!({
            "files": checked.files,
            "samples": checked.samples,
            "crashes": checked.crashes,
            "partitions": checked.partitions,
            "first_day": checked.days.as_ref().map(|(first, _)| first),
            "last_day": checked.days.as_ref().map(|(_, last)| last),
            "findings": findings.collect::<Vec<_>>(),
        });
        output::to_stdout(|out| writeln!(out, "{document}"))?;
    } else {
        let days = checked.days.as_ref();
        let days = days.map_or(String::new(), |(first, last)| format!(", {first} to {last}"));
        output::to_stdout(|out| {
            for finding in findings {
                writeln!(
                    out,
                    "{}: {}",
                    shown(&finding.file),
                    crate::error::one_line(&finding.what)
                )?;
            }
            writeln!(
                out,
                "{} in {}, {}, {}{days}; {}",
                Counted(checked.samples, "sample"),
                Counted(checked.partitions, "partition"),
                Counted(checked.crashes, "crash"),
                Counted(checked.files, "file"),
                Counted(checked.findings.len() as u64, "finding")
            )
        })?;
    }
    Ok(if checked.findings.is_empty() {
        Status::Done
    } else {
        Status::Found
    })
}
