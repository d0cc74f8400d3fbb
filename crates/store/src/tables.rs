//! The tables and their columns. Everything that reads or writes a table takes its shape from here.

/// The type of a column. None of them is ever null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Microseconds since the Unix epoch, UTC.
    Time,
    /// A signed number of 64 bits.
    Long,
    /// A signed number of 32 bits.
    Int,
    /// Whether.
    Bool,
    /// UTF-8.
    Text,
    /// A list of signed numbers of 64 bits.
    Longs,
}

impl Kind {
    /// Its name in the schema document, as SQL calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Time => "timestamp (microseconds, UTC)",
            Kind::Long => "bigint",
            Kind::Int => "integer",
            Kind::Bool => "boolean",
            Kind::Text => "varchar",
            Kind::Longs => "list of bigint",
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnShape {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its meaning, for the schema document.
    pub meaning: &'static str,
}

/// A table.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, which is also that of its folder.
    pub name: &'static str,
    /// What a row is, for the schema document.
    pub meaning: &'static str,
    /// Its columns, without those that partitions add.
    pub columns: &'static [ColumnShape],
}

/// The version of the tables. Files of a version above this one are refused.
pub const VERSION: u32 = 3;

/// The columns that the folders' names add to each table, outermost first.
pub const PARTITIONS: [&str; 3] = ["date", "hour", "service"];

const fn column(name: &'static str, kind: Kind, meaning: &'static str) -> ColumnShape {
    ColumnShape { name, kind, meaning }
}

use Kind::{Bool, Int, Long, Longs, Text, Time};

/// The samples: by far the longest table.
pub static SAMPLES: Table = Table {
    name: "samples",
    meaning: "a sample, or the equal samples of a minute",
    columns: &[
        column(
            "time",
            Time,
            "when; the start of the minute where samples are counted by the minute",
        ),
        column("nanos", Int, "nanoseconds to add to time, 0 to 999"),
        column("host", Text, "the machine"),
        column("version", Text, "the label 'version'; empty without one"),
        column("recording", Long, "recordings.id"),
        column("pid", Int, "the process; 0 by the minute"),
        column("tid", Int, "the thread; 0 by the minute"),
        column("process", Text, "name of the process"),
        column("thread", Text, "name of the thread"),
        column("cpu", Int, "the CPU; -1 by the minute"),
        column("kind", Text, "cpu (a clock), call (a function was called) or event"),
        column("stack", Long, "stacks.id"),
        column(
            "period",
            Long,
            "nanoseconds of CPU time for each; 0 if no clock took it",
        ),
        column("count", Long, "the number of samples that the row represents"),
    ],
};

/// The distinct stacks.
pub static STACKS: Table = Table {
    name: "stacks",
    meaning: "a distinct stack",
    columns: &[
        column("id", Long, "hash of the other columns"),
        column("frames", Longs, "frames.id, the innermost first"),
        column("ending", Text, "why it ends; end_of_stack if it is complete"),
        column("late", Bool, "whether outer frames were read after the sample"),
    ],
};

/// The distinct frames, with the calls inlined there.
pub static FRAMES: Table = Table {
    name: "frames",
    meaning: "a call at a distinct place in code; the calls inlined there are rows of their own",
    columns: &[
        column("id", Long, "hash of the other columns of all rows with this id"),
        column(
            "depth",
            Int,
            "0 for the innermost of the calls inlined there, then 1 ...",
        ),
        column("kind", Text, "file, kernel, generated or marker"),
        column("module", Long, "modules.id; 0 without a file"),
        column(
            "address",
            Long,
            "the address in the file, less modules.first; or in memory without a file",
        ),
        column("function_id", Long, "functions.id; 0 for a marker"),
        column("function", Text, "name of the function, or the marker's text"),
        column("module_name", Text, "short name of the module"),
        column("file", Text, "source file; empty if unknown"),
        column("line", Long, "line from 1; 0 if unknown"),
        column("inlined", Bool, "whether the call was inlined"),
        column("from_start", Long, "bytes from the function's start; -1 if unknown"),
    ],
};

/// The distinct functions.
pub static FUNCTIONS: Table = Table {
    name: "functions",
    meaning: "a distinct function",
    columns: &[
        column("id", Long, "hash of the other columns"),
        column("function", Text, "its name"),
        column("module", Text, "short name of its module"),
    ],
};

/// The functions of each stack.
pub static STACK_FUNCTIONS: Table = Table {
    name: "stack_functions",
    meaning: "a function that is on a stack, once however often it is there",
    columns: &[
        column("stack", Long, "stacks.id"),
        column("function", Long, "functions.id"),
        column("is_self", Bool, "whether it is the innermost"),
    ],
};

/// Stacks whose frames got names after they were added.
pub static NAMED_STACKS: Table = Table {
    name: "named_stacks",
    meaning: "a stack to show instead of one whose functions had no names or lines when it was added; since version 3",
    columns: &[
        column("stack", Long, "stacks.id, as samples and crashes have it"),
        column("named", Long, "stacks.id of the same stack with more names"),
        column(
            "quality",
            Long,
            "how much is known of its frames; of several rows of a stack, the one with the highest quality, then with the highest named counts",
        ),
    ],
};

/// The files with code.
pub static MODULES: Table = Table {
    name: "modules",
    meaning: "a file with code; for the kernel, whose addresses change with each start, one row for each recording",
    columns: &[
        column("id", Long, "hash of path and build_id"),
        column(
            "recording",
            Long,
            "recordings.id; 0 if the addresses are the same in all",
        ),
        column("path", Text, "its path, as the process saw it"),
        column("build_id", Text, "its build ID in hexadecimal; empty without one"),
        column("first", Long, "its first address; add it to frames.address"),
        column("past", Long, "the address after its last"),
    ],
};

/// The recordings that were added.
pub static RECORDINGS: Table = Table {
    name: "recordings",
    meaning: "a recording's part in this partition",
    columns: &[
        column("id", Long, "hash of the recording's samples"),
        column("host", Text, "the machine"),
        column("version", Text, "the label 'version'"),
        column("first", Time, "the first sample"),
        column("last", Time, "the last sample"),
        column("command", Text, "the recorded command"),
        column("kernel", Text, "the kernel's release"),
        column("machine", Text, "the CPU, as uname -m prints it"),
        column("producer", Text, "the program that wrote the recording"),
        column(
            "period",
            Long,
            "nanoseconds of CPU time between samples; 0 if no clock took them",
        ),
        column("resolution", Text, "exact or minute"),
        column("samples", Long, "its samples in this partition"),
        column(
            "lost",
            Long,
            "lost samples of the whole recording, in its first partition",
        ),
        column(
            "trace_bytes",
            Long,
            "bytes of the whole recording, in its first partition",
        ),
    ],
};

/// The labels of recordings.
pub static LABELS: Table = Table {
    name: "labels",
    meaning: "a label of a recording",
    columns: &[
        column("recording", Long, "recordings.id"),
        column("key", Text, "its name"),
        column("value", Text, "its value"),
    ],
};

/// Crashes. Those columns that samples have, too, have the same names, so that the same conditions
/// select them.
pub static CRASHES: Table = Table {
    name: "crashes",
    meaning: "a crash, with the stack of the thread that died; since version 2",
    columns: &[
        column("time", Time, "when"),
        column("host", Text, "the machine"),
        column("version", Text, "the label 'version'; empty without one"),
        column("recording", Long, "hash of the crash's report; labels.recording"),
        column("pid", Int, "the process"),
        column("tid", Int, "the thread that died; 0 if unknown"),
        column("process", Text, "name of the program"),
        column("thread", Text, "name of the thread"),
        column("kind", Text, "crash"),
        column("stack", Long, "stacks.id; its modules begin where they were mapped"),
        column("report", Text, "the report's id, for `backtrail crashes show`"),
        column("signal", Text, "name of the signal"),
        column("key", Text, "the same for crashes in the same functions"),
        column(
            "function",
            Text,
            "the function that the crash is blamed on; empty if unknown",
        ),
        column(
            "message",
            Text,
            "of a failed assertion, or the C library's; empty without one",
        ),
        column(
            "build",
            Text,
            "the program's build ID in hexadecimal; empty without one",
        ),
        column(
            "arguments",
            Text,
            "a line for each function with known arguments, the innermost first; without hidden values",
        ),
    ],
};

/// All tables, in the order in which they are written: a sample comes after everything that it
/// refers to.
pub static ALL: [&Table; 10] = [
    &MODULES,
    &FUNCTIONS,
    &FRAMES,
    &STACKS,
    &STACK_FUNCTIONS,
    &NAMED_STACKS,
    &LABELS,
    &RECORDINGS,
    &SAMPLES,
    &CRASHES,
];

impl Table {
    /// The index of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_columns_have_one_name_each() {
        for (index, table) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.name != table.name));
            for (index, column) in table.columns.iter().enumerate() {
                assert_eq!(table.column(column.name), Some(index), "{} {}", table.name, column.name);
                assert!(!PARTITIONS.contains(&column.name));
            }
        }
    }
}
