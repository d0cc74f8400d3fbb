//! The samples that a query chose, and all that they refer to, read from its results.

use std::path::Path;

use rustc_hash::FxHashMap;

use crate::error::StoreError;
use crate::files::TableReader;
use crate::id;
use crate::rows::Rows;
use crate::tables::{FRAMES, MODULES, RECORDINGS, STACKS};

/// A call at a place in code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRow {
    /// The function, or a marker's text.
    pub function: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line from 1; 0 if unknown.
    pub line: u32,
    /// Whether it was inlined.
    pub inlined: bool,
    /// Bytes from the function's start.
    pub from_start: Option<u64>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRow {
    /// file, kernel, generated or marker.
    pub kind: String,
    /// `modules.id`; 0 without a file.
    pub module: i64,
    /// The address, less the module's first.
    pub address: u64,
    /// Short name of the module.
    pub module_name: String,
    /// The calls there, innermost first.
    pub calls: Vec<CallRow>,
}

/// A file with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRow {
    /// Its path.
    pub path: String,
    /// Its build ID in hexadecimal.
    pub build_id: String,
    /// Its first address.
    pub first: u64,
    /// The address after its last.
    pub past: u64,
}

impl ModuleRow {
    /// Whether addresses in the module with this id count from where it was mapped.
    pub(crate) fn is_mapped(&self, id: i64) -> bool {
        id == id::mapped_module(&self.path, &self.build_id)
    }
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackRow {
    /// `frames.id`, the innermost first.
    pub frames: Vec<i64>,
    /// Why it ends.
    pub ending: String,
    /// Whether outer frames were read after the sample.
    pub late: bool,
}

/// What samples refer to, by id.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The stacks.
    pub stacks: FxHashMap<i64, StackRow>,
    /// The frames.
    pub frames: FxHashMap<i64, FrameRow>,
    /// The files.
    pub modules: FxHashMap<i64, ModuleRow>,
    /// The command, if there is only one.
    pub command: String,
    /// Nanoseconds between samples, if they are the same in all recordings.
    pub period: Option<u64>,
    /// Samples that were lost.
    pub lost: u64,
}

impl Selection {
    /// Reads the results of [`Choice::selection`](crate::Choice::selection) but that of the
    /// samples, in their order.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn read([stacks, frames, modules, recordings]: [&Path; 4]) -> Result<Selection, StoreError> {
        let mut selection = Selection::default();
        selection.read_stacks(TableReader::open(stacks, &STACKS)?)?;
        selection.read_frames([TableReader::open(frames, &FRAMES)?])?;
        selection.read_modules(TableReader::open(modules, &MODULES)?)?;
        let mut commands = Vec::new();
        let mut periods = Vec::new();
        each(TableReader::open(recordings, &RECORDINGS)?, |rows, row| {
            selection.lost = selection.lost.saturating_add(rows.long(12, row).max(0) as u64);
            commands.push(rows.text(5, row));
            periods.push(rows.long(9, row));
        })?;
        commands.sort();
        commands.dedup();
        periods.sort_unstable();
        periods.dedup();
        if let [command] = &commands[..] {
            selection.command.clone_from(command);
        }
        selection.period = match periods[..] {
            [period] => u64::try_from(period).ok().filter(|&period| period > 0),
            _ => None,
        };
        Ok(selection)
    }

    pub(crate) fn read_stacks(&mut self, stacks: TableReader) -> Result<(), StoreError> {
        each(stacks, |rows, row| self.add_stack(rows, row))
    }

    /// Reads all files with frames; the same frame may be in several.
    pub(crate) fn read_frames(&mut self, files: impl IntoIterator<Item = TableReader>) -> Result<(), StoreError> {
        let mut calls: FxHashMap<i64, Vec<(i64, CallRow)>> = FxHashMap::default();
        for frames in files {
            each(frames, |rows, row| self.add_frame(&mut calls, rows, row))?;
        }
        for (id, mut calls) in calls {
            calls.sort_by_key(|(depth, _)| *depth);
            calls.dedup_by_key(|(depth, _)| *depth);
            if let Some(frame) = self.frames.get_mut(&id) {
                frame.calls = calls.into_iter().map(|(_, call)| call).collect();
            }
        }
        Ok(())
    }

    pub(crate) fn read_modules(&mut self, modules: TableReader) -> Result<(), StoreError> {
        each(modules, |rows, row| self.add_module(rows, row))
    }

    fn add_stack(&mut self, rows: &Rows, row: usize) {
        let stack = StackRow {
            frames: rows.longs(1, row).to_vec(),
            ending: rows.text(2, row),
            late: rows.long(3, row) != 0,
        };
        self.stacks.insert(rows.long(0, row), stack);
    }

    fn add_frame(&mut self, calls: &mut FxHashMap<i64, Vec<(i64, CallRow)>>, rows: &Rows, row: usize) {
        let id = rows.long(0, row);
        self.frames.entry(id).or_insert_with(|| FrameRow {
            kind: rows.text(2, row),
            module: rows.long(3, row),
            address: rows.long(4, row) as u64,
            module_name: rows.text(7, row),
            calls: Vec::new(),
        });
        let call = CallRow {
            function: rows.text(6, row),
            file: rows.text(8, row),
            line: u32::try_from(rows.long(9, row)).unwrap_or(0),
            inlined: rows.long(10, row) != 0,
            from_start: u64::try_from(rows.long(11, row)).ok(),
        };
        calls.entry(id).or_default().push((rows.long(1, row), call));
    }

    /// Of a module with several rows, all addresses count; the kernel's are those of one recording.
    fn add_module(&mut self, rows: &Rows, row: usize) {
        let (first, past) = (rows.long(4, row) as u64, rows.long(5, row) as u64);
        let module = self.modules.entry(rows.long(0, row)).or_insert_with(|| ModuleRow {
            path: rows.text(2, row),
            build_id: rows.text(3, row),
            first,
            past,
        });
        if module.first == first {
            module.past = module.past.max(past);
        }
    }
}

/// Passes on all rows.
pub(crate) fn each(mut reader: TableReader, mut visit: impl FnMut(&Rows, usize)) -> Result<(), StoreError> {
    while let Some(rows) = reader.next_group()? {
        (0..rows.len()).for_each(|row| visit(&rows, row));
    }
    Ok(())
}
