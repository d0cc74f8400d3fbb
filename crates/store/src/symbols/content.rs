//! The stacks of a partition and their names, read from its files.

use rustc_hash::FxHashMap;

use super::retried;
use crate::error::StoreError;
use crate::files::TableReader;
use crate::partition::Partition;
use crate::place::Store;
use crate::selection::{CallRow, FrameRow, Selection, StackRow, each};
use crate::tables::{FRAMES, MODULES, NAMED_STACKS, STACKS, Table};

/// A place in a file's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    /// `modules.id`.
    pub(super) module: i64,
    /// `frames.address`.
    pub(super) address: u64,
    /// Whether the address is a return address, whose call is at the byte before. Recordings have
    /// the call's address already; crashes have not.
    pub(super) is_return: bool,
}

/// Unnamed code whose function has at least a known start.
const WITH_START: i64 = 1;
/// The calls at a place have names.
pub(super) const NAMED: i64 = 2;
/// The calls at a place have lines, too.
pub(super) const WITH_LINES: i64 = 3;

/// How much is known of a place.
pub(super) fn quality(module_name: &str, calls: &[CallRow]) -> i64 {
    match calls {
        calls if calls.iter().any(|call| call.line > 0) => WITH_LINES,
        [] => 0,
        [call] if is_unnamed(module_name, &call.function) => match call.from_start {
            Some(_) => WITH_START,
            None => 0,
        },
        _ => NAMED,
    }
}

/// Whether a function is called `module+0x1234`, since its name is not known.
fn is_unnamed(module: &str, function: &str) -> bool {
    let module = module.strip_suffix(" (deleted)").unwrap_or(module);
    let rest = function.strip_prefix(module).and_then(|rest| rest.strip_prefix("+0x"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    function.is_empty() || rest.is_some_and(is_number)
}

/// What a partition has of stacks.
#[derive(Default)]
pub(super) struct Content {
    pub(super) rows: Selection,
    /// By stack: the quality and the id of the one that is shown instead.
    pub(super) named: FxHashMap<i64, (i64, i64)>,
}

impl Content {
    /// Reads a partition: what is written last first, so that nothing is missing that a row refers
    /// to.
    pub(super) fn read(store: &Store, partition: &Partition) -> Result<Content, StoreError> {
        retried(|| {
            let open = |table: &'static Table| -> Result<Vec<TableReader>, StoreError> {
                let files = store.files(table, partition)?;
                files.iter().map(|path| store.reader(path, table)).collect()
            };
            let mut content = Content::default();
            for named in open(&NAMED_STACKS)? {
                each(named, |rows, row| {
                    content.add_named(rows.long(0, row), (rows.long(2, row), rows.long(1, row)));
                })?;
            }
            for stacks in open(&STACKS)? {
                content.rows.read_stacks(stacks)?;
            }
            content.rows.read_frames(open(&FRAMES)?)?;
            for modules in open(&MODULES)? {
                content.rows.read_modules(modules)?;
            }
            Ok(content)
        })
    }

    fn add_named(&mut self, stack: i64, row: (i64, i64)) {
        let best = self.named.entry(stack).or_insert(row);
        *best = row.max(*best);
    }

    /// A stack as it is shown: its id, and its frames.
    pub(super) fn shown<'c>(&'c self, id: i64, stack: &'c StackRow) -> (i64, &'c StackRow) {
        let named = self.named.get(&id).map(|(_, named)| *named);
        named
            .and_then(|named| Some((named, self.rows.stacks.get(&named)?)))
            .unwrap_or((id, stack))
    }

    /// The frames of a stack that are code of a file with a build ID, with their places.
    pub(super) fn places<'c>(&'c self, stack: &'c StackRow) -> impl Iterator<Item = (usize, Place, &'c FrameRow)> {
        let frames = stack.frames.iter().enumerate();
        frames.filter_map(|(index, id)| {
            let frame = self.rows.frames.get(id)?;
            let place = self.place(index, frame)?;
            Some((index, place, frame))
        })
    }

    fn place(&self, index: usize, frame: &FrameRow) -> Option<Place> {
        let module = self.rows.modules.get(&frame.module)?;
        (frame.kind == "file").then_some(Place {
            module: frame.module,
            address: frame.address,
            is_return: index > 0 && module.is_mapped(frame.module),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_named_after_its_address_has_no_name() {
        for (module, function, unnamed) in [
            ("cart", "cart+0x12af", true),
            ("cart", "", true),
            ("cart (deleted)", "cart+0x1", true),
            ("cart", "cart", false),
            ("cart", "cart+0x", false),
            ("cart", "cart+0x12 [clone]", false),
            ("cart", "other+0x12", false),
        ] {
            assert_eq!(is_unnamed(module, function), unnamed, "{function}");
        }
    }
}
