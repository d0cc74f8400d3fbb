//! Evaluates expressions (DWARF 5, section 2.5) and location descriptions (section 2.6) with
//! symbols instead of values.

use backtrail_args::table::write::Location;
use backtrail_args::table::{Operation as Does, PARAMETERS, Value};
use gimli::{Encoding, Expression, Operation, UnitOffset};

use super::Slice;
use super::symbol::{Symbol, computed, two};

/// Limit of operations in an expression; real ones have ten.
const MOST_OPERATIONS: usize = 64;
/// Limit of parts in a value; an argument in registers has at most four.
const MOST_PARTS: usize = 8;

/// The unit and function that an expression belongs to.
#[derive(Clone)]
pub(super) struct Context<'c, 'd> {
    pub(super) dwarf: &'c gimli::Dwarf<Slice<'d>>,
    pub(super) unit: &'c gimli::Unit<Slice<'d>>,
    /// The base of `DW_OP_fbreg`, if it is known.
    pub(super) frame_base: Option<Symbol>,
    /// The entry in its unit that each parameter is a copy of.
    pub(super) parameters: Vec<Option<UnitOffset>>,
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// The value is in this register.
    InRegister(u8),
    /// The value lies at this address.
    At(Symbol),
    /// The result is the value itself.
    Is(Symbol),
    Nothing,
}

/// The location of a value, from a location description.
pub(super) fn location(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Location {
    let encoding = context.unit.encoding();
    let mut operations = expression.operations(encoding);
    let mut machine = Machine::new(context);
    let mut parts = Vec::new();
    for _ in 0..MOST_OPERATIONS {
        match operations.next() {
            Ok(Some(Operation::Piece {
                size_in_bits,
                bit_offset: None,
            })) if size_in_bits.is_multiple_of(8) && size_in_bits <= 128 => {
                let value = match placed(machine.outcome()) {
                    Location::One(value) => value,
                    _ => Value::Lost,
                };
                parts.push(((size_in_bits / 8) as u8, value));
                machine = Machine::new(context);
            }
            Ok(Some(Operation::Piece { .. })) => return Location::LOST,
            Ok(Some(operation)) => machine.step(operation, encoding),
            Ok(None) => {
                return match parts.len() {
                    0 => placed(machine.outcome()),
                    1..=MOST_PARTS => Location::Parts(parts),
                    _ => Location::LOST,
                };
            }
            Err(_) => break,
        }
    }
    Location::LOST
}

/// The value of an expression in a call site (section 3.4.2).
pub(super) fn value(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Location {
    match run(expression, context).outcome() {
        Outcome::At(symbol) | Outcome::Is(symbol) => symbol.location(),
        // GNU as writes a register's value like this, contrary to the standard.
        Outcome::InRegister(register) => Location::One(Value::Register(register, 0)),
        Outcome::Nothing => Location::LOST,
    }
}

/// The frame base of a function: a register there means its contents (section 3.3.5).
pub(super) fn frame_base(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Option<Symbol> {
    match run(expression, context).outcome() {
        Outcome::InRegister(register) => Some(Symbol::Register(register, 0)),
        Outcome::At(symbol) | Outcome::Is(symbol) if symbol != Symbol::Unknown => Some(symbol),
        _ => None,
    }
}

/// The register that a location description names.
pub(super) fn register(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Option<u8> {
    match run(expression, context).outcome() {
        Outcome::InRegister(register) => Some(register),
        _ => None,
    }
}

fn run<'c, 'd>(expression: Expression<Slice<'_>>, context: &'c Context<'c, 'd>) -> Machine<'c, 'd> {
    let encoding = context.unit.encoding();
    let mut operations = expression.operations(encoding);
    let mut machine = Machine::new(context);
    for _ in 0..MOST_OPERATIONS {
        match operations.next() {
            Ok(Some(operation)) => machine.step(operation, encoding),
            Ok(None) => return machine,
            Err(_) => break,
        }
    }
    machine.lost = true;
    machine
}

fn placed(outcome: Outcome) -> Location {
    match outcome {
        Outcome::InRegister(register) => Location::One(Value::Register(register, 0)),
        Outcome::Is(symbol) => symbol.location(),
        Outcome::At(symbol) => symbol.there(),
        Outcome::Nothing => Location::LOST,
    }
}

struct Machine<'c, 'd> {
    context: &'c Context<'c, 'd>,
    stack: Vec<Symbol>,
    register: Option<u8>,
    is_value: bool,
    /// It has done something that no symbol expresses.
    lost: bool,
    /// The state within the sequence with which compilers choose one of two values.
    choosing: Choosing,
}

/// `DW_OP_bra` over `DW_OP_swap`, then `DW_OP_drop`: chooses the first of two values if a third is
/// not zero, otherwise the second.
#[derive(Clone, Debug, PartialEq)]
enum Choosing {
    No,
    /// Depends on this symbol. It has branched, or not.
    By(Symbol),
    /// The same, and it may have swapped the values.
    Swapped(Symbol),
}

impl<'c, 'd> Machine<'c, 'd> {
    fn new(context: &'c Context<'c, 'd>) -> Machine<'c, 'd> {
        Machine {
            context,
            stack: Vec::new(),
            register: None,
            is_value: false,
            lost: false,
            choosing: Choosing::No,
        }
    }

    fn outcome(&self) -> Outcome {
        match (self.lost, self.register, self.stack.last()) {
            (true, ..) | (_, None, None) => Outcome::Nothing,
            (_, Some(register), _) => Outcome::InRegister(register),
            (_, _, Some(symbol)) if self.is_value => Outcome::Is(symbol.clone()),
            (_, _, Some(symbol)) => Outcome::At(symbol.clone()),
        }
    }

    fn pop(&mut self) -> Symbol {
        self.stack.pop().unwrap_or(Symbol::Unknown)
    }

    fn push(&mut self, symbol: Symbol) {
        self.stack.push(symbol);
    }

    /// Replaces one symbol by the result of `operation`.
    fn one(&mut self, operation: Does) {
        let last = self.pop();
        self.push(computed(&[last], operation));
    }

    /// Replaces two symbols by the result of `operation`.
    fn two(&mut self, operation: Does) {
        let (second, first) = (self.pop(), self.pop());
        self.push(two(first, second, operation));
    }

    fn choose(&mut self, operation: &Operation<Slice<'_>>) -> bool {
        let choosing = std::mem::replace(&mut self.choosing, Choosing::No);
        match (operation, choosing) {
            // The branch skips one byte.
            (Operation::Bra { target: 1 }, Choosing::No) => self.choosing = Choosing::By(self.pop()),
            (Operation::Swap, Choosing::By(by)) => self.choosing = Choosing::Swapped(by),
            (Operation::Drop, Choosing::Swapped(by)) => {
                let (second, first) = (self.pop(), self.pop());
                self.push(computed(&[first, second, by], Does::Choose));
            }
            (_, Choosing::No) => return false,
            _ => self.lost = true,
        }
        true
    }

    fn step(&mut self, operation: Operation<Slice<'_>>, encoding: Encoding) {
        if self.choose(&operation) {
            return;
        }
        let dwarf = self.context.dwarf;
        match operation {
            Operation::Register { register } => match u8::try_from(register.0) {
                Ok(register) => self.register = Some(register),
                Err(_) => self.lost = true,
            },
            Operation::RegisterOffset {
                register,
                offset,
                base_type: UnitOffset(0),
            } => self.stack.push(match u8::try_from(register.0) {
                Ok(register) => Symbol::Register(register, offset),
                Err(_) => Symbol::Unknown,
            }),
            Operation::FrameOffset { offset } => {
                let base = self.context.frame_base.clone().unwrap_or(Symbol::Unknown);
                self.stack.push(base.plus(offset));
            }
            Operation::CallFrameCFA => self.stack.push(Symbol::Frame(0)),
            Operation::UnsignedConstant { value } => self.stack.push(Symbol::Constant(value as i64)),
            Operation::SignedConstant { value } => self.stack.push(Symbol::Constant(value)),
            Operation::Address { address } => self.stack.push(Symbol::Address(address)),
            Operation::AddressIndex { index } => {
                let address = dwarf.address(self.context.unit, index);
                self.stack.push(address.map_or(Symbol::Unknown, Symbol::Address));
            }
            Operation::ConstantIndex { index } => {
                let address = dwarf.address(self.context.unit, index);
                self.stack
                    .push(address.map_or(Symbol::Unknown, |value| Symbol::Constant(value as i64)));
            }
            Operation::PlusConstant { value } => {
                let base = self.pop();
                self.stack.push(base.plus(value as i64));
            }
            Operation::Plus => self.two(Does::Plus),
            Operation::Minus => self.two(Does::Minus),
            Operation::Mul => self.two(Does::Times),
            Operation::And => self.two(Does::And),
            Operation::Or => self.two(Does::Or),
            Operation::Xor => self.two(Does::Xor),
            Operation::Shl => self.two(Does::ShiftLeft),
            Operation::Shr => self.two(Does::ShiftRight),
            Operation::Shra => self.two(Does::ShiftRightSigned),
            Operation::Eq => self.two(Does::Equal),
            Operation::Ne => self.two(Does::NotEqual),
            Operation::Lt => self.two(Does::Less),
            Operation::Le => self.two(Does::AtMost),
            Operation::Gt => self.two(Does::Greater),
            Operation::Ge => self.two(Does::AtLeast),
            Operation::Neg => self.one(Does::Negate),
            Operation::Not => self.one(Does::Not),
            Operation::Drop => drop(self.pop()),
            Operation::Pick { index } => {
                let picked = self.stack.len().checked_sub(usize::from(index) + 1);
                let picked = picked.and_then(|at| self.stack.get(at)).cloned();
                self.push(picked.unwrap_or(Symbol::Unknown));
            }
            Operation::Deref {
                size,
                space: false,
                base_type: UnitOffset(0),
            } => {
                let loaded = self.pop().loaded();
                let low = match size {
                    8 => None,
                    4 => Some(Does::Low4),
                    2 => Some(Does::Low2),
                    1 => Some(Does::Low1),
                    _ => return self.lost = true,
                };
                self.push(match low {
                    Some(low) => computed(&[loaded], low),
                    None => loaded,
                });
            }
            Operation::ParameterRef { offset } => {
                let mut parameters = self.context.parameters.iter();
                let index = parameters.position(|&copied| copied == Some(offset));
                let number = index.and_then(|index| u8::try_from(index).ok());
                let number = number.and_then(|index| PARAMETERS.checked_add(index));
                self.push(number.map_or(Symbol::Unknown, |number| Symbol::Entry(number, 0)));
            }
            Operation::EntryValue { expression } => {
                let mut inner = Expression(expression).operations(encoding);
                let entry = match (inner.next(), inner.next()) {
                    (Ok(Some(Operation::Register { register })), Ok(None)) => match u8::try_from(register.0) {
                        Ok(register) => Symbol::Entry(register, 0),
                        Err(_) => Symbol::Unknown,
                    },
                    _ => Symbol::Unknown,
                };
                self.stack.push(entry);
            }
            Operation::StackValue => self.is_value = true,
            Operation::ImplicitValue { data } => {
                let bytes = data.slice();
                let mut word = [0; 8];
                match word.get_mut(..bytes.len()) {
                    Some(place) => {
                        place.copy_from_slice(bytes);
                        self.stack.push(Symbol::Constant(i64::from_le_bytes(word)));
                        self.is_value = true;
                    }
                    None => self.lost = true,
                }
            }
            Operation::Nop => {}
            _ => self.lost = true,
        }
    }
}
