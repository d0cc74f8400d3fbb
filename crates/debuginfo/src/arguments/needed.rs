//! Keeps only the arguments at call sites that a reader may need: those of a function in the file
//! that the function itself does not keep at each of its calls.
//!
//! The called function also keeps three of four values that calls pass, so they need not be stored
//! twice. They are the larger half of a table.

use backtrail_args::abi::{Abi, Place as Where};
use backtrail_args::table::write::{Function, Location, Site};
use backtrail_args::table::{BEYOND, PARAMETERS, Value};
use rustc_hash::FxHashMap;

use super::{Target, Unfinished};

/// The registers that a call passes: a bit for each place among the entries.
type Registers = u64;

/// The registers of each function whose values at its start are needed.
struct Needed(FxHashMap<u64, Registers>);

impl Needed {
    fn by(&self, target: &Target) -> Registers {
        match target {
            Target::Function(function) | Target::Beyond(function) => self.0.get(function).copied().unwrap_or(0),
            Target::Any | Target::Location(_) => Registers::MAX,
            Target::Elsewhere => 0,
        }
    }
}

/// The functions, without the values that no reader needs.
pub(super) fn only(mut unfinished: Vec<Unfinished>, abi: Abi) -> Vec<Function> {
    let mut needed = Needed(FxHashMap::default());
    for one in &unfinished {
        *needed.0.entry(one.start).or_default() |= asked(&one.made, abi);
    }
    // A caller has to provide the values that a function passes on.
    let mut is_done = false;
    while !is_done {
        is_done = true;
        for one in &unfinished {
            let more = passed_on(one, &needed, abi);
            let own = needed.0.entry(one.start).or_default();
            is_done &= *own | more == *own;
            *own |= more;
        }
    }
    for one in &mut unfinished {
        for (call, target) in one.made.calls.iter_mut().zip(&one.targets) {
            let needed = needed.by(target);
            for (index, entry) in (0..).zip(call.entries.iter_mut()) {
                if needed.unbounded_shr(index) & 1 == 0 {
                    *entry = Location::LOST;
                }
            }
            while call.entries.last() == Some(&Location::LOST) {
                call.entries.pop();
            }
            // If the call passes anything, the address of the called function is stored too.
            let more = match target {
                Target::Location(location) => Some(location.clone()),
                Target::Beyond(_) => Some(Location::One(Value::Constant(BEYOND))),
                _ => None,
            };
            if let Some(more) = more.filter(|_| !call.entries.is_empty()) {
                put(&mut call.entries, abi.general_registers().len(), more);
            }
        }
    }
    unfinished.into_iter().map(|one| one.made).collect()
}

/// The registers whose values at a function's start its calls pass on to a function that needs
/// them.
fn passed_on(one: &Unfinished, needed: &Needed, abi: Abi) -> Registers {
    let mut passed_on = 0;
    for (call, target) in one.made.calls.iter().zip(&one.targets) {
        let needed = needed.by(target);
        for (index, location) in call.entries.iter().enumerate() {
            if needed.unbounded_shr(index as u32) & 1 != 0 {
                passed_on |= entries(location, abi);
            }
        }
    }
    passed_on
}

/// The registers whose values at a function's start its frames need for the function's own
/// arguments.
fn asked(function: &Function, abi: Abi) -> Registers {
    let passed = passed(function, abi);
    let mut asked = 0;
    for call in function.calls.iter().filter(|call| call.site != Site::Jump) {
        for (index, registers) in passed.iter().enumerate() {
            asked |= match call.places.get(index) {
                // Between calls, lost values are not searched for.
                None | Some(Location::One(Value::Lost)) if call.site == Site::Between => 0,
                None | Some(Location::One(Value::Lost)) => *registers,
                Some(location) => entries(location, abi),
            };
        }
    }
    asked
}

fn entries(location: &Location, abi: Abi) -> Registers {
    let bits = location.values().into_iter().map(|value| match value {
        Value::Entry(register, _) => bit(register, abi),
        _ => 0,
    });
    bits.fold(0, |all, bit| all | bit)
}

fn bit(register: u8, abi: Abi) -> Registers {
    place(register, abi).map_or(0, |place| 1u64.unbounded_shl(place as u32))
}

/// Stores a value at a place among entries.
pub(super) fn put(entries: &mut Vec<Location>, place: usize, location: Location) {
    entries.resize(entries.len().max(place + 1), Location::LOST);
    entries[place] = location;
}

/// The place among entries of a register, or of a parameter that is in no register.
pub(super) fn place(register: u8, abi: Abi) -> Option<usize> {
    let registers = abi.general_registers();
    match register.checked_sub(PARAMETERS) {
        Some(parameter) => Some(registers.len() + 1 + usize::from(parameter)),
        None => registers.iter().position(|&other| other == register),
    }
}

/// The registers in which each parameter is passed, if the calling convention shows them.
fn passed(function: &Function, abi: Abi) -> Vec<Registers> {
    let signature = &function.signature;
    let mut placer = signature.trusted.then(|| abi.placer(signature.result_address));
    let registers = signature.parameters.iter().map(|parameter| {
        let (Some(placer), Some(storage)) = (&mut placer, &parameter.storage) else {
            return 0;
        };
        let mut registers = 0;
        // A parameter that is partly on the stack is never searched for.
        let mut whole = true;
        let placed = placer.next(storage, &mut |piece| match piece.place {
            Where::Register(register) => registers |= bit(register, abi),
            Where::Stack(_) => whole = false,
        });
        if placed.is_some() && whole { registers } else { 0 }
    });
    registers.collect()
}
