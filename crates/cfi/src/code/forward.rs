//! Reads code forwards from a function's entry: where its frame is, if all paths agree.

use super::instruction::{Effect, Flow, Number, RBP, REGISTERS, RSP, Step};

/// The value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    /// The CFA plus an offset.
    Cfa(i32),
    /// The frame pointer's value at the entry.
    EntryFp,
}

/// The state before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    registers: [Value; REGISTERS],
    /// Offset from the CFA of the word that holds the entry's frame pointer.
    saved_fp: Option<i32>,
}

impl State {
    /// The state at an entry: the return address has just been pushed.
    pub(super) const ENTRY: State = {
        let mut registers = [Value::Unknown; REGISTERS];
        registers[RSP as usize] = Value::Cfa(-8);
        registers[RBP as usize] = Value::EntryFp;
        State {
            registers,
            saved_fp: None,
        }
    };

    pub(super) fn get(&self, number: Number) -> Value {
        self.registers[usize::from(number) % REGISTERS]
    }

    pub(super) fn saved_fp(&self) -> Option<i32> {
        self.saved_fp
    }

    fn set(&mut self, number: Number, value: Value) {
        self.registers[usize::from(number) % REGISTERS] = value;
    }

    fn moved(&self, number: Number, by: i32) -> Value {
        match self.get(number) {
            Value::Cfa(offset) => offset.checked_add(by).map_or(Value::Unknown, Value::Cfa),
            Value::EntryFp if by == 0 => Value::EntryFp,
            _ => Value::Unknown,
        }
    }

    fn word(&self, base: Number, offset: i32) -> Value {
        match self.moved(base, offset) {
            Value::Cfa(offset) if self.saved_fp == Some(offset) => Value::EntryFp,
            _ => Value::Unknown,
        }
    }

    fn store(&mut self, base: Number, offset: i32, bytes: u16, value: Value) {
        let Value::Cfa(offset) = self.moved(base, offset) else {
            return;
        };
        if i64::from(offset) < 0 && i64::from(offset) + i64::from(bytes) > -8 {
            self.lose();
        } else if value == Value::EntryFp && bytes == 8 {
            self.saved_fp = Some(offset);
        } else if let Some(saved) = self.saved_fp
            && i64::from(saved) < i64::from(offset) + i64::from(bytes)
            && i64::from(offset) < i64::from(saved) + 8
        {
            self.saved_fp = None;
        }
    }

    /// The state after the instruction, on every path that continues from it.
    pub(super) fn after(mut self, step: &Step, clobbered: u16) -> State {
        match step.effect {
            Effect::None | Effect::StoreElsewhere => {}
            Effect::Push(from) => {
                let value = from.map_or(Value::Unknown, |from| self.get(from));
                self.store(RSP, -8, 8, value);
                self.set(RSP, self.moved(RSP, -8));
            }
            Effect::Pop(to) => {
                let value = self.word(RSP, 0);
                self.set(RSP, self.moved(RSP, 8));
                if let Some(to) = to {
                    self.set(to, value);
                }
            }
            Effect::Move { to, from, offset } => self.set(to, self.moved(from, offset)),
            Effect::Load { to, base, offset } => self.set(to, self.word(base, offset)),
            Effect::Store {
                base,
                offset,
                bytes,
                from,
            } => {
                let value = from.map_or(Value::Unknown, |from| self.get(from));
                self.store(base, offset, bytes, value);
            }
            Effect::Leave => {
                let value = self.word(RBP, 0);
                self.set(RSP, self.moved(RBP, 8));
                self.set(RBP, value);
            }
        }
        self.forget(step.writes);
        // Everything above has been popped, including the return address.
        if matches!(self.get(RSP), Value::Cfa(offset) if offset > -8 && step.flow != Flow::Return) {
            self.lose();
        }
        if matches!(step.flow, Flow::Call(_)) {
            self.forget(clobbered);
        }
        self
    }

    /// Forgets everything: the return address is no longer in its place.
    fn lose(&mut self) {
        self.forget(u16::MAX);
        self.saved_fp = None;
    }

    fn forget(&mut self, mask: u16) {
        for number in 0..REGISTERS as Number {
            if mask & 1 << number != 0 {
                self.set(number, Value::Unknown);
            }
        }
    }

    /// Keeps only what `other` agrees with; returns whether that is less than before.
    pub(super) fn join(&mut self, other: &State) -> bool {
        let before = *self;
        for (value, other) in self.registers.iter_mut().zip(&other.registers) {
            if value != other {
                *value = Value::Unknown;
            }
        }
        if self.saved_fp != other.saved_fp {
            self.saved_fp = None;
        }
        before != *self
    }
}
