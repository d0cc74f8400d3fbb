//! What calls pass, as far as somebody may ask for it: a function of the file, of an argument that it does not keep itself at each of its calls.
//!
//! Three of four values that calls pass are kept by the called function too, and are not told twice. That is the larger half of a table.

use backtrail_args::abi::{Abi, Place as Where};
use backtrail_args::table::Value;
use backtrail_args::table::write::{Function, Told};
use rustc_hash::FxHashMap;

use super::{Target, Unfinished};
use crate::types::Place;

/// Registers by their place among those that pass arguments.
type Registers = u8;

/// What of each function's registers is needed as it was when that began.
struct Needed(FxHashMap<Place, Registers>);

impl Needed {
    fn by(&self, target: &Target) -> Registers {
        match target {
            Target::Function(function) => self.0.get(function).copied().unwrap_or(0),
            Target::Any => Registers::MAX,
            Target::Elsewhere => 0,
        }
    }
}

/// The functions, without what nobody asks for.
pub(super) fn only(mut unfinished: Vec<Unfinished>, abi: Abi) -> Vec<Function> {
    let mut needed = Needed(FxHashMap::default());
    for one in &unfinished {
        *needed.0.entry(one.entry).or_default() |= asked(&one.made, abi);
    }
    // What is passed on was passed by somebody.
    let mut is_done = false;
    while !is_done {
        is_done = true;
        for one in &unfinished {
            let more = passed_on(one, &needed, abi);
            let own = needed.0.entry(one.entry).or_default();
            is_done &= *own | more == *own;
            *own |= more;
        }
    }
    for one in &mut unfinished {
        for (call, target) in one.made.calls.iter_mut().zip(&one.targets) {
            let needed = needed.by(target);
            for (index, entry) in call.entries.iter_mut().enumerate() {
                if needed >> index & 1 == 0 {
                    *entry = Told::One(Value::Lost);
                }
            }
            while call.entries.last() == Some(&Told::One(Value::Lost)) {
                call.entries.pop();
            }
        }
    }
    unfinished.into_iter().map(|one| one.made).collect()
}

/// The registers that a function's calls pass on, as they were when it began, to somebody who needs them.
fn passed_on(one: &Unfinished, needed: &Needed, abi: Abi) -> Registers {
    let mut passed_on = 0;
    for (call, target) in one.made.calls.iter().zip(&one.targets) {
        let needed = needed.by(target);
        for (index, told) in call.entries.iter().enumerate() {
            if let (Told::One(value), true) = (told, needed >> index & 1 != 0) {
                passed_on |= entry(value, abi);
            }
        }
    }
    passed_on
}

/// The registers that a function's frames need to know as they were when it began, for its own arguments.
fn asked(function: &Function, abi: Abi) -> Registers {
    let passed = passed(function, abi);
    let mut asked = 0;
    for call in function.calls.iter().filter(|call| !call.is_jump) {
        for (index, registers) in passed.iter().enumerate() {
            asked |= match call.places.get(index) {
                None | Some(Told::One(Value::Lost)) => *registers,
                Some(Told::One(value)) => entry(value, abi),
                Some(Told::Parts(parts)) => parts.iter().fold(0, |all, (_, value)| all | entry(value, abi)),
            };
        }
    }
    asked
}

fn entry(value: &Value, abi: Abi) -> Registers {
    match value {
        Value::Entry(register, _) => bit(*register, abi),
        _ => 0,
    }
}

fn bit(register: u8, abi: Abi) -> Registers {
    let index = abi.general_registers().iter().position(|&other| other == register);
    index.map_or(0, |index| 1 << index)
}

/// The registers that each parameter is passed in, where the calling convention says.
fn passed(function: &Function, abi: Abi) -> Vec<Registers> {
    let signature = &function.signature;
    let mut placer = signature.trusted.then(|| abi.placer(signature.result_address));
    let registers = signature.parameters.iter().map(|parameter| {
        let (Some(placer), Some(storage)) = (&mut placer, &parameter.storage) else {
            return 0;
        };
        let mut registers = 0;
        // What is not in registers alone is not asked for.
        let mut whole = true;
        let placed = placer.next(storage, &mut |piece| match piece.place {
            Where::Register(register) => registers |= bit(register, abi),
            Where::Stack(_) => whole = false,
        });
        if placed.is_some() && whole { registers } else { 0 }
    });
    registers.collect()
}
