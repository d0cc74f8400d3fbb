//! Rows from the code itself, for functions whose frames no table describes; x86-64 only.
//!
//! Two readings of the instructions have to agree. Reading forwards from entries finds the frame
//! because an entry's return address was just pushed; reading backwards from returns finds it
//! because a return pops its address from the top of the stack. A row is written if all paths
//! through the code agree; an instruction that is not understood gets no row.

mod backward;
mod contexts;
mod forward;
mod instruction;

use std::collections::BTreeMap;
use std::ops::Range;

use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};

pub(crate) use contexts::{Copied, Function, Instructions, copied_contexts};
use instruction::{CALLER_SAVED, Effect, Flow, Number, RBP, REGISTERS, RSP, Step, dwarf};

/// Passes of the backward reading, which needs one more than the depth of nested loops.
const MAX_PASSES: usize = 32;
/// Visits of one place by the forward reading: each visit leaves fewer known facts.
const MAX_VISITS: usize = 64;

/// A place that no rule can name, as no frame has a register with this number: of a frame pointer
/// that a hand-written helper has overwritten, which the helper's caller has saved, and of what
/// libgcc has overwritten.
pub(crate) const LOST: Location = Location {
    base: Base::Register(backtrail_arch::REGISTERS as u8),
    offset: 0,
    deref: true,
};

/// The convention of the calls in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Convention {
    /// The System V ABI's. Hand-written code does not always follow it, so a call is not trusted to
    /// restore the stack pointer.
    C,
    /// The same in code by a compiler, whose calls do.
    Compiled,
    /// Go's, whose functions preserve only the stack pointer and the frame pointer; and that of its
    /// runtime, which loads the stack pointer of another stack.
    Go,
}

/// Code that is read as a whole.
pub(crate) struct Input<'a> {
    /// Its address.
    pub(crate) range: Range<u64>,
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
    /// Addresses of called functions, in order.
    pub(crate) entries: &'a [u64],
    pub(crate) convention: Convention,
}

/// The rows that this code shows, in pieces that begin at entries and after gaps.
pub(crate) fn rows(input: &Input<'_>) -> Vec<FunctionRows> {
    let steps = instruction::decode(input.range.clone(), input.bytes);
    let reading = Reading::new(input, &steps);
    let onwards = reading.onwards();
    let backwards = reading.backwards();
    reading.rows(&onwards, &backwards)
}

/// The rule that all calls have in common, by the stack pointer at them. At code that is reached
/// only by exceptions, it has the value that it had at one of these calls.
pub(crate) fn rule_of_calls(input: &Input<'_>) -> Option<Rule> {
    let steps = instruction::decode(input.range.clone(), input.bytes);
    let reading = Reading::new(input, &steps);
    let onwards = reading.onwards();
    let states = reading.states(&onwards);
    let calls = steps
        .iter()
        .zip(states)
        .filter(|(step, _)| matches!(step.flow, Flow::Call(_)));
    let mut rules = calls
        .filter_map(|(_, state)| state)
        .map(|state| reading.rule(Some(&state), &backward::State::Nothing));
    let first = rules.next()??;
    let is_common = first.cfa.base == Base::Register(dwarf(RSP)) && rules.all(|rule| rule == Some(first));
    is_common.then_some(first)
}

/// The rows of the code from which a return is reached without a call, whatever leads to it.
pub(crate) fn returning(range: Range<u64>, bytes: &[u8]) -> Vec<FunctionRows> {
    let steps = instruction::decode(range, bytes);
    let reading = Reading {
        convention: Convention::C,
        steps: &steps,
        entries: Vec::new(),
    };
    let backwards = reading.backwards();
    reading.rows(&BTreeMap::new(), &backwards)
}

/// The end of the code that leaves the frame pointer, set at `from`, unchanged on all paths that
/// lead there.
pub(crate) fn keeps_fp_until(range: Range<u64>, bytes: &[u8], from: u64) -> u64 {
    let steps = instruction::decode(range.clone(), bytes);
    let from_address = from;
    let returns = |index: usize| steps.get(index + 1).is_some_and(|next| next.flow == Flow::Return);
    // A slot that only ever holds the saved frame pointer restores it unchanged.
    let is_aside = |base: Number, offset: i32| {
        let mut stores = steps.iter().filter_map(|step| match step.effect {
            Effect::Store {
                base: other,
                offset: at,
                from,
                ..
            } if step.address >= from_address && (other, at) == (base, offset) => Some(from),
            _ => None,
        });
        base == RSP && stores.next() == Some(Some(RBP)) && stores.all(|from| from == Some(RBP))
    };
    let sets_fp = |(index, step): &(usize, &Step)| {
        let written = match step.effect {
            Effect::Pop(Some(to)) => to == RBP && !returns(*index),
            Effect::Load { to, base, offset } => to == RBP && !is_aside(base, offset),
            Effect::Move { to, .. } => to == RBP,
            Effect::Leave => !returns(*index),
            _ => false,
        };
        step.address >= from && (written || step.writes & 1 << RBP != 0)
    };
    let set = steps.iter().enumerate().find(sets_fp);
    let Some(end) = set.map(|(_, step)| step.address) else {
        return range.end;
    };
    let leads_back = |step: &Step| match step.flow {
        Flow::Jump(target) | Flow::Branch(target) => step.address >= end && (from..=end).contains(&target),
        _ => false,
    };
    if steps.iter().any(leads_back) { from } else { end }
}

struct Reading<'a> {
    convention: Convention,
    steps: &'a [Step],
    /// The indices of the instructions at entries, in order: the known entries, and those that this
    /// code calls.
    entries: Vec<usize>,
}

impl<'a> Reading<'a> {
    fn new(input: &Input<'_>, steps: &'a [Step]) -> Reading<'a> {
        let index = |address| index_of(steps, address);
        let known = input.entries.iter().filter_map(|&entry| index(entry));
        let called = steps.iter().filter_map(|step| match step.flow {
            Flow::Call(Some(target)) => index(target),
            _ => None,
        });
        let mut entries: Vec<usize> = known.chain(called).collect();
        entries.sort_unstable();
        entries.dedup();
        Reading {
            convention: input.convention,
            steps,
            entries,
        }
    }

    /// The registers that a call may change.
    fn clobbered(&self) -> u16 {
        match self.convention {
            Convention::C => CALLER_SAVED | 1 << RSP,
            Convention::Compiled => CALLER_SAVED,
            Convention::Go => !(1 << RSP | 1 << RBP),
        }
    }

    fn is_entry(&self, index: usize) -> bool {
        self.entries.binary_search(&index).is_ok()
    }

    fn index(&self, address: u64) -> Option<usize> {
        index_of(self.steps, address)
    }

    /// The state at the start of each piece of straight code that is reachable from an entry.
    fn onwards(&self) -> BTreeMap<usize, forward::State> {
        let mut known: BTreeMap<usize, forward::State> = BTreeMap::new();
        let mut left: Vec<usize> = self.entries.clone();
        known.extend(self.entries.iter().map(|&entry| (entry, forward::State::ENTRY)));
        let targets: Vec<usize> = {
            let mut targets: Vec<usize> = self.steps.iter().filter_map(|step| self.target(step)).collect();
            targets.sort_unstable();
            targets.dedup();
            targets
        };
        let mut budget = MAX_VISITS.saturating_mul(self.entries.len() + targets.len());
        while let Some(start) = left.pop() {
            let (Some(mut state), Some(rest)) = (known.get(&start).copied(), budget.checked_sub(1)) else {
                return BTreeMap::new();
            };
            budget = rest;
            for (index, step) in self.steps.iter().enumerate().skip(start) {
                let is_other = index != start && (self.is_entry(index) || targets.binary_search(&index).is_ok());
                if is_other {
                    self.arrive(index, &state, &mut known, &mut left);
                    break;
                }
                state = state.after(step, self.clobbered());
                if let Some(target) = self.target(step) {
                    self.arrive(target, &state, &mut known, &mut left);
                }
                if !falls_through(step) {
                    break;
                }
            }
        }
        known
    }

    /// The state before each instruction that is reachable from an entry.
    fn states(&self, onwards: &BTreeMap<usize, forward::State>) -> impl Iterator<Item = Option<forward::State>> {
        let mut state: Option<forward::State> = None;
        self.steps.iter().enumerate().map(move |(index, step)| {
            let before = onwards.get(&index).copied().or(state);
            state = before.filter(|_| falls_through(step));
            state = state.map(|state| state.after(step, self.clobbered()));
            before
        })
    }

    /// The index of the instruction to which this one jumps, if it is in this code.
    fn target(&self, step: &Step) -> Option<usize> {
        match step.flow {
            Flow::Jump(target) | Flow::Branch(target) => self.index(target),
            _ => None,
        }
    }

    fn arrive(
        &self,
        index: usize,
        state: &forward::State,
        known: &mut BTreeMap<usize, forward::State>,
        left: &mut Vec<usize>,
    ) {
        if self.is_entry(index) {
            return;
        }
        let changed = match known.get_mut(&index) {
            Some(before) => before.join(state),
            None => {
                known.insert(index, *state);
                true
            }
        };
        if changed {
            left.push(index);
        }
    }

    /// The state before each instruction, from the returns that come after it.
    fn backwards(&self) -> Vec<backward::State> {
        let mut states = vec![backward::State::Nothing; self.steps.len()];
        for _ in 0..MAX_PASSES {
            let mut changed = false;
            for index in (0..self.steps.len()).rev() {
                let state = self.behind(index, &states).before(&self.steps[index]);
                changed |= state != states[index];
                states[index] = state;
            }
            if !changed {
                return states;
            }
        }
        vec![backward::State::Unclear; self.steps.len()]
    }

    /// The state after an instruction.
    fn behind(&self, index: usize, states: &[backward::State]) -> backward::State {
        let step = &self.steps[index];
        let next = || match states.get(index + 1) {
            // A call that is followed by another function's entry does not return.
            Some(_) if matches!(step.flow, Flow::Call(_)) && self.is_entry(index + 1) => backward::State::Nothing,
            Some(state) => *state,
            None => backward::State::Nothing,
        };
        let at = |address| match self.index(address) {
            Some(target) => states[target],
            // Go's runtime leaves a stack for good by a jump; the top of the new stack is then no
            // return address of this frame.
            None => backward::State::Nothing,
        };
        match step.flow {
            Flow::Next | Flow::Call(_) => next(),
            Flow::Return => backward::State::RETURN,
            Flow::Jump(target) => at(target),
            Flow::Branch(target) => next().join(at(target)),
            Flow::Stop => backward::State::Nothing,
        }
    }

    fn rows(&self, onwards: &BTreeMap<usize, forward::State>, backwards: &[backward::State]) -> Vec<FunctionRows> {
        let mut rows = Vec::new();
        let states = self.states(onwards);
        for ((index, step), (state, backwards)) in self.steps.iter().enumerate().zip(states.zip(backwards)) {
            if let Some(rule) = self.rule_at(step, state.as_ref(), backwards) {
                add(&mut rows, step, rule, self.is_entry(index));
            }
        }
        rows
    }

    /// The rule at an instruction. The rule at a call is used after the call has returned: in code
    /// that may not follow a convention, the code after it has to agree.
    fn rule_at(&self, step: &Step, onwards: Option<&forward::State>, backwards: &backward::State) -> Option<Rule> {
        let is_call = self.convention == Convention::C && matches!(step.flow, Flow::Call(_));
        let agree = |state: &forward::State| {
            matches!(backwards, backward::State::Frame(frame)
                if state.get(frame.base) == forward::Value::Cfa(frame.offset.wrapping_neg()))
        };
        if is_call && !onwards.is_some_and(agree) {
            return None;
        }
        self.rule(onwards, backwards)
    }

    fn rule(&self, onwards: Option<&forward::State>, backwards: &backward::State) -> Option<Rule> {
        let backwards = match backwards {
            backward::State::Frame(frame) => Some(frame),
            _ => None,
        };
        let found = onwards.and_then(|state| Some((state, Found::of(state)?)));
        match (found, backwards) {
            (None, None) => None,
            (None, Some(frame)) => by_return(frame).filter(|_| !frame.crosses_call),
            (Some((state, found)), None) => self.by_entry(state, &found, None),
            (Some((state, found)), Some(frame)) => match state.get(frame.base) {
                forward::Value::Cfa(offset) if offset == frame.offset.wrapping_neg() => {
                    self.by_entry(state, &found, Some(frame))
                }
                forward::Value::Unknown => self.by_entry(state, &found, None),
                _ if frame.crosses_call => self.by_entry(state, &found, None),
                _ => None,
            },
        }
    }

    /// The rule from the forward reading; the frame pointer may come from the backward reading.
    fn by_entry(&self, state: &forward::State, found: &Found, frame: Option<&backward::Frame>) -> Option<Rule> {
        let fp = match (state.get(RBP), state.saved_fp()) {
            (forward::Value::EntryFp, _) => None,
            (_, Some(slot)) => Some(Location::saved(slot)),
            _ => by_return(frame?)?.fp,
        };
        if self.convention == Convention::Go && state.get(RSP) == forward::Value::Unknown {
            let is_usual = (found.base, found.offset, fp) == (RBP, 16, Some(Location::saved(-16)));
            return is_usual.then(|| on_other_stack(dwarf(RBP)));
        }
        let cfa = Location::register(dwarf(found.base), found.offset);
        Some(Rule {
            fp,
            ..Rule::new(cfa, Location::saved(-8))
        })
    }
}

/// The rule of a frame that the frame pointer `fp` points to while the stack pointer points into
/// another stack: everything counts from the frame pointer, and nothing from the CFA.
fn on_other_stack(fp: u8) -> Rule {
    let word = |offset| Location {
        base: Base::Register(fp),
        offset,
        deref: true,
    };
    Rule {
        fp: Some(word(0)),
        ..Rule::new(Location::register(fp, 16), word(8))
    }
}

/// The CFA from the forward reading.
struct Found {
    base: Number,
    offset: i32,
}

impl Found {
    fn of(state: &forward::State) -> Option<Found> {
        let others = (0..REGISTERS as Number).filter(|number| ![RSP, RBP].contains(number));
        [RSP, RBP]
            .into_iter()
            .chain(others)
            .find_map(|base| match state.get(base) {
                forward::Value::Cfa(offset) => Some(Found {
                    base,
                    offset: offset.checked_neg()?,
                }),
                _ => None,
            })
    }
}

/// The rule from the backward reading.
fn by_return(frame: &backward::Frame) -> Option<Rule> {
    let fp = match frame.fp {
        backward::Fp::Register(RBP) => None,
        backward::Fp::Register(number) => Some(Location::register(dwarf(number), 0)),
        backward::Fp::Word(base, offset) if base == frame.base => {
            Some(Location::saved(offset.checked_sub(frame.offset)?))
        }
        backward::Fp::Word(base, offset) => Some(Location {
            base: Base::Register(dwarf(base)),
            offset,
            deref: true,
        }),
        backward::Fp::Unknown => return None,
    };
    Some(Rule {
        fp,
        ..Rule::new(Location::register(dwarf(frame.base), frame.offset), Location::saved(-8))
    })
}

fn falls_through(step: &Step) -> bool {
    matches!(step.flow, Flow::Next | Flow::Branch(_) | Flow::Call(_))
}

fn index_of(steps: &[Step], address: u64) -> Option<usize> {
    steps.binary_search_by_key(&address, |step| step.address).ok()
}

/// Adds the rule of an instruction.
fn add(pieces: &mut Vec<FunctionRows>, step: &Step, rule: Rule, begins: bool) {
    let row = |start| Row {
        start,
        rule: Some(rule),
    };
    if let Some(piece) = pieces.last_mut()
        && !begins
        && piece.start + u64::from(piece.size) == step.address
        && let Some(size) = piece.size.checked_add(step.len.into())
    {
        if piece.rows.last().is_none_or(|last| last.rule != Some(rule)) {
            piece.rows.push(row(piece.size));
        }
        piece.size = size;
        return;
    }
    pieces.push(FunctionRows::new(step.address, step.len.into(), vec![row(0)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;

    fn read(code: &[u8]) -> Vec<FunctionRows> {
        read_as(Convention::Go, code)
    }

    fn read_as(convention: Convention, code: &[u8]) -> Vec<FunctionRows> {
        rows(&Input {
            range: START..START + code.len() as u64,
            bytes: code,
            entries: &[START],
            convention,
        })
    }

    /// The rule at an offset.
    fn at(rows: &[FunctionRows], offset: u64) -> Option<Rule> {
        let address = START + offset;
        let piece = rows
            .iter()
            .find(|piece| (piece.start..piece.start + u64::from(piece.size)).contains(&address))?;
        let within = (address - piece.start) as u32;
        piece.rows.iter().rev().find(|row| row.start <= within)?.rule
    }

    fn by_sp(offset: i32, fp: Option<Location>) -> Option<Rule> {
        Some(Rule {
            fp,
            ..Rule::new(Location::register(7, offset), Location::saved(-8))
        })
    }

    #[test]
    fn a_switch_of_stacks_is_left_by_the_frame_pointer() {
        let code = [
            0x55, // 0: push rbp
            0x48, 0x89, 0xe5, // 1: mov rbp, rsp
            0x48, 0x8b, 0x62, 0x38, // 4: mov rsp, [rdx+0x38]
            0xff, 0xd7, // 8: call rdi
            0x48, 0x8b, 0x60, 0x38, // 10: mov rsp, [rax+0x38]
            0x48, 0x8b, 0x68, 0x60, // 14: mov rbp, [rax+0x60]
            0x5d, // 18: pop rbp
            0xc3, // 19: ret
        ];
        let rows = read(&code);
        assert_eq!(at(&rows, 0), by_sp(8, None));
        assert_eq!(at(&rows, 1), by_sp(16, None));
        for offset in [8, 9, 10, 14] {
            assert_eq!(at(&rows, offset), Some(on_other_stack(6)), "{offset}");
        }
        // Only the backward reading knows the frame here.
        assert_eq!(at(&rows, 18), by_sp(16, Some(Location::saved(-16))));
        assert_eq!(at(&rows, 19), by_sp(8, None));
    }

    #[test]
    fn a_switch_without_a_frame_pointer_has_no_rows() {
        // mov rsp, [rdx+0x38]; call rdi; mov rsp, [rax+0x38]; ret
        let code = [0x48, 0x8b, 0x62, 0x38, 0xff, 0xd7, 0x48, 0x8b, 0x60, 0x38, 0xc3];
        let rows = read(&code);
        assert_eq!(at(&rows, 0), by_sp(8, None));
        for offset in [4, 5, 6] {
            assert_eq!(at(&rows, offset), None, "{offset}");
        }
        assert_eq!(at(&rows, 10), by_sp(8, None));
        // push rbp; mov rbp, rsp; xor ebp, ebp; mov rsp, rax; call rdi; int3
        let lost = [0x55, 0x48, 0x89, 0xe5, 0x31, 0xed, 0x48, 0x89, 0xc4, 0xff, 0xd7, 0xcc];
        assert_eq!(at(&read(&lost), 9), None);
    }

    #[test]
    fn ways_that_disagree_give_nothing() {
        // test eax, eax; je +1; push rbx; nop; jmp rax: one path has pushed one more word.
        let code = [0x85, 0xc0, 0x74, 0x01, 0x53, 0x90, 0xff, 0xe0];
        let rows = read(&code);
        assert_eq!(at(&rows, 4), by_sp(8, None));
        assert_eq!(at(&rows, 5), None);
        // A loop that pushes.
        assert_eq!(at(&read(&[0x53, 0xeb, 0xfd]), 0), by_sp(8, None));
    }

    #[test]
    fn return_addresses_that_are_made_are_none() {
        // mov rsp, rdi; push rax; ret
        let rows = read(&[0x48, 0x89, 0xfc, 0x50, 0xc3]);
        assert_eq!(at(&rows, 3), None);
    }

    #[test]
    fn an_aligned_frame_stands_on_the_register_that_keeps_the_old_one() {
        let code = [
            0x48, 0x83, 0xec, 0x10, // 0: sub rsp, 0x10
            0x48, 0x89, 0x1c, 0x24, // 4: mov [rsp], rbx
            0x48, 0x89, 0x6c, 0x24, 0x08, // 8: mov [rsp+8], rbp
            0x48, 0x89, 0xe3, // 13: mov rbx, rsp
            0x48, 0x83, 0xe4, 0xc0, // 16: and rsp, -64
            0x31, 0xed, // 20: xor ebp, ebp
            0x48, 0x89, 0xdc, // 22: mov rsp, rbx
            0x48, 0x8b, 0x1c, 0x24, // 25: mov rbx, [rsp]
            0x48, 0x8b, 0x6c, 0x24, 0x08, // 29: mov rbp, [rsp+8]
            0x48, 0x83, 0xc4, 0x10, // 34: add rsp, 0x10
            0xc3, // 38: ret
        ];
        let rows = read_as(Convention::C, &code);
        let saved = Some(Location::saved(-16));
        assert_eq!(at(&rows, 0), by_sp(8, None));
        assert_eq!(at(&rows, 13), by_sp(24, None));
        let aligned = Rule {
            fp: saved,
            ..Rule::new(Location::register(3, 24), Location::saved(-8))
        };
        assert_eq!(at(&rows, 22), Some(aligned));
        assert_eq!(at(&rows, 25), by_sp(24, saved));
        assert_eq!(at(&rows, 34), by_sp(24, None));
        assert_eq!(at(&rows, 38), by_sp(8, None));
    }

    #[test]
    fn calls_and_moved_return_addresses_are_not_believed() {
        // push rbx; call +0; test; jmp rax: the call may have popped any number of bytes.
        let code = [0x53, 0xe8, 0x10, 0, 0, 0, 0x90, 0xff, 0xe0];
        let rows = read_as(Convention::C, &code);
        assert_eq!((at(&rows, 0), at(&rows, 1), at(&rows, 6)), (by_sp(8, None), None, None));
        // push rbx; call +0; pop rbx; ret: the return shows that it has popped nothing.
        let rows = read_as(Convention::C, &[0x53, 0xe8, 0x10, 0, 0, 0, 0x5b, 0xc3]);
        assert_eq!((at(&rows, 1), at(&rows, 6)), (by_sp(16, None), by_sp(16, None)));
        // pop rax; push rbp; push rax; jmp rcx: this code makes its caller's frame.
        let rows = read_as(Convention::C, &[0x58, 0x55, 0x50, 0xff, 0xe1]);
        assert_eq!(at(&rows, 0), by_sp(8, None));
        for offset in [1, 2, 3] {
            assert_eq!(at(&rows, offset), None, "{offset}");
        }
    }

    #[test]
    fn any_bytes_are_read() {
        let mut state = 0x2545_f491_u32;
        let mut code = [0; 96];
        for _ in 0..3000 {
            for byte in &mut code {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            for piece in read(&code) {
                assert!(piece.start >= START && piece.start + u64::from(piece.size) <= START + 128);
            }
        }
    }
}
