//! Calls in which a function replaces what its own frame has saved.

use std::collections::BTreeSet;
use std::ops::Range;

use super::forward::{State, Value};
use super::instruction::{self, Effect, Flow, Number, Step};
use super::{Convention, Input, Reading, falls_through};

/// Numbers of the instruction set, not of DWARF.
const RSI: Number = 6;
const RDI: Number = 7;

/// The most calls between one that replaces a frame and the way out of the function: libgcc has
/// one, for debuggers. And the most stores after the last one.
const MOST_CALLS: usize = 4;
const MOST_STORES: usize = 8;

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

/// The instructions of a function, by index, of any CPU.
pub(crate) trait Instructions {
    /// Their number.
    fn count(&self) -> usize;

    /// Where an instruction is.
    fn range(&self, index: usize) -> Range<u64>;

    /// The instructions that may come next.
    fn next(&self, index: usize) -> Vec<usize>;

    /// Whether an instruction calls a function.
    fn is_call(&self, index: usize) -> bool;

    /// Whether an instruction overwrites memory.
    fn is_store(&self, index: usize) -> bool;

    /// The first two arguments of a call, if they are addresses in the frame, as offsets from the
    /// CFA.
    fn arguments(&self, index: usize) -> Option<(i32, i32)>;

    /// The offset from the CFA of the word that an instruction loads.
    fn loads(&self, index: usize) -> Option<i32>;
}

/// The code from each call on that gives a frame what another one has saved. Both are described by
/// structures in the frame, which have at `within` the address where the caller continues: a first
/// call takes such a structure, and the CFA; these calls take the same one, and another one, of
/// which the code after them reads that address.
pub(crate) fn copied_contexts(code: &impl Instructions, within: i32) -> Vec<Copied> {
    let call = |index: usize| code.arguments(index).filter(|_| code.is_call(index));
    let first = (0..code.count()).find_map(|index| Some((index, call(index).filter(|with| with.1 == 0)?.0)));
    let Some((first, own)) = first else { return Vec::new() };
    let copies = |&index: &usize| {
        let other = call(index).filter(|&(one, other)| one == own && other != own);
        other.is_some_and(|(_, other)| {
            let mut following = (index + 1..code.count()).take_while(|&next| !code.is_call(next));
            following.any(|next| code.loads(next).is_some_and(|at| Some(at) == other.checked_add(within)))
        })
    };
    let Some(continues) = own.checked_add(within) else {
        return Vec::new();
    };
    let copying: Vec<usize> = (first + 1..code.count()).filter(copies).collect();
    if copying.len() > MOST_CALLS {
        return Vec::new();
    }
    let pieces = copying.into_iter().map(|call| pieces(code, call, continues));
    pieces.flatten().collect()
}

/// The code that is reached from the call at `call` before the function is left, in order.
fn pieces(code: &impl Instructions, call: usize, continues: i32) -> Vec<Copied> {
    let all = reached(code, &[call]);
    // After the last call, the handler's address becomes the return address of the frame that the
    // handler's has called.
    let mut last = call;
    for _ in 0..MOST_CALLS {
        let following = reached(code, &code.next(last));
        match following.iter().find(|&&index| index != call && code.is_call(index)) {
            Some(&next) => last = next,
            None => break,
        }
    }
    let after = reached(code, &code.next(last));
    let stores: Vec<usize> = after.iter().copied().filter(|&index| code.is_store(index)).collect();
    let behind = stores
        .iter()
        .take(MOST_STORES)
        .map(|&store| reached(code, &code.next(store)));
    let changed = behind.max_by_key(BTreeSet::len);
    let changed = changed.filter(|_| stores.len() <= MOST_STORES).unwrap_or(after);
    let mut pieces: Vec<Copied> = Vec::new();
    for index in all {
        let mut range = code.range(index);
        range.start += u64::from(index == call);
        let continues = (!changed.contains(&index)).then_some(continues);
        match pieces.last_mut() {
            Some(piece) if piece.code.end == range.start && piece.continues == continues => piece.code.end = range.end,
            _ => pieces.push(Copied { code: range, continues }),
        }
    }
    pieces
}

/// The instructions that are reached from some, with these.
fn reached(code: &impl Instructions, from: &[usize]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut left = from.to_vec();
    while let Some(index) = left.pop() {
        if index < code.count() && found.insert(index) {
            left.extend(code.next(index));
        }
    }
    found
}

/// A function of x86-64.
pub(crate) struct Function {
    steps: Vec<Step>,
    states: Vec<Option<State>>,
    targets: Vec<Option<usize>>,
}

impl Function {
    pub(crate) fn new(range: Range<u64>, bytes: &[u8]) -> Function {
        let steps = instruction::decode(range.clone(), bytes);
        let input = Input {
            entries: &[range.start],
            range,
            bytes,
            convention: Convention::Compiled,
        };
        let reading = Reading::new(&input, &steps);
        let states = reading.states(&reading.onwards()).collect();
        let targets = steps.iter().map(|step| reading.target(step)).collect();
        Function { steps, states, targets }
    }

    fn cfa_offset(&self, index: usize, register: Number) -> Option<i32> {
        match self.states[index]?.get(register) {
            Value::Cfa(offset) => Some(offset),
            _ => None,
        }
    }
}

impl Instructions for Function {
    fn count(&self) -> usize {
        self.steps.len()
    }

    fn range(&self, index: usize) -> Range<u64> {
        let step = &self.steps[index];
        step.address..step.address + u64::from(step.len)
    }

    fn next(&self, index: usize) -> Vec<usize> {
        let following = falls_through(&self.steps[index]).then_some(index + 1);
        following.into_iter().chain(self.targets[index]).collect()
    }

    fn is_call(&self, index: usize) -> bool {
        matches!(self.steps[index].flow, Flow::Call(_))
    }

    fn is_store(&self, index: usize) -> bool {
        matches!(self.steps[index].effect, Effect::Store { .. } | Effect::StoreElsewhere)
    }

    fn arguments(&self, index: usize) -> Option<(i32, i32)> {
        Some((self.cfa_offset(index, RDI)?, self.cfa_offset(index, RSI)?))
    }

    fn loads(&self, index: usize) -> Option<i32> {
        match self.steps[index].effect {
            Effect::Load { base, offset, .. } => self.cfa_offset(index, base)?.checked_add(offset),
            _ => None,
        }
    }
}
