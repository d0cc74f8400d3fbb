//! The line number program of a unit (DWARF 5, 6.2).

use backtrail_elf::budget::Budget;
use gimli::{LineProgramHeader, Range, UnitRef};

use crate::reader::Slice;

/// The lines of a unit.
#[derive(Debug, Default)]
pub(super) struct Rows<'d> {
    header: Option<LineProgramHeader<Slice<'d>>>,
    /// Sequences by start.
    sequences: Vec<Sequence>,
}

#[derive(Debug)]
struct Sequence {
    range: Range,
    /// Rows by address, one for each.
    rows: Vec<Row>,
}

/// A line, and the address from which it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    address: u64,
    /// The file's number.
    pub(super) file: u64,
    /// The line; 0 if the code belongs to no line.
    pub(super) line: u32,
}

impl<'d> Rows<'d> {
    /// Reads the rows of a unit, up to the first damage or the end of the budget.
    pub(super) fn read(unit: UnitRef<'_, Slice<'d>>, budget: &Budget) -> Rows<'d> {
        let Some(program) = unit.line_program.clone() else {
            return Rows::default();
        };
        let (mut sequences, mut rows) = (Vec::new(), Vec::new());
        let mut steps = budget.steps();
        let mut read = program.rows();
        while let Ok(Some((_, row))) = read.next_row() {
            if steps.step(size_of::<Row>()).is_err() {
                break;
            }
            if row.end_sequence() {
                end_sequence(&mut sequences, std::mem::take(&mut rows), row.address());
                continue;
            }
            let row = Row {
                address: row.address(),
                file: row.file_index(),
                line: row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0)),
            };
            // The last row of an address counts.
            match rows.last_mut() {
                Some(last) if last.address == row.address => *last = row,
                _ => rows.push(row),
            }
        }
        sequences.sort_unstable_by_key(|sequence: &Sequence| sequence.range.begin);
        Rows {
            header: Some(read.header().clone()),
            sequences,
        }
    }

    /// The code that has lines.
    pub(super) fn ranges(&self) -> Vec<Range> {
        self.sequences.iter().map(|sequence| sequence.range).collect()
    }

    /// The line at an address.
    pub(super) fn at(&self, address: u64) -> Option<Row> {
        let before = self
            .sequences
            .partition_point(|sequence| sequence.range.begin <= address);
        let sequence = self.sequences.get(before.checked_sub(1)?)?;
        let rows = &sequence.rows[..sequence.rows.partition_point(|row| row.address <= address)];
        rows.last().copied().filter(|_| address < sequence.range.end)
    }

    /// The path of the file with this number, as the compiler received it.
    pub(super) fn file(&self, unit: UnitRef<'_, Slice<'d>>, number: u64) -> Option<String> {
        let header = self.header.as_ref()?;
        let file = header.file(number)?;
        let text = |value| Some(unit.attr_string(value).ok()?.to_string_lossy().into_owned());
        let mut path = unit
            .comp_dir
            .map_or_else(String::new, |folder| folder.to_string_lossy().into_owned());
        // Folder 0 is the unit's folder, which is not repeated.
        if let Some(folder) = file.directory(header).filter(|_| file.directory_index() != 0) {
            push(&mut path, &text(folder)?);
        }
        push(&mut path, &text(file.path_name())?);
        Some(path)
    }
}

fn end_sequence(sequences: &mut Vec<Sequence>, rows: Vec<Row>, end: u64) {
    let Some(begin) = rows.first().map(|row| row.address) else {
        return;
    };
    if begin < end {
        let range = Range { begin, end };
        sequences.push(Sequence { range, rows });
    }
}

/// Appends a part to a path; an absolute part replaces the path. Compilers for Windows write
/// Windows paths.
fn push(path: &mut String, part: &str) {
    let has_drive = |path: &str| matches!(path.as_bytes(), [_, b':', b'/' | b'\\', ..]);
    if part.starts_with(['/', '\\']) || has_drive(part) {
        path.clear();
    } else if !path.is_empty() {
        let is_windows = path.starts_with('\\') || path.get(1..3) == Some(":\\");
        let separator = if is_windows { '\\' } else { '/' };
        if !path.ends_with(separator) {
            path.push(separator);
        }
    }
    path.push_str(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_on() {
        let joined = |path: &str, part: &str| {
            let mut path = path.to_owned();
            push(&mut path, part);
            path
        };
        assert_eq!(joined("/a", "b.c"), "/a/b.c");
        assert_eq!(joined("/a/", "b.c"), "/a/b.c");
        assert_eq!(joined("/a", "/b.c"), "/b.c");
        assert_eq!(joined("", "b.c"), "b.c");
        assert_eq!(joined("C:\\a", "b.c"), "C:\\a\\b.c");
        assert_eq!(joined("/a", "C:/b.c"), "C:/b.c");
    }
}
