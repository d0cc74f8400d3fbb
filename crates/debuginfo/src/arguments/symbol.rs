//! Symbolic values, with which expressions are evaluated.

use backtrail_args::table::write::Location;
use backtrail_args::table::{Operation, Outcome, Step, Value, compute};

/// Steps of the longest computation that is stored; a longer one is dropped.
const MOST_STEPS: usize = 16;

/// A value on the stack of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Constant(i64),
    Address(u64),
    /// A register, plus an offset.
    Register(u8, i64),
    /// The canonical frame address, plus an offset.
    Frame(i64),
    /// A register at the function's entry, plus an offset.
    Entry(u8, i64),
    /// The eight bytes at a place: [`Value::AtRegister`], [`Value::AtFrame`] or
    /// [`Value::AtAddress`].
    Loaded(Value),
    Computed(Vec<Step>),
    Unknown,
}

impl Symbol {
    /// The symbol as a single value, if that is enough.
    fn single(&self) -> Option<Value> {
        Some(match *self {
            Symbol::Constant(number) => Value::Constant(number),
            Symbol::Address(address) => Value::Address(address),
            Symbol::Register(register, offset) => Value::Register(register, offset),
            Symbol::Frame(offset) => Value::Frame(offset),
            Symbol::Entry(register, offset) => Value::Entry(register, offset),
            Symbol::Loaded(value) => value,
            Symbol::Computed(_) | Symbol::Unknown => return None,
        })
    }

    fn steps(&self) -> Option<Vec<Step>> {
        match self {
            Symbol::Computed(steps) => Some(steps.clone()),
            other => Some(vec![Step::Push(other.single()?)]),
        }
    }

    /// The symbol, as it is stored in a table.
    pub(super) fn location(&self) -> Location {
        match (self.single(), self) {
            (Some(value), _) => Location::One(value),
            (None, Symbol::Computed(steps)) => Location::Computed(steps.clone()),
            _ => Location::LOST,
        }
    }

    /// The eight bytes at the address in the symbol, if a single value expresses them.
    fn place(&self) -> Option<Value> {
        match *self {
            Symbol::Register(register, offset) => Some(Value::AtRegister(register, offset)),
            Symbol::Frame(offset) => Some(Value::AtFrame(offset)),
            Symbol::Address(address) => Some(Value::AtAddress(address)),
            _ => None,
        }
    }

    /// The value at the address in the symbol, as it is stored in a table.
    pub(super) fn there(&self) -> Location {
        match self.place() {
            Some(value) => Location::One(value),
            None => computed(std::slice::from_ref(self), Operation::There).location(),
        }
    }

    /// The eight bytes at the address in the symbol.
    pub(super) fn loaded(&self) -> Symbol {
        match self.place() {
            Some(value) => Symbol::Loaded(value),
            None => computed(std::slice::from_ref(self), Operation::Load),
        }
    }

    /// The symbol, plus an offset.
    pub(super) fn plus(&self, offset: i64) -> Symbol {
        match *self {
            Symbol::Constant(number) => Symbol::Constant(number.wrapping_add(offset)),
            Symbol::Address(address) => Symbol::Address(address.wrapping_add_signed(offset)),
            Symbol::Register(register, before) => Symbol::Register(register, before.wrapping_add(offset)),
            Symbol::Frame(before) => Symbol::Frame(before.wrapping_add(offset)),
            Symbol::Entry(register, before) => Symbol::Entry(register, before.wrapping_add(offset)),
            _ if offset == 0 => self.clone(),
            _ => computed(&[self.clone(), Symbol::Constant(offset)], Operation::Plus),
        }
    }
}

/// The result of an operation on two symbols.
pub(super) fn two(first: Symbol, second: Symbol, operation: Operation) -> Symbol {
    match (operation, &first, &second) {
        (Operation::Plus, _, &Symbol::Constant(offset)) => first.plus(offset),
        (Operation::Plus, &Symbol::Constant(offset), _) => second.plus(offset),
        (Operation::Minus, _, &Symbol::Constant(offset)) => first.plus(offset.wrapping_neg()),
        (Operation::And, _, &Symbol::Constant(0xffff_ffff)) => computed(&[first], Operation::Low4),
        (Operation::And, _, &Symbol::Constant(0xffff)) => computed(&[first], Operation::Low2),
        (Operation::And, _, &Symbol::Constant(0xff)) => computed(&[first], Operation::Low1),
        (Operation::ShiftRightSigned | Operation::ShiftRight, Symbol::Computed(steps), &Symbol::Constant(by)) => {
            shortened(steps, by, operation).unwrap_or_else(|| computed(&[first, second], operation))
        }
        _ => computed(&[first, second], operation),
    }
}

/// A left shift followed by a right shift truncates the value.
fn shortened(steps: &[Step], by: i64, operation: Operation) -> Option<Symbol> {
    let (rest, last) = steps.split_at_checked(steps.len().checked_sub(2)?)?;
    let shifted = [Step::Push(Value::Constant(by)), Step::Do(Operation::ShiftLeft)];
    let cut = match (by, operation == Operation::ShiftRight) {
        (32, false) => Operation::Signed4,
        (48, false) => Operation::Signed2,
        (56, false) => Operation::Signed1,
        (32, true) => Operation::Low4,
        (48, true) => Operation::Low2,
        (56, true) => Operation::Low1,
        _ => return None,
    };
    (last == shifted).then(|| Symbol::Computed([rest, &[Step::Do(cut)]].concat()))
}

/// The result of an operation on symbols: a constant if they are constants.
pub(super) fn computed(of: &[Symbol], operation: Operation) -> Symbol {
    let mut steps = Vec::new();
    for one in of {
        match one.steps() {
            Some(more) => steps.extend(more),
            None => return Symbol::Unknown,
        }
    }
    steps.push(Step::Do(operation));
    if steps.len() > MOST_STEPS {
        return Symbol::Unknown;
    }
    let known = |value| match value {
        Value::Constant(number) => Some(number as u64),
        _ => None,
    };
    match compute(steps.iter().copied().map(Ok), known, |_| None) {
        Some(Outcome::Word(word)) => Symbol::Constant(word as i64),
        _ => Symbol::Computed(steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_not_computed_later() {
        let constant = |number| Symbol::Constant(number);
        assert_eq!(two(constant(3), constant(4), Operation::ShiftLeft), constant(48));
        assert_eq!(two(constant(3), constant(4), Operation::Minus), constant(-1));
        let register = Symbol::Register(3, 8);
        assert_eq!(
            two(register.clone(), constant(4), Operation::Minus),
            Symbol::Register(3, 4)
        );
        assert_eq!(
            two(constant(4), register.clone(), Operation::Plus),
            Symbol::Register(3, 12)
        );
        assert_eq!(register.loaded().location(), Location::One(Value::AtRegister(3, 8)));
        assert_eq!(register.there(), Location::One(Value::AtRegister(3, 8)));
    }

    #[test]
    fn shifts_there_and_back_cut_off() {
        let shifted = two(Symbol::Register(3, 0), Symbol::Constant(48), Operation::ShiftLeft);
        let back = two(shifted.clone(), Symbol::Constant(48), Operation::ShiftRightSigned);
        let pushed = Step::Push(Value::Register(3, 0));
        assert_eq!(
            back.location(),
            Location::Computed(vec![pushed, Step::Do(Operation::Signed2)])
        );
        let other = two(shifted, Symbol::Constant(40), Operation::ShiftRight);
        assert_eq!(
            other.location().values(),
            [Value::Register(3, 0), Value::Constant(48), Value::Constant(40)]
        );
    }

    #[test]
    fn what_is_not_known_stays_so() {
        assert_eq!(
            two(Symbol::Unknown, Symbol::Constant(1), Operation::Xor).location(),
            Location::LOST
        );
        assert_eq!(Symbol::Unknown.there(), Location::LOST);
        let mut long = Symbol::Register(3, 0);
        for _ in 0..9 {
            long = two(long, Symbol::Register(6, 0), Operation::Xor);
        }
        assert_eq!(long, Symbol::Unknown);
    }
}
