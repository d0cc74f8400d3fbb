//! Adds recordings to a store.

use std::collections::BTreeSet;
use std::path::Path;

use backtrail_profile::{Options, Profile};
use backtrail_recording::{Measured, Reader};

use crate::columns::{Columns, Part, Sorted};
use crate::description::Description;
use crate::error::StoreError;
use crate::files::{GROUP_ROWS, TableWriter, system_error};
use crate::intake::Intake;
use crate::partition::Partition;
use crate::place::Store;
use crate::rows::Tables;
use crate::tables::{self, Table};

/// What was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Samples of the recording.
    pub samples: u64,
    /// Files that were written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Partitions of the recording.
    pub partitions: u64,
    /// Whether all was there already.
    pub was_there: bool,
    /// Remarks about the recording's names, and about what was not added, one sentence each.
    pub notes: Vec<String>,
}

impl Store {
    /// Adds a recording. One that the store has already changes nothing; one of which an earlier
    /// attempt added a part is completed.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read, or the store not be written. Then the store has a part of
    /// the recording, each of whose samples is whole.
    pub fn add(&self, reader: &mut Reader, description: &Description, options: Options) -> Result<Added, StoreError> {
        let options = Options {
            process_root: false,
            thread_root: false,
            mark_incomplete: true,
            keep_samples: true,
            max_frames: usize::MAX,
            // A store has samples of time on the CPU.
            measured: Some(Measured::Cpu),
            // Of several events, that of a clock.
            event: reader.origin().clock_event().map(str::to_owned).or(options.event),
            ..options
        };
        let has_waits = reader.origin().measured != Measured::Cpu;
        let profile = Profile::of_recording(reader, options).map_err(StoreError::Recording)?;
        let report = profile.finish(reader.stream_bytes());
        let intake = Intake::of(&report, reader.origin(), description)?;
        let mut added = Added {
            samples: report.samples().len() as u64,
            partitions: intake.partitions() as u64,
            notes: report.notes().to_vec(),
            ..Added::default()
        };
        if has_waits {
            let note = "waits are not added: a store has samples of time on the CPU";
            added.notes.push(note.to_owned());
        }
        let name = format!("{:016x}", intake.recording());
        intake
            .for_each(|partition, tables, samples| self.add_partition(partition, tables, samples, &name, &mut added))?;
        added.was_there = added.files == 0 && added.partitions > 0;
        Ok(added)
    }

    /// Writes the tables in their order, so that a sample comes after all that it refers to;
    /// `samples`, if they are not among the tables.
    pub(crate) fn add_partition(
        &self,
        partition: &Partition,
        tables: &Tables,
        samples: Option<&dyn Columns>,
        name: &str,
        added: &mut Added,
    ) -> Result<(), StoreError> {
        // Labels are written before recordings: a recording without any was added without labels.
        let is_recorded = self.has_part(&tables::RECORDINGS, partition, name)?;
        for table in tables::ALL {
            let unsorted = tables.get(table.name);
            let samples = samples.filter(|samples| samples.table().name == table.name);
            let is_done = is_recorded && table.name == tables::LABELS.name;
            if (unsorted.is_none() && samples.is_none()) || is_done || self.has_part(table, partition, name)? {
                continue;
            }
            let sorted = unsorted.map(Sorted::of);
            let sorted = sorted.as_ref().map(|sorted| sorted as &dyn Columns);
            let Some(rows) = sorted.or(samples) else { continue };
            if let Some(bytes) = self.write_part(partition, name, rows)? {
                added.files += 1;
                added.bytes += bytes;
            }
        }
        Ok(())
    }

    /// Whether a file of the partition contains what has this name.
    pub(crate) fn has_part(
        &self,
        table: &'static Table,
        partition: &Partition,
        name: &str,
    ) -> Result<bool, StoreError> {
        for path in self.files(table, partition)? {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if stem == name {
                return Ok(true);
            }
            if stem.starts_with(COMPACTED) && self.reader(&path, table)?.parts().any(|part| part == name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes rows as the file of this name, and returns its size; `None` if somebody else has just
    /// done so.
    fn write_part(&self, partition: &Partition, name: &str, rows: &dyn Columns) -> Result<Option<u64>, StoreError> {
        let table = rows.table();
        let path = self.table(table).join(partition.path()).join(format!("{name}.parquet"));
        self.write_table(&path, table, &BTreeSet::from([name.to_owned()]), |write| {
            for start in (0..rows.count()).step_by(GROUP_ROWS) {
                let group = start..rows.count().min(start + GROUP_ROWS);
                write(&Part {
                    whole: rows,
                    rows: group,
                })?;
            }
            Ok(())
        })
    }

    /// Writes a table's file from the groups of rows that `fill` passes on, and returns its size;
    /// `None` if there is one already.
    pub(crate) fn write_table(
        &self,
        path: &Path,
        table: &'static Table,
        parts: &BTreeSet<String>,
        fill: impl FnOnce(&mut dyn FnMut(&dyn Columns) -> Result<(), StoreError>) -> Result<(), StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let mut bytes = 0;
        // Errors of reading must not be taken for those of writing.
        let mut failed = None;
        let written = self.write(path, |file| {
            let mut writer = TableWriter::new(&mut *file, table);
            let mut write = |rows: &dyn Columns| {
                let written = writer.write_columns(rows).map_err(system_error);
                written.map_err(StoreError::file(path))
            };
            if let Err(error) = fill(&mut write) {
                failed = Some(error);
                return Err(std::io::ErrorKind::Other.into());
            }
            writer.finish(parts).map_err(system_error)?;
            bytes = file.metadata()?.len();
            Ok(())
        });
        match (failed, written) {
            (Some(error), _) => Err(error),
            (None, written) => Ok(written?.then_some(bytes)),
        }
    }
}

/// What the names of compacted files begin with; no recording's name does.
pub(crate) const COMPACTED: &str = "compact-";
