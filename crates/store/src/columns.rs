//! Rows that are written: column by column, in the order in which they take the least space.

use std::ops::Range;

use crate::rows::{Rows, Values};
use crate::tables::{self, Table};

/// Rows whose columns are read part by part: the longest table is never in memory as a whole.
pub(crate) trait Columns {
    /// Their table.
    fn table(&self) -> &'static Table;

    /// The number of rows.
    fn count(&self) -> usize;

    /// Adds the values of a column in some of the rows.
    fn read(&self, column: usize, rows: Range<usize>, values: &mut Values);
}

impl Columns for Rows {
    fn table(&self) -> &'static Table {
        self.table
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn read(&self, column: usize, rows: Range<usize>, values: &mut Values) {
        let from = &self.columns[column];
        rows.for_each(|row| values.push(from.get(row)));
    }
}

/// Some of other rows.
pub(crate) struct Part<'c> {
    pub(crate) whole: &'c dyn Columns,
    pub(crate) rows: Range<usize>,
}

impl Columns for Part<'_> {
    fn table(&self) -> &'static Table {
        self.whole.table()
    }

    fn count(&self) -> usize {
        self.rows.len()
    }

    fn read(&self, column: usize, rows: Range<usize>, values: &mut Values) {
        let first = self.rows.start;
        self.whole.read(column, first + rows.start..first + rows.end, values);
    }
}

/// Rows in another order.
pub(crate) struct Sorted<'r> {
    rows: &'r Rows,
    order: Vec<u32>,
}

impl<'r> Sorted<'r> {
    /// Rows that have most in common become neighbours; samples stay in their order.
    pub(crate) fn of(rows: &'r Rows) -> Sorted<'r> {
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        let name = rows.table.name;
        if name == tables::STACKS.name {
            // Stacks share their outer frames.
            let frames = |row: u32| rows.longs(1, row as usize).iter().rev();
            order.sort_by(|&one, &other| frames(one).cmp(frames(other)));
        } else if name == tables::FRAMES.name {
            order.sort_by_cached_key(|&row| [3, 4, 0, 1].map(|column| rows.long(column, row as usize)));
        } else if name == tables::FUNCTIONS.name {
            order.sort_by_cached_key(|&row| [2, 1].map(|column| rows.text(column, row as usize)));
        } else if name == tables::STACK_FUNCTIONS.name {
            let of_one_stack = |&one: &u32, &next: &u32| rows.long(0, one as usize) == rows.long(0, next as usize);
            let mut stacks: Vec<&[u32]> = order.chunk_by(of_one_stack).collect();
            stacks.sort_by(|one, other| {
                let function = |&row: &u32| rows.long(1, row as usize);
                one.iter().rev().map(function).cmp(other.iter().rev().map(function))
            });
            order = stacks.concat();
        }
        Sorted { rows, order }
    }
}

impl Columns for Sorted<'_> {
    fn table(&self) -> &'static Table {
        self.rows.table
    }

    fn count(&self) -> usize {
        self.order.len()
    }

    fn read(&self, column: usize, rows: Range<usize>, values: &mut Values) {
        let from = &self.rows.columns[column];
        for &row in &self.order[rows] {
            values.push(from.get(row as usize));
        }
    }
}
