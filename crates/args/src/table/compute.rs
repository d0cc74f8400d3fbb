//! "Computed": values computed from others by a program for a stack of words.

use super::{Result, Value};

/// Maximum depth of the stack in words; compilers need four.
const DEEPEST: usize = 8;

/// A step of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Pushes this value, which is neither [`Value::Parts`] nor [`Value::Computed`].
    Push(Value),
    /// Applies an operation to the topmost words.
    Do(Operation),
}

/// An operation on the topmost words. Of two, the lower one is the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Their sum.
    Plus,
    /// The first minus the second.
    Minus,
    /// Their product.
    Times,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// The first, shifted left.
    ShiftLeft,
    /// The first, shifted right.
    ShiftRight,
    /// The first, shifted right with its sign.
    ShiftRightSigned,
    /// One word, negated.
    Negate,
    /// One word with all bits inverted.
    Not,
    /// 1 if both are equal, otherwise 0.
    Equal,
    /// 1 if both differ, otherwise 0.
    NotEqual,
    /// 1 if the first is less (signed), otherwise 0.
    Less,
    /// 1 if the first is less or equal (signed), otherwise 0.
    AtMost,
    /// 1 if the first is greater (signed), otherwise 0.
    Greater,
    /// 1 if the first is greater or equal (signed), otherwise 0.
    AtLeast,
    /// Three words: the first if the third is not zero, otherwise the second.
    Choose,
    /// One word: the word at that address.
    Load,
    /// One word: its lowest four bytes.
    Low4,
    /// One word: its lowest two bytes.
    Low2,
    /// One word: its lowest byte.
    Low1,
    /// One word: its lowest four bytes, sign-extended.
    Signed4,
    /// One word: its lowest two bytes, sign-extended.
    Signed2,
    /// One word: its lowest byte, sign-extended.
    Signed1,
    /// The last step: the value is at this address.
    There,
}

impl Operation {
    /// All operations by their numbers, from 1.
    pub(crate) const ALL: [Operation; 26] = [
        Operation::Plus,
        Operation::Minus,
        Operation::Times,
        Operation::And,
        Operation::Or,
        Operation::Xor,
        Operation::ShiftLeft,
        Operation::ShiftRight,
        Operation::ShiftRightSigned,
        Operation::Negate,
        Operation::Not,
        Operation::Equal,
        Operation::NotEqual,
        Operation::Less,
        Operation::AtMost,
        Operation::Greater,
        Operation::AtLeast,
        Operation::Choose,
        Operation::Load,
        Operation::Low4,
        Operation::Low2,
        Operation::Low1,
        Operation::Signed4,
        Operation::Signed2,
        Operation::Signed1,
        Operation::There,
    ];

    pub(crate) fn number(self) -> u64 {
        self as u64 + 1
    }

    pub(crate) fn of(number: u64) -> Option<Operation> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Operation::ALL.get(index).copied()
    }
}

/// The result of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value, or its lowest eight bytes.
    Word(u64),
    /// The address of the value.
    At(u64),
}

/// Words, the last one on top.
struct Stack {
    words: [u64; DEEPEST],
    len: usize,
}

impl Stack {
    fn push(&mut self, word: u64) -> Option<()> {
        *self.words.get_mut(self.len)? = word;
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.words.get(self.len).copied()
    }
}

/// Runs the steps. `value` gives the word of a value, `load` the word at an address. `None` if one
/// of them is unknown, or the steps are invalid.
pub fn compute(
    steps: impl Iterator<Item = Result<Step>>,
    mut value: impl FnMut(Value) -> Option<u64>,
    mut load: impl FnMut(u64) -> Option<u64>,
) -> Option<Outcome> {
    let mut stack = Stack {
        words: [0; DEEPEST],
        len: 0,
    };
    let mut there = None;
    for step in steps {
        // No step may follow the last one.
        if there.is_some() {
            return None;
        }
        match step.ok()? {
            Step::Push(pushed) => stack.push(value(pushed)?)?,
            Step::Do(Operation::There) => there = Some(stack.pop()?),
            Step::Do(Operation::Load) => {
                let address = stack.pop()?;
                stack.push(load(address)?)?;
            }
            Step::Do(operation) => step_of(operation, &mut stack)?,
        }
    }
    match there {
        Some(address) => (stack.len == 0).then_some(Outcome::At(address)),
        None => Some(Outcome::Word(stack.pop()?)).filter(|_| stack.len == 0),
    }
}

fn step_of(operation: Operation, stack: &mut Stack) -> Option<()> {
    let last = stack.pop()?;
    let word = match operation {
        Operation::Negate => last.wrapping_neg(),
        Operation::Not => !last,
        Operation::Low4 => last & 0xffff_ffff,
        Operation::Low2 => last & 0xffff,
        Operation::Low1 => last & 0xff,
        Operation::Signed4 => last as i32 as u64,
        Operation::Signed2 => last as i16 as u64,
        Operation::Signed1 => last as i8 as u64,
        Operation::Choose => {
            let (second, first) = (stack.pop()?, stack.pop()?);
            if last != 0 { first } else { second }
        }
        _ => of_two(operation, stack.pop()?, last)?,
    };
    stack.push(word)
}

fn of_two(operation: Operation, first: u64, second: u64) -> Option<u64> {
    let by = u32::try_from(second).unwrap_or(u32::MAX);
    let (one, other) = (first as i64, second as i64);
    Some(match operation {
        Operation::Plus => first.wrapping_add(second),
        Operation::Minus => first.wrapping_sub(second),
        Operation::Times => first.wrapping_mul(second),
        Operation::And => first & second,
        Operation::Or => first | second,
        Operation::Xor => first ^ second,
        Operation::ShiftLeft => first.unbounded_shl(by),
        Operation::ShiftRight => first.unbounded_shr(by),
        Operation::ShiftRightSigned => one.unbounded_shr(by) as u64,
        Operation::Equal => u64::from(one == other),
        Operation::NotEqual => u64::from(one != other),
        Operation::Less => u64::from(one < other),
        Operation::AtMost => u64::from(one <= other),
        Operation::Greater => u64::from(one > other),
        Operation::AtLeast => u64::from(one >= other),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[u64], operations: &[Operation]) -> Option<Outcome> {
        let pushed = words.iter().map(|&word| Ok(Step::Push(Value::Constant(word as i64))));
        let done = operations.iter().map(|&operation| Ok(Step::Do(operation)));
        let value = |value| match value {
            Value::Constant(word) => Some(word as u64),
            _ => None,
        };
        compute(pushed.chain(done), value, |address| (address == 16).then_some(5))
    }

    #[test]
    fn numbers_and_operations_belong_together() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.number(), index as u64 + 1);
            assert_eq!(Operation::of(operation.number()), Some(operation));
        }
        assert_eq!((Operation::of(0), Operation::of(27)), (None, None));
    }

    #[test]
    fn operations_are_those_of_dwarf() {
        let minus = |number: i64| number as u64;
        let cases: [(&[u64], Operation, u64); 17] = [
            (&[7, 9], Operation::Plus, 16),
            (&[7, 9], Operation::Minus, minus(-2)),
            (&[7, minus(-2)], Operation::Times, minus(-14)),
            (&[12, 10], Operation::And, 8),
            (&[12, 10], Operation::Or, 14),
            (&[12, 10], Operation::Xor, 6),
            (&[3, 4], Operation::ShiftLeft, 48),
            (&[3, 64], Operation::ShiftLeft, 0),
            (&[minus(-1), 60], Operation::ShiftRight, 15),
            (&[minus(-9), 1], Operation::ShiftRightSigned, minus(-5)),
            (&[minus(-9), 900], Operation::ShiftRightSigned, minus(-1)),
            (&[minus(-9), 1], Operation::Less, 1),
            (&[minus(-9), 1], Operation::AtLeast, 0),
            (&[4, 5, 0], Operation::Choose, 5),
            (&[4, 5, 2], Operation::Choose, 4),
            (&[0x1_8000_0001], Operation::Signed4, 0xffff_ffff_8000_0001),
            (&[0x1_8000_0001], Operation::Low4, 0x8000_0001),
        ];
        for (words, operation, wanted) in cases {
            assert_eq!(of(words, &[operation]), Some(Outcome::Word(wanted)), "{operation:?}");
        }
    }

    #[test]
    fn memory_is_asked_and_what_is_not_there_is_lost() {
        assert_eq!(of(&[16], &[Operation::Load]), Some(Outcome::Word(5)));
        assert_eq!(of(&[17], &[Operation::Load]), None);
        assert_eq!(of(&[17], &[Operation::There]), Some(Outcome::At(17)));
        // Too few words, too many, and steps after the last.
        assert_eq!(of(&[1], &[Operation::Plus]), None);
        assert_eq!(of(&[1, 2], &[]), None);
        assert_eq!(of(&[1, 2], &[Operation::There]), None);
        assert_eq!(of(&[1], &[Operation::There, Operation::Load]), None);
        assert_eq!(of(&[1; 9], &[Operation::Plus; 8]), None);
        let lost = compute([Ok(Step::Push(Value::Lost))].into_iter(), |_| None, Some);
        assert_eq!(lost, None);
    }
}
