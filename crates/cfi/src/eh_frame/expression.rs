//! DWARF expressions (DWARF 5, section 2.5) that a row can express: `base + offset`, the word at
//! such an address, and the condition by which procedure linkage tables distinguish the two halves
//! of an entry.

use backtrail_arch::REGISTERS;
use backtrail_sframe::{Base, Location};
use gimli::{Operation, UnwindExpression};

use crate::reader::Slice;

pub(crate) type Op<'a> = Operation<Slice<'a>>;

/// Rows cannot express an expression with more operations than this.
const MAX_OPERATIONS: usize = 16;

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// The value that an expression leaves on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number.
    Constant(i64),
    /// `base + offset`.
    Address(Base, i64),
    /// The word in memory at `base + offset`.
    Word(Base, i64),
}

impl Value {
    /// The location that yields this value; `None` if no row can express it.
    pub(crate) fn location(self) -> Option<Location> {
        let (base, offset, deref) = match self {
            Value::Constant(_) => return None,
            Value::Address(base, offset) => (base, offset, false),
            Value::Word(base, offset) => (base, offset, true),
        };
        Some(Location {
            base,
            offset: i32::try_from(offset).ok()?,
            deref,
        })
    }

    /// The word at this address.
    pub(crate) fn word(self) -> Option<Value> {
        match self {
            Value::Address(base, offset) => Some(Value::Word(base, offset)),
            _ => None,
        }
    }

    /// The same value in terms of the CFA's base, if the CFA is `cfa`; `None` if it would need two
    /// reads.
    pub(crate) fn with_cfa(self, cfa: Value) -> Option<Value> {
        match self {
            Value::Address(Base::Cfa, offset) => cfa.plus(Value::Constant(offset)),
            Value::Word(Base::Cfa, offset) => cfa.plus(Value::Constant(offset))?.word(),
            other => Some(other),
        }
    }

    pub(crate) fn plus(self, other: Value) -> Option<Value> {
        Some(match (self, other) {
            (Value::Constant(a), Value::Constant(b)) => Value::Constant(a.wrapping_add(b)),
            (Value::Address(base, a), Value::Constant(b)) | (Value::Constant(b), Value::Address(base, a)) => {
                Value::Address(base, a.wrapping_add(b))
            }
            (word @ Value::Word(..), Value::Constant(0)) | (Value::Constant(0), word @ Value::Word(..)) => word,
            _ => return None,
        })
    }
}

/// The number of a register that rows can name: one that the unwinder restores.
pub(crate) fn general_register(register: gimli::Register) -> Option<u8> {
    u8::try_from(register.0)
        .ok()
        .filter(|number| usize::from(*number) < REGISTERS)
}

/// The operations of an expression; `None` if they are invalid or too many.
pub(crate) fn operations<'a>(
    section: &gimli::EhFrame<Slice<'a>>,
    expression: &UnwindExpression<usize>,
) -> Option<Vec<Op<'a>>> {
    let mut iter = expression.get(section).ok()?.operations(ENCODING);
    let mut found = Vec::new();
    while let Some(operation) = iter.next().ok()? {
        if found.len() == MAX_OPERATIONS {
            return None;
        }
        found.push(operation);
    }
    Some(found)
}

/// Evaluates with registers as unknowns. Register rules start with the CFA on the stack (DWARF 5,
/// section 6.4.2.3), the CFA rule with an empty one.
pub(crate) fn evaluate(operations: &[Op<'_>], initial: Option<Value>) -> Option<Value> {
    let mut stack: Vec<Value> = initial.into_iter().collect();
    for operation in operations {
        let value = match *operation {
            Operation::Nop => continue,
            Operation::RegisterOffset { register, offset, .. } => {
                Value::Address(Base::Register(general_register(register)?), offset)
            }
            Operation::UnsignedConstant { value } => Value::Constant(value as i64),
            Operation::SignedConstant { value } => Value::Constant(value),
            Operation::PlusConstant { value } => stack.pop()?.plus(Value::Constant(value as i64))?,
            Operation::Plus => {
                let (second, first) = (stack.pop()?, stack.pop()?);
                first.plus(second)?
            }
            Operation::Minus => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(second), first) => first.plus(Value::Constant(second.wrapping_neg()))?,
                _ => return None,
            },
            Operation::Deref {
                size: 8, space: false, ..
            } => stack.pop()?.word()?,
            Operation::CallFrameCFA => Value::Address(Base::Cfa, 0),
            _ => return None,
        };
        stack.push(value);
    }
    stack.pop()
}

/// The CFA of a procedure linkage table: `base + offset`, plus `extra` from byte `threshold` of
/// each block on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) base: Base,
    pub(crate) offset: i64,
    pub(crate) extra: i64,
    /// Bytes of a block: a power of two, to which blocks are aligned.
    pub(crate) block: u8,
    pub(crate) threshold: u8,
}

impl Pattern {
    /// The CFA at byte `within` of a block.
    pub(crate) fn cfa_at(self, within: u64) -> Value {
        let late = within % u64::from(self.block) >= u64::from(self.threshold);
        Value::Address(self.base, self.offset + if late { self.extra } else { 0 })
    }
}

/// Recognises `base + offset + (((pc & mask) >= threshold) << shift)`, which linkers write for
/// `.plt`; `pc` is the column of the return address, on a CPU without a link register.
pub(crate) fn pattern(operations: &[Op<'_>], pc: u8) -> Option<Pattern> {
    let [
        Operation::RegisterOffset { register, offset, .. },
        Operation::RegisterOffset {
            register: counter,
            offset: 0,
            ..
        },
        Operation::UnsignedConstant { value: mask },
        Operation::And,
        Operation::UnsignedConstant { value: threshold },
        Operation::Ge,
        Operation::UnsignedConstant { value: shift },
        Operation::Shl,
        Operation::Plus,
    ] = *operations
    else {
        return None;
    };
    let block = mask.checked_add(1).filter(|block| block.is_power_of_two())?;
    let sensible = counter.0 == u16::from(pc) && shift < 16 && (1..=mask).contains(&threshold);
    let extra = 1i64 << (shift & 15);
    let fits = i32::try_from(offset).is_ok_and(|offset| offset.checked_add(extra as i32).is_some());
    if !sensible || !fits {
        return None;
    }
    Some(Pattern {
        base: Base::Register(general_register(register)?),
        offset,
        extra,
        block: u8::try_from(block).ok()?,
        threshold: threshold as u8,
    })
}
