//! Calls in which a function replaces what its own frame has saved.

use std::collections::BTreeSet;
use std::ops::Range;

use super::forward::{State, Value};
use super::instruction::{self, Effect, Flow, Number, Step};
use super::{Convention, Input, Reading, falls_through};

const RSI: Number = 6;
const RDI: Number = 7;

/// Code that runs in a frame whose saved registers, and return address, have become others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Its addresses. The call belongs to it, but not the call's first byte: before it, all is as
    /// it was.
    pub(crate) code: Range<u64>,
    /// The offset from the CFA of the word with the address at which the frame's caller continues;
    /// `None` where return addresses of other frames have changed, too.
    pub(crate) continues: Option<i32>,
}

/// The code from each call on that gives a frame what another one has saved. Both are described by
/// structures in the frame, which have at `within` the address where the caller continues: a first
/// call takes such a structure, and the CFA; these calls take the same one, and another one, of
/// which the code after them reads that address.
pub(crate) fn copied_contexts(range: Range<u64>, bytes: &[u8], within: i32) -> Vec<Copied> {
    let steps = instruction::decode(range.clone(), bytes);
    let input = Input {
        entries: &[range.start],
        range,
        bytes,
        convention: Convention::Compiled,
    };
    let reading = Reading::new(&input, &steps);
    let states: Vec<_> = reading.states(&reading.onwards()).collect();
    let arguments = |index: usize| match (&steps[index].flow, &states[index]) {
        (Flow::Call(Some(_)), Some(state)) => Some((cfa_offset(state, RDI)?, cfa_offset(state, RSI)?)),
        _ => None,
    };
    let first = (0..steps.len()).find_map(|index| Some((index, arguments(index).filter(|with| with.1 == 0)?.0)));
    let Some((first, own)) = first else { return Vec::new() };
    let Some(continues) = own.checked_add(within) else {
        return Vec::new();
    };
    let copies = |&index: &usize| {
        let other = arguments(index).filter(|&(one, other)| one == own && other != own);
        other.is_some_and(|(_, other)| {
            let mut following = (index + 1..steps.len()).take_while(|&next| !is_call(&steps[next]));
            following.any(|next| reads(&steps[next], states[next].as_ref()) == other.checked_add(within))
        })
    };
    let calls = (first + 1..steps.len()).filter(copies);
    calls.flat_map(|call| reached(&reading, call, continues)).collect()
}

fn cfa_offset(state: &State, register: Number) -> Option<i32> {
    match state.get(register) {
        Value::Cfa(offset) => Some(offset),
        _ => None,
    }
}

/// The offset from the CFA of the word that an instruction loads.
fn reads(step: &Step, state: Option<&State>) -> Option<i32> {
    let Effect::Load { base, offset, .. } = step.effect else {
        return None;
    };
    cfa_offset(state?, base)?.checked_add(offset)
}

/// The code that is reached from the call at `index` before the function is left, in order.
fn reached(reading: &Reading<'_>, index: usize, continues: i32) -> Vec<Copied> {
    let mut found = BTreeSet::new();
    let mut left = vec![index];
    while let Some(index) = left.pop() {
        let Some(step) = reading.steps.get(index) else { continue };
        if !found.insert(index) {
            continue;
        }
        left.extend(falls_through(step).then_some(index + 1));
        left.extend(reading.target(step));
    }
    // After the last call, the handler's address becomes the return address of the frame that the
    // handler's has called.
    let last_call = found
        .iter()
        .rev()
        .find(|&&index| is_call(&reading.steps[index]))
        .copied();
    let stores = |index: &&usize| {
        let effect = reading.steps[**index].effect;
        last_call < Some(**index) && matches!(effect, Effect::Store { .. } | Effect::StoreElsewhere)
    };
    let store = found.iter().find(stores).copied().or(last_call);
    let mut pieces: Vec<Copied> = Vec::new();
    for at in found {
        let step = &reading.steps[at];
        let code = step.address + u64::from(at == index)..step.address + u64::from(step.len);
        let continues = store.filter(|&store| at <= store).map(|_| continues);
        match pieces.last_mut() {
            Some(piece) if piece.code.end == code.start && piece.continues == continues => piece.code.end = code.end,
            _ => pieces.push(Copied { code, continues }),
        }
    }
    pieces
}

fn is_call(step: &Step) -> bool {
    matches!(step.flow, Flow::Call(_))
}
