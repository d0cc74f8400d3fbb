//! The rows that give a partition's stacks their names.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::content::{Content, Place, WITH_LINES, quality};
use crate::frames::{self, CallCells, PlaceCells};
use crate::id::{self, Id};
use crate::rows::{Cell, Tables, Texts, table};
use crate::selection::{CallRow, FrameRow, StackRow};
use crate::tables::{NAMED_STACKS, STACKS};

/// The best calls that are known for places.
#[derive(Default)]
pub(super) struct Names(FxHashMap<Place, (i64, Vec<CallRow>)>);

impl Names {
    /// Takes the names that a partition has for places without them elsewhere: another machine may
    /// have had the debugging information.
    pub(super) fn take(&mut self, content: &Content, is_wanted: impl Fn(&Place) -> bool) {
        for stack in content.rows.stacks.values() {
            for (_, place, frame) in content.places(stack) {
                if is_wanted(&place) && quality(&frame.module_name, &frame.calls) > self.quality(&place) {
                    self.offer(place, &frame.module_name, frame.calls.clone());
                }
            }
        }
    }

    /// Keeps these calls if they are better than those known.
    pub(super) fn offer(&mut self, place: Place, module_name: &str, calls: Vec<CallRow>) {
        let quality = quality(module_name, &calls);
        if quality > self.quality(&place) {
            self.0.insert(place, (quality, calls));
        }
    }

    pub(super) fn quality(&self, place: &Place) -> i64 {
        self.0.get(place).map_or(0, |(quality, _)| *quality)
    }
}

/// Rows to add to a partition.
pub(super) struct Naming {
    /// The name of these rows: the same for the same rows.
    pub(super) name: String,
    pub(super) tables: Tables,
    pub(super) stacks: u64,
}

impl Naming {
    /// The rows that a partition needs; `None` if it has the best names already.
    pub(super) fn of(content: &Content, names: &Names) -> Option<Naming> {
        let known = Known::of(content);
        let mut making = Making::default();
        let mut named = BTreeMap::new();
        let mut ids: Vec<_> = content.rows.stacks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let (_, shown) = content.shown(id, &content.rows.stacks[&id]);
            if let Some(row) = making.add_stack(content, &known, names, shown) {
                named.insert(id, row);
            }
        }
        if named.is_empty() {
            return None;
        }
        let mut name = Id::new("symbols");
        for (stack, (named, quality)) in &named {
            name = name.number(*stack).number(*named);
            let cells = [Cell::Long(*stack), Cell::Long(*named), Cell::Long(*quality)];
            table(&mut making.tables, &NAMED_STACKS).push(cells);
        }
        Some(Naming {
            name: format!("symbols-{:016x}", name.finish()),
            tables: making.tables,
            stacks: named.len() as u64,
        })
    }
}

/// The best frames that a partition has for places, by quality and id.
struct Known(FxHashMap<Place, (i64, i64)>);

impl Known {
    fn of(content: &Content) -> Known {
        let mut known = FxHashMap::default();
        for stack in content.rows.stacks.values() {
            for (index, place, frame) in content.places(stack) {
                if content.rows.modules[&place.module].build_id.is_empty() {
                    continue;
                }
                let row = (quality(&frame.module_name, &frame.calls), stack.frames[index]);
                let best = known.entry(place).or_insert(row);
                *best = row.max(*best);
            }
        }
        Known(known)
    }
}

#[derive(Default)]
struct Making {
    tables: Tables,
    texts: Texts,
    /// Stacks, frames and functions with rows.
    written: FxHashSet<i64>,
}

impl Making {
    /// Adds the rows of a stack with better names than this one, and returns its id and its
    /// quality; `None` if there are no better names.
    fn add_stack(&mut self, content: &Content, known: &Known, names: &Names, stack: &StackRow) -> Option<(i64, i64)> {
        let mut ids = stack.frames.clone();
        let (mut sum, mut is_better) = (0, false);
        let mut replaced: FxHashMap<usize, FrameRow> = FxHashMap::default();
        for (index, place, frame) in content.places(stack) {
            let own = quality(&frame.module_name, &frame.calls);
            let best = known.0.get(&place).copied().unwrap_or_default();
            let found = names.0.get(&place).filter(|(quality, _)| *quality > own.max(best.0));
            sum += own.max(best.0);
            if let Some((quality, calls)) = found {
                let frame = FrameRow {
                    calls: calls.clone(),
                    ..frame.clone()
                };
                sum += quality - own.max(best.0);
                ids[index] = id_of(&frame);
                self.add_frame(ids[index], &frame);
                replaced.insert(index, frame);
                is_better = true;
            } else if own < WITH_LINES && best.0 > own {
                ids[index] = best.1;
                is_better = true;
            }
        }
        if !is_better {
            return None;
        }
        let id = id::stack(&ids, &stack.ending, stack.late);
        if self.written.insert(id) {
            let cells = [
                Cell::Long(id),
                Cell::Longs(&ids),
                Cell::Text(self.texts.of(&stack.ending)),
                Cell::Bool(stack.late),
            ];
            table(&mut self.tables, &STACKS).push(cells);
            let frames = ids.iter().enumerate();
            let frames = frames.filter_map(|(index, id)| replaced.get(&index).or_else(|| content.rows.frames.get(id)));
            let functions = frames.filter(|frame| frame.kind != "marker").flat_map(|frame| {
                let of = |call: &CallRow| id::function(&call.function, &frame.module_name);
                frame.calls.iter().map(of)
            });
            frames::push_stack_functions(&mut self.tables, id, functions);
        }
        Some((id, sum))
    }

    fn add_frame(&mut self, id: i64, frame: &FrameRow) {
        if !self.written.insert(id) {
            return;
        }
        for call in &frame.calls {
            let function = id::function(&call.function, &frame.module_name);
            if self.written.insert(function) {
                frames::push_function(
                    &mut self.tables,
                    &mut self.texts,
                    function,
                    &call.function,
                    &frame.module_name,
                );
            }
        }
        let calls = frame.calls.iter().map(CallCells::from);
        frames::push_frame(&mut self.tables, &mut self.texts, id, place_of(frame), calls);
    }
}

fn place_of(frame: &FrameRow) -> PlaceCells<'_> {
    PlaceCells {
        kind: &frame.kind,
        module: frame.module,
        address: frame.address as i64,
        module_name: &frame.module_name,
    }
}

fn id_of(frame: &FrameRow) -> i64 {
    frames::frame_id(place_of(frame), frame.calls.iter().map(CallCells::from))
}
