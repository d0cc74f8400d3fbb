//! Parquet files of tables, written and read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use parquet::basic::{Compression, Encoding, GzipLevel, LogicalType, TimeUnit};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use rustc_hash::FxHashSet;

use crate::columns::{Columns, Sorted};
use crate::error::StoreError;
use crate::rows::{Lists, Rows, Values};
use crate::tables::{Kind, SAMPLES, Table, VERSION};

/// Rows that are written together: an engine reads several such groups at once.
pub(crate) const GROUP_ROWS: usize = 1 << 20;
/// More rows in a group than any engine writes, and what one may cost to read.
const MAX_GROUP_ROWS: i64 = 1 << 24;
/// Elements of lists in a group: stacks of 8,192 frames are rare.
const MAX_GROUP_ELEMENTS: usize = 1 << 28;

const KEY_VERSION: &str = "backtrail.version";
const KEY_PARTS: &str = "backtrail.parts";

/// The schema of a table's files.
fn schema(table: &Table) -> Result<TypePtr> {
    let columns = table.columns.iter().map(|column| {
        let name = column.name;
        match column.kind {
            Kind::Time => format!("REQUIRED INT64 {name} (TIMESTAMP(MICROS,true));"),
            Kind::Long => format!("REQUIRED INT64 {name};"),
            Kind::Int => format!("REQUIRED INT32 {name};"),
            Kind::Bool => format!("REQUIRED BOOLEAN {name};"),
            Kind::Text => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
            Kind::Longs => {
                format!("REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED INT64 element; }} }}")
            }
        }
    });
    let columns: Vec<String> = columns.collect();
    parse_message_type(&format!("message {} {{ {} }}", table.name, columns.join(" "))).map(Arc::new)
}

/// How a column is encoded, except by a dictionary, which suits columns with few values.
fn encoding(table: &Table, column: &str) -> Option<Encoding> {
    match (table.name, column) {
        // Hashes that hardly repeat.
        ("stacks" | "frames" | "functions", "id") | ("frames", "function_id") | ("stack_functions", "stack") => {
            Some(Encoding::PLAIN)
        }
        // Rows are sorted by these, or by what these grow with.
        (_, "time" | "pid" | "tid") | ("frames", "address" | "from_start" | "line") => {
            Some(Encoding::DELTA_BINARY_PACKED)
        }
        ("functions", "function") => Some(Encoding::DELTA_BYTE_ARRAY),
        _ => None,
    }
}

/// The properties of a file that begins with these rows.
fn properties(rows: &dyn Columns) -> WriterPropertiesPtr {
    let table = rows.table();
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("backtrail ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::GZIP(GzipLevel::default()))
        // All stacks of a group: without a dictionary each sample takes eight bytes.
        .set_dictionary_page_size_limit(16 << 20)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for (index, column) in table.columns.iter().enumerate() {
        let encoding = match (table.name == SAMPLES.name, column.name) {
            (true, "stack" | "time") => sample_encoding(rows, index),
            _ => encoding(table, column.name),
        };
        if let Some(encoding) = encoding {
            let path = ColumnPath::from(column.name);
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, encoding);
        }
    }
    Arc::new(builder.build())
}

/// How a column of samples is encoded that may repeat often, or hardly.
fn sample_encoding(rows: &dyn Columns, column: usize) -> Option<Encoding> {
    let mut distinct = FxHashSet::default();
    let (mut is_sorted, mut last) = (true, i64::MIN);
    let mut values = Values::Long(Vec::new());
    for part in parts(rows.count()) {
        values.clear();
        rows.read(column, part, &mut values);
        let Values::Long(values) = &values else { continue };
        for &value in values {
            distinct.insert(value);
            is_sorted &= last <= value;
            last = value;
        }
    }
    let is_distinct = distinct.len() > rows.count() / 2;
    match rows.table().columns[column].kind {
        // Few times are those of minutes.
        Kind::Time => (distinct.len() > rows.count() / 16).then_some(Encoding::DELTA_BINARY_PACKED),
        _ if is_distinct && is_sorted => Some(Encoding::DELTA_BINARY_PACKED),
        // A dictionary takes more than it saves.
        _ => is_distinct.then_some(Encoding::PLAIN),
    }
}

/// Rows whose values are in memory at a time.
const AT_ONCE: usize = 1 << 14;

fn parts(count: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..count).step_by(AT_ONCE);
    starts.map(move |start| start..count.min(start + AT_ONCE))
}

/// Writes a table's file, group by group.
pub struct TableWriter<W: Write + Send> {
    table: &'static Table,
    state: State<W>,
}

/// How columns are encoded follows from the first group.
enum State<W: Write + Send> {
    Empty(W),
    Begun(SerializedFileWriter<W>),
    Failed,
}

impl<W: Write + Send> TableWriter<W> {
    /// Begins a file.
    pub fn new(out: W, table: &'static Table) -> TableWriter<W> {
        TableWriter {
            table,
            state: State::Empty(out),
        }
    }

    /// Writes rows as a group, in the order in which they take the least space.
    pub fn write(&mut self, rows: &Rows) -> Result<()> {
        self.write_columns(&Sorted::of(rows))
    }

    /// Writes rows as a group, as they are.
    pub(crate) fn write_columns(&mut self, rows: &dyn Columns) -> Result<()> {
        let mut group = self.writer(rows)?.next_row_group()?;
        for (index, column) in rows.table().columns.iter().enumerate() {
            write_column(&mut group, rows, index, column.kind)?;
        }
        group.close()?;
        Ok(())
    }

    /// The file, which is begun for these rows if it is not yet.
    fn writer(&mut self, rows: &dyn Columns) -> Result<&mut SerializedFileWriter<W>> {
        let state = std::mem::replace(&mut self.state, State::Failed);
        self.state = match state {
            State::Empty(out) => State::Begun(SerializedFileWriter::new(out, schema(self.table)?, properties(rows))?),
            other => other,
        };
        match &mut self.state {
            State::Begun(writer) => Ok(writer),
            _ => Err(ParquetError::General("a file that could not be begun".into())),
        }
    }

    /// Completes the file. `parts` are the names of what is in it, so that none is added twice.
    pub fn finish(mut self, parts: &BTreeSet<String>) -> Result<W> {
        let none = Rows::new(self.table);
        let writer = self.writer(&none)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        for (key, value) in [(KEY_VERSION, VERSION.to_string()), (KEY_PARTS, parts.join(","))] {
            writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        match self.state {
            State::Begun(writer) => writer.into_inner(),
            _ => Err(ParquetError::General("a file that could not be begun".into())),
        }
    }
}

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &dyn Columns,
    index: usize,
    kind: Kind,
) -> Result<()> {
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General("a column too many".into()));
    };
    let mut values = Values::new(kind);
    for part in parts(rows.count()) {
        values.clear();
        rows.read(index, part, &mut values);
        match (writer.untyped(), &values) {
            (ColumnWriter::Int64ColumnWriter(to), Values::Long(values)) => to.write_batch(values, None, None)?,
            (ColumnWriter::Int32ColumnWriter(to), Values::Int(values)) => to.write_batch(values, None, None)?,
            (ColumnWriter::BoolColumnWriter(to), Values::Bool(values)) => to.write_batch(values, None, None)?,
            (ColumnWriter::ByteArrayColumnWriter(to), Values::Text(values)) => to.write_batch(values, None, None)?,
            (ColumnWriter::Int64ColumnWriter(to), Values::Longs(lists)) => {
                let (definitions, repetitions) = levels(lists);
                to.write_batch(&lists.values, Some(&definitions), Some(&repetitions))?
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        };
    }
    writer.close()
}

/// Definition and repetition levels: an empty list is one level without a value.
fn levels(lists: &Lists) -> (Vec<i16>, Vec<i16>) {
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    for row in 0..lists.ends.len() {
        let length = lists.get(row).len();
        repetitions.push(0);
        definitions.push(i16::from(length > 0));
        repetitions.extend(std::iter::repeat_n(1, length.saturating_sub(1)));
        definitions.extend(std::iter::repeat_n(1, length.saturating_sub(1)));
    }
    (definitions, repetitions)
}

/// Reads a table's file, group by group.
pub struct TableReader {
    reader: SerializedFileReader<File>,
    table: &'static Table,
    path: std::path::PathBuf,
    /// By column of the table: the column of the file.
    columns: Vec<Option<usize>>,
    group: usize,
}

impl TableReader {
    /// Opens a file; columns that it does not have are empty, others are passed over.
    pub fn open(path: &Path, table: &'static Table) -> std::result::Result<TableReader, StoreError> {
        TableReader::of(File::open(path).map_err(StoreError::file(path))?, path, table)
    }

    /// Reads `file`, whose name is `path`.
    pub(crate) fn of(file: File, path: &Path, table: &'static Table) -> std::result::Result<TableReader, StoreError> {
        let reader = SerializedFileReader::new(file).map_err(StoreError::table(path))?;
        let shape = reader.metadata().file_metadata().schema_descr_ptr();
        let position = |name: &str| {
            let mut columns = shape.columns().iter();
            columns.position(|column| column.path().parts().first().is_some_and(|first| first == name))
        };
        let columns = table.columns.iter().map(|column| position(column.name)).collect();
        let reader = TableReader {
            reader,
            table,
            path: path.to_owned(),
            columns,
            group: 0,
        };
        match reader.value(KEY_VERSION).map(|version| version.parse::<u32>()) {
            Some(Ok(version)) if version > VERSION => Err(reader.shape(&format!(
                "version {version}, this program reads up to version {VERSION}"
            ))),
            _ => Ok(reader),
        }
    }

    fn value(&self, key: &str) -> Option<&str> {
        let pairs = self.reader.metadata().file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    fn shape(&self, what: &str) -> StoreError {
        StoreError::Shape(self.path.clone(), what.to_owned())
    }

    /// The names of what is in the file.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.value(KEY_PARTS).unwrap_or_default().split(',');
        parts.filter(|part| !part.is_empty())
    }

    /// The number of rows, as the file says.
    pub fn rows(&self) -> u64 {
        u64::try_from(self.reader.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// The next group; `None` at the end.
    pub fn next_group(&mut self) -> std::result::Result<Option<Rows>, StoreError> {
        if self.group >= self.reader.num_row_groups() {
            return Ok(None);
        }
        let group = self
            .reader
            .get_row_group(self.group)
            .map_err(StoreError::table(&self.path))?;
        self.group += 1;
        let count = group.metadata().num_rows();
        if !(0..=MAX_GROUP_ROWS).contains(&count) {
            return Err(self.shape(&format!("a group of {count} rows")));
        }
        self.check_compression(&*group)?;
        let mut rows = Rows::new(self.table);
        for (values, column) in rows.columns.iter_mut().zip(&self.columns) {
            match column {
                Some(column) => read_column(&*group, *column, values).map_err(StoreError::table(&self.path))?,
                None => values.push_absent(count as usize),
            }
            if values.len() as i64 != count {
                return Err(self.shape(&format!("{} values in a group of {count} rows", values.len())));
            }
        }
        Ok(Some(rows))
    }

    /// Other tools compress in ways that this program is built without: such a file is not damaged.
    fn check_compression(&self, group: &dyn RowGroupReader) -> std::result::Result<(), StoreError> {
        for &column in self.columns.iter().flatten() {
            match group.metadata().column(column).compression() {
                Compression::UNCOMPRESSED | Compression::GZIP(_) => {}
                other => {
                    // Without the level.
                    let name = other.to_string().split('(').next().unwrap_or_default().to_owned();
                    return Err(StoreError::Compression(self.path.clone(), name));
                }
            }
        }
        Ok(())
    }

    /// All rows.
    pub fn read_all(mut self) -> std::result::Result<Rows, StoreError> {
        let mut all = Rows::new(self.table);
        while let Some(rows) = self.next_group()? {
            for row in 0..rows.len() {
                all.push_from(&rows, row);
            }
        }
        Ok(all)
    }
}

/// Rows that are decoded at a time, so that no file says how much memory is taken.
const STEP: usize = 1 << 16;

fn read_column(group: &dyn RowGroupReader, column: usize, values: &mut Values) -> Result<()> {
    /// Reads what has no lists. Engines write columns that may be null; ours never are.
    macro_rules! flat {
        ($reader:expr, $values:expr) => {{
            let (mut reader, values) = ($reader, $values);
            let mut levels = Vec::new();
            loop {
                levels.clear();
                let (records, read, _) = reader.read_records(STEP, Some(&mut levels), None, values)?;
                if read != records {
                    return Err(ParquetError::General("a null where none may be".into()));
                }
                if records == 0 {
                    break Ok(());
                }
            }
        }};
    }
    match (group.get_column_reader(column)?, values) {
        (ColumnReader::Int64ColumnReader(reader), Values::Longs(lists)) => {
            let most = group.metadata().column(column).column_descr().max_def_level();
            read_lists(reader, most, lists)
        }
        (ColumnReader::Int64ColumnReader(reader), Values::Long(values)) => flat!(reader, values),
        (ColumnReader::Int32ColumnReader(reader), Values::Int(values)) => flat!(reader, values),
        (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => flat!(reader, values),
        (ColumnReader::ByteArrayColumnReader(reader), Values::Text(values)) => flat!(reader, values),
        _ => Err(ParquetError::General("a column of another type".into())),
    }
}

fn read_lists(mut reader: ColumnReaderImpl<Int64Type>, most: i16, lists: &mut Lists) -> Result<()> {
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    loop {
        definitions.clear();
        repetitions.clear();
        let mut end = lists.values.len();
        let (records, _, levels) =
            reader.read_records(STEP, Some(&mut definitions), Some(&mut repetitions), &mut lists.values)?;
        if records == 0 {
            return Ok(());
        }
        if lists.values.len() > MAX_GROUP_ELEMENTS {
            return Err(ParquetError::General("lists too long".into()));
        }
        for level in 0..levels {
            if repetitions[level] == 0 && level > 0 {
                lists.ends.push(end);
            }
            end += usize::from(definitions[level] == most);
        }
        lists.ends.push(end);
    }
}

/// A value of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A whole number.
    Integer(i64),
    /// Any number.
    Number(f64),
    /// Whether.
    Bool(bool),
    /// A text.
    Text(String),
}

/// Reads the result of a query: its columns' names, and its rows. At most `most` rows are read.
pub fn read_result(path: &Path, most: usize) -> std::result::Result<(Vec<String>, Vec<Vec<Value>>), StoreError> {
    let file = File::open(path).map_err(StoreError::file(path))?;
    let read = || -> Result<(Vec<String>, Vec<Vec<Value>>)> {
        let reader = SerializedFileReader::new(file)?;
        let shape = reader.metadata().file_metadata().schema_descr_ptr();
        let names: Vec<String> = shape.columns().iter().map(|column| column.name().to_owned()).collect();
        let mut rows: Vec<Vec<Value>> = Vec::new();
        for group in 0..reader.num_row_groups() {
            if rows.len() >= most {
                break;
            }
            let group = reader.get_row_group(group)?;
            let left = most - rows.len();
            let first = rows.len();
            for column in 0..group.num_columns() {
                for (index, value) in result_column(&*group, column, left)?.into_iter().enumerate() {
                    if rows.len() <= first + index {
                        rows.push(Vec::with_capacity(names.len()));
                    }
                    rows[first + index].push(value);
                }
            }
        }
        Ok((names, rows))
    };
    read().map_err(StoreError::table(path))
}

fn result_column(group: &dyn RowGroupReader, column: usize, most: usize) -> Result<Vec<Value>> {
    macro_rules! values {
        ($reader:expr, $of:expr) => {{
            let mut reader = $reader;
            let (mut levels, mut found) = (Vec::new(), Vec::new());
            let mut all = Vec::new();
            while all.len() < most {
                levels.clear();
                found.clear();
                let step = STEP.min(most - all.len());
                let (records, _, _) = reader.read_records(step, Some(&mut levels), None, &mut found)?;
                if records == 0 {
                    break;
                }
                let mut present = found.drain(..).map($of);
                let mut next = || present.next().unwrap_or(Value::Null);
                match levels.is_empty() {
                    true => all.extend((0..records).map(|_| next())),
                    false => all.extend(levels.iter().map(|&level| if level > 0 { next() } else { Value::Null })),
                }
            }
            Ok(all)
        }};
    }
    match group.get_column_reader(column)? {
        ColumnReader::BoolColumnReader(reader) => values!(reader, Value::Bool),
        ColumnReader::Int32ColumnReader(reader) => values!(reader, |value| Value::Integer(value.into())),
        ColumnReader::Int64ColumnReader(reader) => {
            let shape = group.metadata().column(column).column_descr_ptr();
            match shape.logical_type_ref() {
                Some(LogicalType::Timestamp(time)) => {
                    let unit = time.unit;
                    values!(reader, |value| time_text(value, &unit))
                }
                _ => values!(reader, Value::Integer),
            }
        }
        ColumnReader::FloatColumnReader(reader) => values!(reader, |value| Value::Number(value.into())),
        ColumnReader::DoubleColumnReader(reader) => values!(reader, Value::Number),
        ColumnReader::ByteArrayColumnReader(reader) => {
            values!(reader, |value: ByteArray| Value::Text(crate::rows::text(&value)))
        }
        _ => Err(ParquetError::General("a column of a type that no question has".into())),
    }
}

/// A moment as text.
fn time_text(value: i64, unit: &TimeUnit) -> Value {
    let time = match unit {
        TimeUnit::MILLIS => Timestamp::from_millisecond(value),
        TimeUnit::MICROS => Timestamp::from_microsecond(value),
        TimeUnit::NANOS => Timestamp::from_nanosecond(value.into()),
    };
    time.map_or(Value::Integer(value), |time| {
        Value::Text(time.strftime("%Y-%m-%d %H:%M:%S").to_string())
    })
}

/// Turns a failure to write into the system's error, where it is one.
pub(crate) fn system_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}
