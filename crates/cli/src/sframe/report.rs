//! The report of a run over many files.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::added::Added;
use super::build::{Summary, percent};
use crate::error::shown;

/// What became of a file.
pub(super) enum Outcome {
    /// It has a new table.
    Added { before: u64, after: u64, added: Box<Added> },
    /// It already had exactly this table.
    Unchanged,
    /// It is not a program or library, and was not named.
    Left(&'static str),
    /// It cannot have a table, because of this property.
    Refused(String),
    /// It could not be read or written.
    Failed(String),
}

/// How to print the report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    None,
}

/// The outcomes, counted.
#[derive(Default)]
pub(super) struct Report {
    files: usize,
    added: u64,
    /// Of these, files whose linker's table was replaced.
    replaced: u64,
    before: u64,
    after: u64,
    tables: Summary,
    /// Pieces of code without rows and their bytes, by reason.
    skipped: BTreeMap<&'static str, (u64, u64)>,
    unchanged: u64,
    /// Files that are not programs, by kind.
    left: BTreeMap<&'static str, u64>,
    /// Files without a table, by reason.
    refused: BTreeMap<String, Vec<PathBuf>>,
    /// Files that could not be read or written, and named files without a table.
    pub(super) failed: Vec<(PathBuf, String)>,
    time: Duration,
}

impl Report {
    /// Counts the outcomes, each with the file and whether the user named it.
    pub(super) fn of<'o>(
        outcomes: impl Iterator<Item = (&'o Path, bool, &'o Outcome)>,
        unreadable: &[(PathBuf, String)],
        time: Duration,
    ) -> Report {
        let mut report = Report {
            failed: unreadable.to_vec(),
            time,
            ..Report::default()
        };
        for (path, named, outcome) in outcomes {
            report.files += 1;
            report.count(path, named, outcome);
        }
        report
    }

    fn count(&mut self, path: &Path, named: bool, outcome: &Outcome) {
        let path = || path.to_owned();
        match outcome {
            Outcome::Added { before, after, added } => {
                self.added += 1;
                self.replaced += u64::from(added.replaced);
                self.before += before;
                self.after += after;
                self.tables.merge(&added.summary);
                for (reason, (pieces, bytes)) in added.parts.iter().flat_map(|(_, built)| built.skipped_by_reason()) {
                    let skipped = self.skipped.entry(reason).or_default();
                    *skipped = (skipped.0 + pieces, skipped.1.saturating_add(bytes));
                }
            }
            Outcome::Unchanged => self.unchanged += 1,
            Outcome::Left(kind) => *self.left.entry(kind).or_default() += 1,
            Outcome::Refused(why) if named => self.failed.push((path(), why.clone())),
            Outcome::Refused(why) => self.refused.entry(kind_of(why)).or_default().push(path()),
            Outcome::Failed(why) => self.failed.push((path(), why.clone())),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let refused = self.refused.iter().map(|(why, files)| {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            json!({"reason": why, "files": files})
        });
        let failed = self.failed.iter();
        let failed = failed.map(|(file, why)| json!({"file": file.display().to_string(), "why": why}));
        let skipped = self.skipped.iter();
        let skipped =
            skipped.map(|(reason, (pieces, bytes))| json!({"reason": reason, "pieces": pieces, "bytes": bytes}));
        json!({
            "files": self.files,
            "added": self.added,
            "replaced": self.replaced,
            "unchanged": self.unchanged,
            "left": self.left,
            "refused": refused.collect::<Vec<Value>>(),
            "failed": failed.collect::<Vec<Value>>(),
            "bytes_before": self.before,
            "bytes_after": self.after,
            "table_bytes": self.tables.bytes,
            "functions": self.tables.functions,
            "covered_bytes": self.tables.covered,
            "uncovered_bytes": self.tables.uncovered,
            "skipped": skipped.collect::<Vec<Value>>(),
            "seconds": self.time.as_secs_f64(),
        })
    }

    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut line = |count: u64, what: &str| writeln!(out, "{count:>7} {what}");
        line(self.added, "got a table")?;
        if self.replaced > 0 {
            line(self.replaced, "  in place of the linker's")?;
        }
        if self.unchanged > 0 {
            line(self.unchanged, "had this table already")?;
        }
        for (kind, count) in &self.left {
            line(*count, &format!("left alone: {kind}"))?;
        }
        for (why, files) in &self.refused {
            let example = files.first().map(|file| shown(file)).unwrap_or_default();
            line(
                files.len() as u64,
                &format!("without a table: {why}, such as {example}"),
            )?;
        }
        if !self.failed.is_empty() {
            line(self.failed.len() as u64, "failed")?;
        }
        let (files, seconds) = (self.files, self.time.as_secs_f64());
        writeln!(out, "{files:>7} files in {seconds:.1} s")?;
        if self.added > 0 {
            let (before, after, tables) = (self.before, self.after, self.tables);
            let described = tables.covered.saturating_add(tables.uncovered);
            writeln!(
                out,
                "bytes: {before} before, {after} after (+{}), {} of them tables; {} of the code covered",
                share(before, after),
                tables.bytes,
                percent(tables.covered, described)
            )?;
        }
        for (reason, (pieces, bytes)) in &self.skipped {
            writeln!(out, "  not covered: {reason}: {pieces} pieces of code, {bytes} bytes")?;
        }
        Ok(())
    }
}

/// By how much the files have grown.
fn share(before: u64, after: u64) -> String {
    let grown = after.saturating_sub(before) as f64;
    format!("{:.1} %", grown / before.max(1) as f64 * 100.0)
}

/// A reason without its offset and the number that it begins with, which differ from file to file.
fn kind_of(why: &str) -> String {
    let why = why.split(" at offset 0x").next().unwrap_or(why);
    match why.split_once(' ') {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("… {rest}"),
        _ => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_without_their_numbers() {
        let kinds = [
            ("512 bytes of data appended at offset 0x80", "… bytes of data appended"),
            (
                "32-bit ELF is not supported at offset 0x4",
                "32-bit ELF is not supported",
            ),
            (
                "ELF machine 8 is not supported at offset 0x12",
                "ELF machine 8 is not supported",
            ),
        ];
        for (why, kind) in kinds {
            assert_eq!(kind_of(why), kind);
        }
        assert_eq!(share(200, 201), "0.5 %");
    }
}
