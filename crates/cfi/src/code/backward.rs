//! Reads code backwards from returns: where an instruction's frame must be so that the returns
//! after it work.
//!
//! At `ret` the return address is on top of the stack, whatever came before. The effects of earlier
//! instructions on the registers show where the frame was at each of them; no entry has to be
//! known.

use super::instruction::{CALLER_SAVED, Effect, Flow, Number, RBP, RSP, Step};

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fp {
    Register(Number),
    /// In the word at a register plus an offset.
    Word(Number, i32),
    Unknown,
}

/// The frame in terms of the registers before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The CFA is this register plus [`Frame::offset`].
    pub(super) base: Number,
    pub(super) offset: i32,
    pub(super) fp: Fp,
    /// A call lies between the instruction and the return; it may never return.
    pub(super) crosses_call: bool,
}

/// The state before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No path to a return was found.
    Nothing,
    Frame(Frame),
    /// Paths to returns disagree, or one is not understood.
    Unclear,
}

impl State {
    /// The state at a return.
    pub(super) const RETURN: State = State::Frame(Frame {
        base: RSP,
        offset: 8,
        fp: Fp::Register(RBP),
        crosses_call: false,
    });

    /// The facts that both paths agree on.
    pub(super) fn join(self, other: State) -> State {
        match (self, other) {
            (State::Nothing, state) | (state, State::Nothing) => state,
            (State::Frame(one), State::Frame(other)) if one.base == other.base && one.offset == other.offset => {
                State::Frame(Frame {
                    fp: if one.fp == other.fp { one.fp } else { Fp::Unknown },
                    crosses_call: one.crosses_call || other.crosses_call,
                    ..one
                })
            }
            _ => State::Unclear,
        }
    }

    /// The state before the instruction, if this is the state after it.
    pub(super) fn before(self, step: &Step) -> State {
        match self {
            State::Frame(frame) => frame.before(step).map_or(State::Unclear, State::Frame),
            other => other,
        }
    }
}

impl Frame {
    fn before(mut self, step: &Step) -> Option<Frame> {
        let mut writes = step.writes;
        if matches!(step.flow, Flow::Call(_)) {
            writes |= CALLER_SAVED;
            self.crosses_call = true;
        }
        if has(writes, self.base) {
            return None;
        }
        self.fp = match self.fp {
            Fp::Register(number) | Fp::Word(number, _) if has(writes, number) => Fp::Unknown,
            fp => fp,
        };
        match step.effect {
            Effect::None | Effect::StoreElsewhere => {}
            Effect::Push(from) => {
                // The return goes to the value that is pushed there: it is no return of this frame.
                if (self.base, self.offset) == (RSP, 8) {
                    return None;
                }
                self.fp = match self.fp {
                    Fp::Word(RSP, 0) => from.map_or(Fp::Unknown, Fp::Register),
                    Fp::Word(RSP, offset) => Fp::Word(RSP, offset.checked_sub(8)?),
                    Fp::Register(RSP) => Fp::Unknown,
                    fp => fp,
                };
                if self.base == RSP {
                    self.offset = self.offset.checked_sub(8)?;
                }
            }
            Effect::Pop(to) => {
                if to.is_some_and(|to| to == self.base) {
                    return None;
                }
                self.fp = match (self.fp, to) {
                    (Fp::Register(number), Some(to)) if number == to => Fp::Word(RSP, 0),
                    (Fp::Word(number, _), Some(to)) if number == to => Fp::Unknown,
                    (Fp::Word(RSP, offset), _) => Fp::Word(RSP, offset.checked_add(8)?),
                    (Fp::Register(RSP), _) => Fp::Unknown,
                    (fp, _) => fp,
                };
                if self.base == RSP {
                    self.offset = self.offset.checked_add(8)?;
                }
            }
            Effect::Move { to, from, offset } => {
                self.fp = match self.fp {
                    Fp::Register(number) if number == to && offset == 0 => Fp::Register(from),
                    Fp::Register(number) if number == to => Fp::Unknown,
                    Fp::Word(number, at) if number == to => Fp::Word(from, at.checked_add(offset)?),
                    fp => fp,
                };
                if self.base == to {
                    self.base = from;
                    self.offset = self.offset.checked_add(offset)?;
                }
            }
            Effect::Load { to, base, offset } => {
                if self.base == to {
                    return None;
                }
                self.fp = match self.fp {
                    Fp::Register(number) if number == to => Fp::Word(base, offset),
                    Fp::Word(number, _) if number == to => Fp::Unknown,
                    fp => fp,
                };
            }
            Effect::Store {
                base,
                offset,
                bytes,
                from,
            } => self.store(base, offset, bytes, from)?,
            Effect::Leave => {
                self.fp = match self.fp {
                    Fp::Register(RBP) => Fp::Word(RBP, 0),
                    Fp::Word(RSP, offset) => Fp::Word(RBP, offset.checked_add(8)?),
                    Fp::Register(RSP) | Fp::Word(RBP, _) => Fp::Unknown,
                    fp => fp,
                };
                if self.base == RBP {
                    return None;
                }
                if self.base == RSP {
                    self.base = RBP;
                    self.offset = self.offset.checked_add(8)?;
                }
            }
        }
        Some(self)
    }

    fn store(&mut self, base: Number, offset: i32, bytes: u16, from: Option<Number>) -> Option<()> {
        let overlaps =
            |at: i32| i64::from(at) < i64::from(offset) + i64::from(bytes) && i64::from(offset) < i64::from(at) + 8;
        if base == self.base && overlaps(self.offset.checked_sub(8)?) {
            return None;
        }
        if let Fp::Word(number, at) = self.fp
            && number == base
            && overlaps(at)
        {
            self.fp = match from {
                Some(from) if at == offset && bytes == 8 => Fp::Register(from),
                _ => Fp::Unknown,
            };
        }
        Some(())
    }
}

fn has(mask: u16, number: Number) -> bool {
    mask & 1 << number != 0
}
