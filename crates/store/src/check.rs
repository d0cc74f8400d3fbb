//! Checks a store: every file is read, every reference followed, every id computed again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::StoreError;
use crate::id;
use crate::partition::Partition;
use crate::place::Store;
use crate::rows::Rows;
use crate::tables::{
    self, CRASHES, FRAMES, FUNCTIONS, NAMED_STACKS, RECORDINGS, SAMPLES, STACK_FUNCTIONS, STACKS, Table,
};

/// What is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// What a store has.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Files.
    pub files: u64,
    /// Samples.
    pub samples: u64,
    /// Crashes.
    pub crashes: u64,
    /// Partitions of samples.
    pub partitions: u64,
    /// The days of the first and the last partition.
    pub days: Option<(String, String)>,
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
}

impl Store {
    /// Reads all of the store.
    ///
    /// # Errors
    ///
    /// If a folder cannot be read; anything wrong in a file is a finding.
    pub fn check(&self) -> Result<Checked, StoreError> {
        let mut checked = Checked::default();
        let mut partitions = Vec::new();
        for table in tables::ALL {
            partitions.extend(self.partitions(table)?);
        }
        partitions.sort();
        partitions.dedup();
        for partition in &partitions {
            let mut part = Part::default();
            // What samples refer to is read before them.
            for table in tables::ALL {
                part.read_table(self, table, partition, &mut checked)?;
            }
            part.compare(&self.folder().join(SAMPLES.name).join(partition.path()), &mut checked);
        }
        if let (Some(first), Some(last)) = (partitions.first(), partitions.last()) {
            checked.days = Some((first.date.clone(), last.date.clone()));
        }
        Ok(checked)
    }
}

/// The ids of a partition.
#[derive(Default)]
struct Part {
    functions: FxHashSet<i64>,
    frames: FxHashSet<i64>,
    stacks: FxHashSet<i64>,
    crashes: FxHashSet<i64>,
    /// By recording: samples as the table of recordings says, and those counted.
    counts: BTreeMap<i64, (i64, i64)>,
}

impl Part {
    fn read_table(
        &mut self,
        store: &Store,
        table: &'static Table,
        partition: &Partition,
        checked: &mut Checked,
    ) -> Result<(), StoreError> {
        let files = store.files(table, partition)?;
        let mut parts: FxHashMap<String, PathBuf> = FxHashMap::default();
        let is_samples = table.name == SAMPLES.name;
        checked.partitions += u64::from(is_samples && !files.is_empty());
        for path in files {
            checked.files += 1;
            if let Err(error) = self.read_file(store, table, &path, &mut parts, checked) {
                checked.findings.push(Finding {
                    file: path,
                    what: error.to_string(),
                });
            }
        }
        Ok(())
    }

    fn read_file(
        &mut self,
        store: &Store,
        table: &'static Table,
        path: &Path,
        parts: &mut FxHashMap<String, PathBuf>,
        checked: &mut Checked,
    ) -> Result<(), StoreError> {
        let mut reader = store.reader(path, table)?;
        let mut whats = Whats::default();
        for part in reader.parts() {
            if let Some(other) = parts.insert(part.to_owned(), path.to_owned()) {
                whats.add(format!("its part {part} is also in {}", other.display()));
            }
        }
        while let Some(rows) = reader.next_group()? {
            for row in 0..rows.len() {
                self.row(&rows, row, checked, &mut whats);
            }
        }
        checked.findings.extend(whats.into_findings(path));
        Ok(())
    }

    fn row(&mut self, rows: &Rows, row: usize, checked: &mut Checked, whats: &mut Whats) {
        let long = |column: usize| rows.long(column, row);
        let table = rows.table.name;
        if table == FUNCTIONS.name {
            let wanted = id::function(&rows.text(1, row), &rows.text(2, row));
            whats.check(long(0) == wanted, "functions whose ids are not their hashes");
            self.functions.insert(long(0));
        } else if table == FRAMES.name {
            let function = long(5);
            let is_known = function == 0 || self.functions.contains(&function);
            whats.check(is_known, "frames of functions that are missing");
            self.frames.insert(long(0));
        } else if table == STACKS.name {
            let wanted = id::stack(rows.longs(1, row), &rows.text(2, row), long(3) != 0);
            whats.check(long(0) == wanted, "stacks whose ids are not their hashes");
            let is_known = rows.longs(1, row).iter().all(|frame| self.frames.contains(frame));
            whats.check(is_known, "stacks with frames that are missing");
            self.stacks.insert(long(0));
        } else if table == STACK_FUNCTIONS.name {
            let is_known = self.stacks.contains(&long(0)) && self.functions.contains(&long(1));
            whats.check(is_known, "functions of stacks that are missing");
        } else if table == NAMED_STACKS.name {
            let is_known = self.stacks.contains(&long(0)) && self.stacks.contains(&long(1));
            whats.check(is_known, "names of stacks that are missing");
        } else if table == RECORDINGS.name {
            self.counts.entry(long(0)).or_default().0 += long(11);
        } else if table == SAMPLES.name {
            whats.check(self.stacks.contains(&long(11)), "samples of stacks that are missing");
            whats.check(long(13) > 0, "samples that count for nothing");
            let count = long(13).max(0);
            let counted = &mut self.counts.entry(long(4)).or_default().1;
            *counted = counted.saturating_add(count);
            checked.samples = checked.samples.saturating_add(count as u64);
        } else if table == CRASHES.name {
            whats.check(self.stacks.contains(&long(9)), "crashes with stacks that are missing");
            whats.check(self.crashes.insert(long(3)), "crashes that are there twice");
            checked.crashes += 1;
        }
    }

    fn compare(&self, folder: &Path, checked: &mut Checked) {
        for (recording, (wanted, counted)) in &self.counts {
            if wanted != counted {
                checked.findings.push(Finding {
                    file: folder.to_owned(),
                    what: format!("recording {recording:016x} has {counted} of its {wanted} samples; add it again"),
                });
            }
        }
    }
}

/// What is wrong in one file, with how often.
#[derive(Default)]
struct Whats {
    counts: BTreeMap<&'static str, u64>,
    others: Vec<String>,
}

impl Whats {
    fn check(&mut self, holds: bool, what: &'static str) {
        if !holds {
            *self.counts.entry(what).or_default() += 1;
        }
    }

    fn add(&mut self, what: String) {
        self.others.push(what);
    }

    fn into_findings(self, path: &Path) -> impl Iterator<Item = Finding> {
        let counted = self.counts.into_iter().map(|(what, count)| format!("{count} {what}"));
        counted.chain(self.others).map(|what| Finding {
            file: path.to_owned(),
            what,
        })
    }
}
