//! Expressions (DWARF 5, section 2.5) and location descriptions (section 2.6) as places, carried out with names instead of values.

use backtrail_args::table::Value;
use backtrail_args::table::write::Told;
use gimli::{Encoding, Expression, Operation};

use super::Slice;

/// Operations of an expression that are looked at; real ones have ten.
const MOST_OPERATIONS: usize = 64;
/// Parts of a value; an argument in registers has at most four.
const MOST_PARTS: usize = 8;

/// What expressions need to know of their unit and function.
#[derive(Clone, Copy)]
pub(super) struct Context<'c, 'd> {
    pub(super) dwarf: &'c gimli::Dwarf<Slice<'d>>,
    pub(super) unit: &'c gimli::Unit<Slice<'d>>,
    /// What `DW_OP_fbreg` counts from, where it is known.
    pub(super) frame_base: Option<Symbol>,
}

/// A value on the stack of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Constant(i64),
    Address(u64),
    /// A register, plus an offset.
    Register(u8, i64),
    /// The canonical frame address, plus an offset.
    Frame(i64),
    /// A register at the function's entry, plus an offset.
    Entry(u8, i64),
    /// The eight bytes at a place.
    Loaded(Place),
    Unknown,
}

/// What an address may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Register(u8, i64),
    Frame(i64),
    Address(u64),
}

/// What an expression comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The value is in this register.
    InRegister(u8),
    /// The value lies at this address.
    At(Symbol),
    /// It is the value.
    Is(Symbol),
    Nothing,
}

/// Where a location description has a value.
pub(super) fn location(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Told {
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
                let value = placed(machine.outcome());
                parts.push(((size_in_bits / 8) as u8, value));
                machine = Machine::new(context);
            }
            Ok(Some(Operation::Piece { .. })) => return Told::One(Value::Lost),
            Ok(Some(operation)) => machine.step(operation, encoding),
            Ok(None) => {
                return match parts.len() {
                    0 => Told::One(placed(machine.outcome())),
                    1..=MOST_PARTS => Told::Parts(parts),
                    _ => Told::One(Value::Lost),
                };
            }
            Err(_) => break,
        }
    }
    Told::One(Value::Lost)
}

/// The value of an expression, as call sites have them (section 3.4.2).
pub(super) fn value(expression: Expression<Slice<'_>>, context: &Context<'_, '_>) -> Value {
    match run(expression, context).outcome() {
        Outcome::At(symbol) | Outcome::Is(symbol) => valued(symbol),
        // GNU as has a register's value so, against the letter.
        Outcome::InRegister(register) => Value::Register(register, 0),
        Outcome::Nothing => Value::Lost,
    }
}

/// The frame base of a function: a register counts as what is in it (section 3.3.5).
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

fn placed(outcome: Outcome) -> Value {
    match outcome {
        Outcome::InRegister(register) => Value::Register(register, 0),
        Outcome::Is(symbol) => valued(symbol),
        Outcome::At(symbol) => match symbol {
            Symbol::Register(register, offset) => Value::AtRegister(register, offset),
            Symbol::Frame(offset) => Value::AtFrame(offset),
            Symbol::Address(address) => Value::AtAddress(address),
            _ => Value::Lost,
        },
        Outcome::Nothing => Value::Lost,
    }
}

fn valued(symbol: Symbol) -> Value {
    match symbol {
        Symbol::Constant(number) => Value::Constant(number),
        Symbol::Address(address) => Value::Address(address),
        Symbol::Register(register, offset) => Value::Register(register, offset),
        Symbol::Frame(offset) => Value::Frame(offset),
        Symbol::Entry(register, offset) => Value::Entry(register, offset),
        Symbol::Loaded(Place::Register(register, offset)) => Value::AtRegister(register, offset),
        Symbol::Loaded(Place::Frame(offset)) => Value::AtFrame(offset),
        Symbol::Loaded(Place::Address(address)) => Value::AtAddress(address),
        Symbol::Unknown => Value::Lost,
    }
}

struct Machine<'c, 'd> {
    context: &'c Context<'c, 'd>,
    stack: Vec<Symbol>,
    register: Option<u8>,
    is_value: bool,
    /// It has done something that has no name.
    lost: bool,
}

impl<'c, 'd> Machine<'c, 'd> {
    fn new(context: &'c Context<'c, 'd>) -> Machine<'c, 'd> {
        Machine {
            context,
            stack: Vec::new(),
            register: None,
            is_value: false,
            lost: false,
        }
    }

    fn outcome(&self) -> Outcome {
        match (self.lost, self.register, self.stack.last()) {
            (true, ..) | (_, None, None) => Outcome::Nothing,
            (_, Some(register), _) => Outcome::InRegister(register),
            (_, _, Some(&symbol)) if self.is_value => Outcome::Is(symbol),
            (_, _, Some(&symbol)) => Outcome::At(symbol),
        }
    }

    fn pop(&mut self) -> Symbol {
        self.stack.pop().unwrap_or(Symbol::Unknown)
    }

    fn step(&mut self, operation: Operation<Slice<'_>>, encoding: Encoding) {
        let dwarf = self.context.dwarf;
        match operation {
            Operation::Register { register } => match u8::try_from(register.0) {
                Ok(register) => self.register = Some(register),
                Err(_) => self.lost = true,
            },
            Operation::RegisterOffset {
                register,
                offset,
                base_type: gimli::UnitOffset(0),
            } => self.stack.push(match u8::try_from(register.0) {
                Ok(register) => Symbol::Register(register, offset),
                Err(_) => Symbol::Unknown,
            }),
            Operation::FrameOffset { offset } => {
                let base = self.context.frame_base.unwrap_or(Symbol::Unknown);
                self.stack.push(plus(base, offset));
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
                self.stack.push(plus(base, value as i64));
            }
            Operation::Plus => {
                let sum = match (self.pop(), self.pop()) {
                    (Symbol::Constant(offset), base) | (base, Symbol::Constant(offset)) => plus(base, offset),
                    _ => Symbol::Unknown,
                };
                self.stack.push(sum);
            }
            Operation::Minus => {
                let difference = match (self.pop(), self.pop()) {
                    (Symbol::Constant(offset), base) => plus(base, offset.wrapping_neg()),
                    _ => Symbol::Unknown,
                };
                self.stack.push(difference);
            }
            Operation::Deref {
                size: 8,
                space: false,
                base_type: gimli::UnitOffset(0),
            } => {
                let loaded = match self.pop() {
                    Symbol::Register(register, offset) => Symbol::Loaded(Place::Register(register, offset)),
                    Symbol::Frame(offset) => Symbol::Loaded(Place::Frame(offset)),
                    Symbol::Address(address) => Symbol::Loaded(Place::Address(address)),
                    _ => Symbol::Unknown,
                };
                self.stack.push(loaded);
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

fn plus(base: Symbol, offset: i64) -> Symbol {
    match base {
        Symbol::Constant(number) => Symbol::Constant(number.wrapping_add(offset)),
        Symbol::Address(address) => Symbol::Address(address.wrapping_add_signed(offset)),
        Symbol::Register(register, before) => Symbol::Register(register, before.wrapping_add(offset)),
        Symbol::Frame(before) => Symbol::Frame(before.wrapping_add(offset)),
        Symbol::Entry(register, before) => Symbol::Entry(register, before.wrapping_add(offset)),
        Symbol::Loaded(_) if offset == 0 => base,
        Symbol::Loaded(_) | Symbol::Unknown => Symbol::Unknown,
    }
}
