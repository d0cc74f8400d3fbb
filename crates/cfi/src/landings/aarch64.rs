//! The instructions of a function of AArch64, as far as they make addresses in its frame.

use std::ops::Range;

use crate::code::Instructions;

const REGISTERS: usize = 32;
const SP: usize = 31;
/// `x19` to `x28` and the frame pointer: with the stack pointer, what a call preserves (AAPCS64,
/// section 6.1.1).
const PRESERVED: Range<usize> = 19..30;

/// Offsets from the CFA, of registers that have such an address.
type State = [Option<i32>; REGISTERS];

/// Where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Call,
    Jump(u64),
    Branch(u64),
    Stop,
}

pub(super) struct Function {
    start: u64,
    words: Vec<u32>,
    states: Vec<Option<State>>,
}

impl Function {
    /// `None` if the function does not leave for another frame.
    pub(super) fn new(range: Range<u64>, bytes: &[u8]) -> Option<Function> {
        let words = bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let mut function = Function {
            start: range.start,
            words,
            states: Vec::new(),
        };
        function.words.iter().any(|&word| moves_sp(word)).then_some(())?;
        function.states = function.states();
        Some(function)
    }

    fn address(&self, index: usize) -> u64 {
        self.start.wrapping_add(4 * index as u64)
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(self.start)? / 4).ok()?;
        (index < self.words.len()).then_some(index)
    }

    fn flow(&self, index: usize) -> Flow {
        let word = self.words[index];
        let target = |bits: u32, at: u32| {
            let words = (word >> at << (32 - bits)) as i32 >> (32 - bits);
            self.address(index).wrapping_add_signed(i64::from(words) * 4)
        };
        let is = |mask: u32, value: u32| word & mask == value;
        if is(0xfc00_0000, 0x9400_0000) || is(0xffff_fc1f, 0xd63f_0000) {
            Flow::Call
        } else if is(0xfc00_0000, 0x1400_0000) {
            Flow::Jump(target(26, 0))
        } else if is(0xff00_0000, 0x5400_0000) || is(0x7e00_0000, 0x3400_0000) {
            Flow::Branch(target(19, 5))
        } else if is(0x7e00_0000, 0x3600_0000) {
            Flow::Branch(target(14, 5))
        } else if is(0xfe00_0000, 0xd600_0000) || is(0xffe0_0000, 0xd420_0000) || is(0xffff_0000, 0) {
            // The other branches to a register, `brk`, and what is no instruction.
            Flow::Stop
        } else {
            Flow::Next
        }
    }

    /// What is known before each instruction that is reached from the first one.
    fn states(&self) -> Vec<Option<State>> {
        let mut states: Vec<Option<State>> = vec![None; self.words.len()];
        let mut left = Vec::new();
        if let Some(first) = states.first_mut() {
            let mut entry: State = [None; REGISTERS];
            entry[SP] = Some(0);
            *first = Some(entry);
            left.push(0);
        }
        // A further visit leaves fewer known registers, so this ends.
        while let Some(index) = left.pop() {
            let Some(before) = states[index] else { continue };
            let after = self.after(index, before);
            for next in self.next(index) {
                if let Some(known) = states.get_mut(next) {
                    let joined = known.map_or(after, |known| join(known, after));
                    if *known != Some(joined) {
                        *known = Some(joined);
                        left.push(next);
                    }
                }
            }
        }
        states
    }

    fn after(&self, index: usize, mut state: State) -> State {
        let word = self.words[index];
        let is = |mask: u32, value: u32| word & mask == value;
        let register = |at: u32| (word >> at & 31) as usize;
        let (to, from) = (register(0), register(5));
        if self.flow(index) == Flow::Call {
            for (number, value) in state.iter_mut().enumerate() {
                *value = value.filter(|_| PRESERVED.contains(&number) || number == SP);
            }
        } else if is(0xbf80_0000, 0x9100_0000) {
            // `add` and `sub` of an immediate, which `mov` to and from SP also is.
            let number = (word >> 10 & 0xfff) << if is(1 << 22, 1 << 22) { 12 } else { 0 };
            let number = if is(1 << 30, 1 << 30) {
                -(number as i32)
            } else {
                number as i32
            };
            state[to] = state[from].and_then(|value| value.checked_add(number));
        } else if is(0xffe0_ffe0, 0xaa00_03e0) {
            // `mov` of a register, of which number 31 is zero.
            let value = state[register(16)].filter(|_| register(16) != SP);
            if to != SP {
                state[to] = value;
            }
        } else if moves_sp(word) {
            state[SP] = None;
        } else if is_of_memory(word) {
            for register in loaded(word) {
                state[register] = None;
            }
            if writes_base(word) {
                state[from] = None;
            }
        } else if self.flow(index) == Flow::Next && to != SP {
            state[to] = None;
        }
        state
    }
}

impl Instructions for Function {
    fn count(&self) -> usize {
        self.words.len()
    }

    fn range(&self, index: usize) -> Range<u64> {
        self.address(index)..self.address(index).wrapping_add(4)
    }

    fn next(&self, index: usize) -> Vec<usize> {
        let flow = self.flow(index);
        let falls = matches!(flow, Flow::Next | Flow::Call | Flow::Branch(_));
        let jump = match flow {
            Flow::Jump(target) | Flow::Branch(target) => self.index(target),
            _ => None,
        };
        falls.then_some(index + 1).into_iter().chain(jump).collect()
    }

    fn is_call(&self, index: usize) -> bool {
        self.flow(index) == Flow::Call
    }

    fn is_store(&self, index: usize) -> bool {
        is_of_memory(self.words[index]) && is_store(self.words[index])
    }

    fn arguments(&self, index: usize) -> Option<(i32, i32)> {
        let state = self.states[index]?;
        Some((state[0]?, state[1]?))
    }

    /// Of `ldr` with an immediate offset.
    fn loads(&self, index: usize) -> Option<i32> {
        let word = self.words[index];
        let base = self.states[index]?[(word >> 5 & 31) as usize]?;
        let offset = 8 * (word >> 10 & 0xfff) as i32;
        (word & 0xffc0_0000 == 0xf940_0000).then(|| base.checked_add(offset))?
    }
}

/// Keeps what two states have in common.
fn join(mut one: State, other: State) -> State {
    for (value, other) in one.iter_mut().zip(other) {
        *value = value.filter(|_| *value == other);
    }
    one
}

/// Whether this is `add sp, sp, x0`, or with another register.
fn moves_sp(word: u32) -> bool {
    word & 0xffe0_ffff == 0x8b20_63ff
}

/// Whether this is a load or a store (A64 instruction set, section C4.1: `op1` is x1x0).
fn is_of_memory(word: u32) -> bool {
    word & 0x0a00_0000 == 0x0800_0000
}

/// Whether a load or a store is of two registers.
fn is_of_pair(word: u32) -> bool {
    word & 0x3a00_0000 == 0x2800_0000
}

/// Whether a load or a store is of one register, at an address that instructions of atomic access
/// don't have.
fn is_of_one(word: u32) -> bool {
    word & 0x3a00_0000 == 0x3800_0000
}

fn is_store(word: u32) -> bool {
    is_of_pair(word) && word >> 22 & 1 == 0 || is_of_one(word) && word >> 22 & 3 == 0
}

/// The general registers that a load, or a store, overwrites, apart from its base.
fn loaded(word: u32) -> impl Iterator<Item = usize> {
    let fields: &[u32] = if word >> 26 & 1 == 1 || is_store(word) {
        &[]
    } else if is_of_one(word) {
        &[0]
    } else {
        &[0, 10, 16]
    };
    let registers = fields.iter().map(move |at| (word >> at & 31) as usize);
    registers.filter(|register| *register != SP)
}

/// Whether a load or a store changes its base.
fn writes_base(word: u32) -> bool {
    match is_of_pair(word) {
        true => word >> 23 & 1 == 1,
        false => word & 0x3b20_0400 == 0x3800_0400,
    }
}
