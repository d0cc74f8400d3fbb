//! Merges the files of partitions, and removes old partitions.
//!
//! A partition's files are replaced by exchanging its folder with another, in one step: a reader
//! sees the files before or after it, never both. Writers continue meanwhile. Whatever else is in
//! the folder that was replaced moves to the new one; a compaction that was killed is completed by
//! the next.
//!
//! Objects in a bucket cannot be exchanged for others in one step: none are merged. Old ones are
//! removed one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::add::COMPACTED;
use crate::columns::{Columns, Sorted};
use crate::error::{LocationError, StoreError};
use crate::files::{GROUP_ROWS, TableReader};
use crate::id::Id;
use crate::partition::Partition;
use crate::place::Store;
use crate::rows::{Cell, Rows};
use crate::selection::each;
use crate::tables::{self, Table};

/// Where folders are that replace others, and those that they replaced.
const WORK: &str = ".compacting";
/// What the names of folders that are being removed begin with.
const REMOVED: &str = "removed-";

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Partitions of tables whose files were merged.
    pub partitions: u64,
    /// Files before.
    pub files: u64,
    /// Their bytes.
    pub bytes_before: u64,
    /// Bytes of the merged files.
    pub bytes_after: u64,
    /// Rows that were there twice and are no longer.
    pub duplicates: u64,
}

impl Store {
    /// Merges the files of each partition of each table into one. Readers and writers of this
    /// machine's file system need not stop.
    ///
    /// # Errors
    ///
    /// If another compaction runs, a file is damaged, or the store cannot be written, and for every
    /// store in a bucket. All rows remain in any case.
    pub fn compact(&self) -> Result<Compacted, StoreError> {
        if self.is_remote() {
            return Err(StoreError::Location(self.folder().to_owned(), LocationError::NoMerging));
        }
        let _lock = self.lock()?;
        self.recover()?;
        let mut compacted = Compacted::default();
        for table in tables::ALL {
            for partition in self.partitions(table)? {
                self.compact_partition(table, &partition, &mut compacted)?;
            }
        }
        Ok(compacted)
    }

    /// Removes the partitions before an hour, as [`Partition`] writes it; returns how many. A
    /// reader sees a partition of a table as a whole or not at all; in a bucket, it may see a part.
    ///
    /// # Errors
    ///
    /// If a compaction runs, or a folder cannot be removed.
    pub fn remove_before(&self, date: &str, hour: &str) -> Result<u64, StoreError> {
        // Any number of programs may remove the same objects.
        let _lock = (!self.is_remote()).then(|| self.lock()).transpose()?;
        if !self.is_remote() {
            self.recover()?;
        }
        let mut removed = BTreeSet::new();
        // Samples first: none is ever left without its stack.
        for table in tables::ALL.iter().rev() {
            for partition in self.partitions(table)? {
                if (partition.date.as_str(), partition.hour.as_str()) >= (date, hour) {
                    continue;
                }
                self.remove_partition(table, &partition)?;
                removed.insert(partition);
            }
        }
        Ok(removed.len() as u64)
    }

    fn remove_partition(&self, table: &'static Table, partition: &Partition) -> Result<(), StoreError> {
        let folder = self.table(table).join(partition.path());
        if self.is_remote() {
            return self.storage().remove(&self.storage().files(&folder)?);
        }
        let away = self.work().join(format!("{REMOVED}{}", work_name(table, partition)));
        fs::rename(&folder, &away).map_err(StoreError::file(&folder))?;
        fs::remove_dir_all(&away).map_err(StoreError::file(&away))?;
        remove_empty(&folder, &self.table(table));
        Ok(())
    }

    fn work(&self) -> PathBuf {
        self.folder().join(WORK)
    }

    /// Lets one compaction run at a time.
    fn lock(&self) -> Result<File, StoreError> {
        let work = self.work();
        fs::create_dir_all(&work).map_err(StoreError::file(&work))?;
        let path = work.join("lock");
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = options.open(&path).map_err(StoreError::file(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::Busy(self.folder().to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(StoreError::File(path, error)),
        }
    }

    /// Completes what an earlier compaction began.
    fn recover(&self) -> Result<(), StoreError> {
        let work = self.work();
        for entry in fs::read_dir(&work).map_err(StoreError::file(&work))? {
            let path = entry.map_err(StoreError::file(&work))?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default()
                .to_owned();
            if !path.is_dir() {
                continue;
            }
            if name.starts_with(REMOVED) {
                fs::remove_dir_all(&path).map_err(StoreError::file(&path))?;
            } else if let Some((table, partition)) = of_work_name(&name) {
                self.clear(table, &partition, &path)?;
            }
        }
        Ok(())
    }

    /// Empties the folder that is not the partition's: a file whose parts the partition has goes,
    /// any other moves there. Before the exchange that is the merged file, after it the files that
    /// were merged; files that writers added meanwhile move.
    fn clear(&self, table: &'static Table, partition: &Partition, work: &Path) -> Result<(), StoreError> {
        let folder = self.table(table).join(partition.path());
        let mut present = BTreeSet::new();
        for path in self.storage().files(&folder)? {
            present.extend(parts(&path, table)?);
        }
        for path in self.storage().files(work)? {
            let parts = parts(&path, table)?;
            if parts.is_subset(&present) {
                fs::remove_file(&path).map_err(StoreError::file(&path))?;
                continue;
            }
            fs::create_dir_all(&folder).map_err(StoreError::file(&folder))?;
            let to = folder.join(path.file_name().unwrap_or_default());
            renameat_with(CWD, &path, CWD, &to, RenameFlags::NOREPLACE)
                .map_err(|error| StoreError::File(to, error.into()))?;
        }
        fs::remove_dir(work).map_err(StoreError::file(work))
    }

    fn compact_partition(
        &self,
        table: &'static Table,
        partition: &Partition,
        compacted: &mut Compacted,
    ) -> Result<(), StoreError> {
        let files = self.files(table, partition)?;
        if files.len() < 2 {
            return Ok(());
        }
        let inputs = Inputs::of(table, &files)?;
        let mut name = Id::new("compact");
        for part in &inputs.parts {
            name = name.text(part);
        }
        let work = self.work().join(work_name(table, partition));
        let merged = work.join(format!("{COMPACTED}{:016x}.parquet", name.finish()));
        let mut bytes = 0;
        for path in &files {
            bytes += fs::metadata(path).map_err(StoreError::file(path))?.len();
        }
        let mut duplicates = inputs.duplicates;
        let written = self.write_table(&merged, table, &inputs.parts, |write| {
            duplicates += merge(table, &inputs.files, write)?;
            Ok(())
        })?;
        let folder = self.table(table).join(partition.path());
        renameat_with(CWD, &work, CWD, &folder, RenameFlags::EXCHANGE)
            .map_err(|error| StoreError::File(folder, error.into()))?;
        self.clear(table, partition, &work)?;
        compacted.partitions += 1;
        compacted.files += files.len() as u64;
        compacted.bytes_before += bytes;
        compacted.bytes_after += written.unwrap_or(0);
        compacted.duplicates += duplicates;
        Ok(())
    }
}

/// The names of what a file contains; its own if it does not say.
fn parts(path: &Path, table: &'static Table) -> Result<BTreeSet<String>, StoreError> {
    let reader = TableReader::open(path, table)?;
    let parts: BTreeSet<String> = reader.parts().map(str::to_owned).collect();
    let own = || path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok(if parts.is_empty() {
        own().into_iter().collect()
    } else {
        parts
    })
}

/// The files of a partition that are merged.
struct Inputs {
    files: Vec<PathBuf>,
    parts: BTreeSet<String>,
    /// Rows of files that another one contains.
    duplicates: u64,
}

impl Inputs {
    /// Samples are sorted by host and time, so that rows that are alike are neighbours.
    fn of(table: &'static Table, paths: &[PathBuf]) -> Result<Inputs, StoreError> {
        let mut inputs = Inputs {
            files: Vec::new(),
            parts: BTreeSet::new(),
            duplicates: 0,
        };
        let mut found = Vec::new();
        for path in paths {
            found.push((parts(path, table)?, path));
        }
        // What contains most comes first; the rest adds to it.
        found.sort_by_key(|(parts, _)| std::cmp::Reverse(parts.len()));
        let mut sorted = Vec::new();
        for (parts, path) in found {
            if parts.is_subset(&inputs.parts) {
                inputs.duplicates += TableReader::open(path, table)?.rows();
                continue;
            }
            if let Some(part) = parts.intersection(&inputs.parts).next() {
                return Err(StoreError::Shape(
                    path.clone(),
                    format!("{part} is in another file of the partition too"),
                ));
            }
            inputs.parts.extend(parts);
            sorted.push((first(table, path)?, path.clone()));
        }
        sorted.sort();
        inputs.files = sorted.into_iter().map(|(_, path)| path).collect();
        Ok(inputs)
    }
}

/// The host and the time of a file's first sample.
fn first(table: &'static Table, path: &Path) -> Result<(String, i64), StoreError> {
    if table.name != tables::SAMPLES.name {
        return Ok(Default::default());
    }
    let rows = TableReader::open(path, table)?.next_group()?;
    Ok(rows
        .filter(|rows| !rows.is_empty())
        .map_or_else(Default::default, |rows| {
            let column = |name: &str| table.column(name).unwrap_or(0);
            (rows.text(column("host"), 0), rows.long(column("time"), 0))
        }))
}

/// Passes all rows on, in groups; of equal ones, except samples, only the first. Returns how many
/// were left out.
fn merge(
    table: &'static Table,
    files: &[PathBuf],
    write: &mut dyn FnMut(&dyn Columns) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    if table.name == tables::NAMED_STACKS.name {
        return merge_names(files, write);
    }
    let is_distinct = table.name != tables::SAMPLES.name && table.name != tables::RECORDINGS.name;
    let mut seen: FxHashSet<[u8; 16]> = FxHashSet::default();
    let mut pending = Rows::new(table);
    let mut left_out = 0;
    for path in files {
        let mut reader = TableReader::open(path, table)?;
        while let Some(rows) = reader.next_group()? {
            for row in 0..rows.len() {
                if is_distinct && !seen.insert(rows.fingerprint(row)) {
                    left_out += 1;
                    continue;
                }
                pending.push_from(&rows, row);
                if pending.len() == GROUP_ROWS {
                    let group = std::mem::replace(&mut pending, Rows::new(table));
                    write(&Sorted::of(&group))?;
                }
            }
        }
    }
    if !pending.is_empty() {
        write(&Sorted::of(&pending))?;
    }
    Ok(left_out)
}

/// Of the rows of a stack, only the one that counts is passed on.
fn merge_names(
    files: &[PathBuf],
    write: &mut dyn FnMut(&dyn Columns) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let mut best: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    let mut all = 0;
    for path in files {
        each(TableReader::open(path, &tables::NAMED_STACKS)?, |rows, row| {
            let (stack, named, quality) = (rows.long(0, row), rows.long(1, row), rows.long(2, row));
            let best = best.entry(stack).or_insert((quality, named));
            *best = (quality, named).max(*best);
            all += 1;
        })?;
    }
    let mut merged = Rows::new(&tables::NAMED_STACKS);
    for (stack, (quality, named)) in &best {
        merged.push([Cell::Long(*stack), Cell::Long(*named), Cell::Long(*quality)]);
    }
    write(&merged)?;
    Ok(all - best.len() as u64)
}

/// The name of a folder that replaces a partition's.
fn work_name(table: &Table, partition: &Partition) -> String {
    let Partition { date, hour, service } = partition;
    format!("{}~{date}~{hour}~{service}", table.name)
}

fn of_work_name(name: &str) -> Option<(&'static Table, Partition)> {
    let mut parts = name.split('~');
    let table = parts.next()?;
    let table = tables::ALL.into_iter().find(|known| known.name == table)?;
    let mut next = || parts.next().map(str::to_owned);
    let (date, hour, service) = (next()?, next()?, next()?);
    Some((table, Partition { date, hour, service }))
}

/// Removes the empty folders around a removed one.
fn remove_empty(folder: &Path, root: &Path) {
    let around = folder.ancestors().skip(1).take_while(|path| *path != root);
    for path in around {
        // One that is not empty stays, and so do those around it.
        if fs::remove_dir(path).is_err() {
            return;
        }
    }
}
