//! Tables of single functions, cached when they are requested.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Addresses that are cached; a caller with more is better off with the table of the whole module.
const MOST_ADDRESSES: usize = 1 << 14;
const LISTS: usize = 1 << 10;

/// An SFrame section; `None` if there is no table.
pub(crate) type Table = Option<Rc<[u8]>>;

/// The tables that were requested. Each has a stable address, so that it can stay borrowed while
/// others are added.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Buckets by a hash of the address.
    lists: Vec<OnceCell<Box<Entry>>>,
    len: Cell<usize>,
    /// Tables by the offset of the FDE.
    made: RefCell<HashMap<usize, Table>>,
}

#[derive(Debug)]
struct Entry {
    address: u64,
    table: Table,
    next: OnceCell<Box<Entry>>,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked {
            lists: (0..LISTS).map(|_| OnceCell::new()).collect(),
            len: Cell::new(0),
            made: RefCell::default(),
        }
    }
}

impl Asked {
    /// The table for an address. At its first request `find` makes it, from the tables that exist
    /// already by the offsets of their FDEs.
    pub(crate) fn table(&self, address: u64, find: impl FnOnce(&mut HashMap<usize, Table>) -> Table) -> Option<&[u8]> {
        // Neighbours in code are often requested together; the multiplication spreads them.
        let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LISTS.ilog2());
        let mut slot = &self.lists[hash as usize];
        while let Some(entry) = slot.get() {
            if entry.address == address {
                return entry.table.as_deref();
            }
            slot = &entry.next;
        }
        if self.len.get() == MOST_ADDRESSES {
            return None;
        }
        self.len.set(self.len.get() + 1);
        let entry = Entry {
            address,
            table: find(&mut self.made.borrow_mut()),
            next: OnceCell::new(),
        };
        slot.get_or_init(|| Box::new(entry)).table.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_once_stays() {
        let asked = Asked::default();
        let found = Cell::new(0);
        let table = |address: u64| {
            asked.table(address, |made| {
                found.set(found.get() + 1);
                let table = made
                    .entry(address as usize / 100)
                    .or_insert_with(|| Some([address as u8].into()));
                table.clone().filter(|_| !address.is_multiple_of(3))
            })
        };
        let first = table(101);
        let expected = |address: u64| {
            Some(if address / 100 == 1 {
                101
            } else {
                (address / 100 * 100) as u8
            })
        };
        for address in (0..1000).chain(0..1000) {
            let table = table(address).map(|table| table[0]);
            assert_eq!(
                table,
                expected(address).filter(|_| !address.is_multiple_of(3)),
                "{address}"
            );
        }
        assert_eq!((first, found.get()), (Some(&[101][..]), 1000));
        for address in 1000..MOST_ADDRESSES as u64 + 1000 {
            let is_found = address < MOST_ADDRESSES as u64 && !address.is_multiple_of(3);
            assert_eq!(table(address).is_some(), is_found, "{address}");
        }
    }
}
