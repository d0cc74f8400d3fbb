//! Rows of a table in memory, column by column.

use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;

use crate::tables::{Kind, Table};

/// Texts, each in memory once.
#[derive(Debug, Default)]
pub struct Texts(FxHashMap<String, ByteArray>);

impl Texts {
    /// The text as a value.
    pub fn of(&mut self, text: &str) -> ByteArray {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let value = ByteArray::from(text.as_bytes().to_vec());
        self.0.insert(text.to_owned(), value.clone());
        value
    }
}

/// A value as text; what is not UTF-8 is replaced.
pub(crate) fn text(value: &ByteArray) -> String {
    String::from_utf8_lossy(value.data()).into_owned()
}

/// The values of a column.
#[derive(Clone, Debug)]
pub enum Values {
    /// [`Kind::Time`] and [`Kind::Long`].
    Long(Vec<i64>),
    /// [`Kind::Int`].
    Int(Vec<i32>),
    /// [`Kind::Bool`].
    Bool(Vec<bool>),
    /// [`Kind::Text`].
    Text(Vec<ByteArray>),
    /// [`Kind::Longs`].
    Longs(Lists),
}

/// The values of a column of lists.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// For each list, where it ends in `values`.
    pub ends: Vec<usize>,
    /// The elements of all lists.
    pub values: Vec<i64>,
}

impl Lists {
    /// A list.
    pub fn get(&self, row: usize) -> &[i64] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.values[start..self.ends[row]]
    }
}

/// A value of a row.
#[derive(Clone, Debug)]
pub enum Cell<'a> {
    /// [`Kind::Time`] and [`Kind::Long`].
    Long(i64),
    /// [`Kind::Int`].
    Int(i32),
    /// [`Kind::Bool`].
    Bool(bool),
    /// [`Kind::Text`].
    Text(ByteArray),
    /// [`Kind::Longs`].
    Longs(&'a [i64]),
}

impl Values {
    pub(crate) fn new(kind: Kind) -> Values {
        match kind {
            Kind::Time | Kind::Long => Values::Long(Vec::new()),
            Kind::Int => Values::Int(Vec::new()),
            Kind::Bool => Values::Bool(Vec::new()),
            Kind::Text => Values::Text(Vec::new()),
            Kind::Longs => Values::Longs(Lists::default()),
        }
    }

    pub(crate) fn push(&mut self, cell: Cell<'_>) {
        match (self, cell) {
            (Values::Long(values), Cell::Long(value)) => values.push(value),
            (Values::Int(values), Cell::Int(value)) => values.push(value),
            (Values::Bool(values), Cell::Bool(value)) => values.push(value),
            (Values::Text(values), Cell::Text(value)) => values.push(value),
            (Values::Longs(lists), Cell::Longs(list)) => {
                lists.values.extend_from_slice(list);
                lists.ends.push(lists.values.len());
            }
            (_, cell) => debug_assert!(false, "{cell:?} is of another column"),
        }
    }

    pub(crate) fn get(&self, row: usize) -> Cell<'_> {
        match self {
            Values::Long(values) => Cell::Long(values[row]),
            Values::Int(values) => Cell::Int(values[row]),
            Values::Bool(values) => Cell::Bool(values[row]),
            Values::Text(values) => Cell::Text(values[row].clone()),
            Values::Longs(lists) => Cell::Longs(lists.get(row)),
        }
    }

    /// What a column has in files of a version that did not have it yet.
    pub(crate) fn push_absent(&mut self, count: usize) {
        match self {
            Values::Long(values) => values.resize(values.len() + count, 0),
            Values::Int(values) => values.resize(values.len() + count, 0),
            Values::Bool(values) => values.resize(values.len() + count, false),
            Values::Text(values) => values.resize(values.len() + count, ByteArray::from(Vec::new())),
            Values::Longs(lists) => lists.ends.resize(lists.ends.len() + count, lists.values.len()),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Values::Long(values) => values.clear(),
            Values::Int(values) => values.clear(),
            Values::Bool(values) => values.clear(),
            Values::Text(values) => values.clear(),
            Values::Longs(lists) => {
                lists.ends.clear();
                lists.values.clear();
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Long(values) => values.len(),
            Values::Int(values) => values.len(),
            Values::Bool(values) => values.len(),
            Values::Text(values) => values.len(),
            Values::Longs(lists) => lists.ends.len(),
        }
    }
}

/// Rows of a table.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The table.
    pub table: &'static Table,
    /// By column of the table, equally long.
    pub columns: Vec<Values>,
}

impl Rows {
    /// No rows.
    pub fn new(table: &'static Table) -> Rows {
        let columns = table.columns.iter().map(|column| Values::new(column.kind));
        Rows {
            table,
            columns: columns.collect(),
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, Values::len)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a row, whose cells are in the order of the table's columns.
    pub fn push<const CELLS: usize>(&mut self, cells: [Cell<'_>; CELLS]) {
        debug_assert_eq!(CELLS, self.columns.len(), "{}", self.table.name);
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
    }

    /// Adds a row of other rows of this table.
    pub fn push_from(&mut self, other: &Rows, row: usize) {
        for (column, from) in self.columns.iter_mut().zip(&other.columns) {
            column.push(from.get(row));
        }
    }

    /// A number of a row; 0 if the column has none.
    pub fn long(&self, column: usize, row: usize) -> i64 {
        match &self.columns[column] {
            Values::Long(values) => values[row],
            Values::Int(values) => values[row].into(),
            Values::Bool(values) => values[row].into(),
            _ => 0,
        }
    }

    /// A text of a row; empty if the column has none.
    pub fn text(&self, column: usize, row: usize) -> String {
        match &self.columns[column] {
            Values::Text(values) => text(&values[row]),
            _ => String::new(),
        }
    }

    /// A list of a row; empty if the column has none.
    pub fn longs(&self, column: usize, row: usize) -> &[i64] {
        match &self.columns[column] {
            Values::Longs(lists) => lists.get(row),
            _ => &[],
        }
    }

    /// A hash of all of a row's values.
    pub(crate) fn fingerprint(&self, row: usize) -> [u8; 16] {
        let mut hash = blake3::Hasher::new();
        for column in &self.columns {
            match column {
                Values::Long(values) => hash.update(&values[row].to_le_bytes()),
                Values::Int(values) => hash.update(&values[row].to_le_bytes()),
                Values::Bool(values) => hash.update(&[u8::from(values[row])]),
                Values::Text(values) => {
                    let bytes = values[row].data();
                    hash.update(&(bytes.len() as u64).to_le_bytes()).update(bytes)
                }
                Values::Longs(lists) => {
                    let list = lists.get(row);
                    hash.update(&(list.len() as u64).to_le_bytes());
                    for value in list {
                        hash.update(&value.to_le_bytes());
                    }
                    &mut hash
                }
            };
        }
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        fingerprint
    }
}

/// The tables of a partition.
pub(crate) type Tables = FxHashMap<&'static str, Rows>;

/// The rows of a table.
pub(crate) fn table<'t>(tables: &'t mut Tables, table: &'static Table) -> &'t mut Rows {
    tables.entry(table.name).or_insert_with(|| Rows::new(table))
}
