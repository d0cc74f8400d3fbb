//! Rows of frames and of the functions on stacks, whatever they are made from.

use backtrail_profile::Call;
use rustc_hash::FxHashSet;

use crate::id::{self, Id};
use crate::rows::{Cell, Tables, Texts, table};
use crate::selection::CallRow;
use crate::tables;

/// A place in code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceCells<'a> {
    pub(crate) kind: &'a str,
    pub(crate) module: i64,
    pub(crate) address: i64,
    pub(crate) module_name: &'a str,
}

/// A call at a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallCells<'a> {
    pub(crate) function: &'a str,
    pub(crate) file: &'a str,
    pub(crate) line: i64,
    pub(crate) inlined: bool,
    pub(crate) from_start: i64,
}

impl<'a> From<&'a Call> for CallCells<'a> {
    fn from(call: &'a Call) -> Self {
        CallCells {
            function: &call.function,
            file: call.file.as_deref().unwrap_or_default(),
            line: call.line.unwrap_or(0).into(),
            inlined: call.inlined,
            from_start: call.offset.map_or(-1, |offset| offset as i64),
        }
    }
}

impl<'a> From<&'a CallRow> for CallCells<'a> {
    fn from(call: &'a CallRow) -> Self {
        CallCells {
            function: &call.function,
            file: &call.file,
            line: call.line.into(),
            inlined: call.inlined,
            from_start: call.from_start.map_or(-1, |offset| offset as i64),
        }
    }
}

/// The id of a frame with these calls.
pub(crate) fn frame_id<'a>(place: PlaceCells<'_>, calls: impl IntoIterator<Item = CallCells<'a>>) -> i64 {
    let id = Id::new(place.kind)
        .number(place.module)
        .number(place.address)
        .text(place.module_name);
    let add = |id: Id, call: CallCells<'_>| {
        id.text(call.function)
            .text(call.file)
            .number(call.line)
            .number(call.inlined.into())
            .number(call.from_start)
    };
    calls.into_iter().fold(id, add).finish()
}

/// Adds the rows of a frame.
pub(crate) fn push_frame<'a>(
    tables: &mut Tables,
    texts: &mut Texts,
    id: i64,
    place: PlaceCells<'_>,
    calls: impl IntoIterator<Item = CallCells<'a>>,
) {
    for (depth, call) in calls.into_iter().enumerate() {
        let cells = [
            Cell::Long(id),
            Cell::Int(depth as i32),
            Cell::Text(texts.of(place.kind)),
            Cell::Long(place.module),
            Cell::Long(place.address),
            Cell::Long(id::function(call.function, place.module_name)),
            Cell::Text(texts.of(call.function)),
            Cell::Text(texts.of(place.module_name)),
            Cell::Text(texts.of(call.file)),
            Cell::Long(call.line),
            Cell::Bool(call.inlined),
            Cell::Long(call.from_start),
        ];
        table(tables, &tables::FRAMES).push(cells);
    }
}

/// Adds the row of a function.
pub(crate) fn push_function(tables: &mut Tables, texts: &mut Texts, id: i64, function: &str, module: &str) {
    let cells = [
        Cell::Long(id),
        Cell::Text(texts.of(function)),
        Cell::Text(texts.of(module)),
    ];
    table(tables, &tables::FUNCTIONS).push(cells);
}

/// Adds the rows of a stack's functions, which are passed from the innermost on.
pub(crate) fn push_stack_functions(tables: &mut Tables, stack: i64, functions: impl IntoIterator<Item = i64>) {
    let mut on_stack = FxHashSet::default();
    for function in functions {
        let is_self = on_stack.is_empty();
        if on_stack.insert(function) {
            let cells = [Cell::Long(stack), Cell::Long(function), Cell::Bool(is_self)];
            table(tables, &tables::STACK_FUNCTIONS).push(cells);
        }
    }
}
