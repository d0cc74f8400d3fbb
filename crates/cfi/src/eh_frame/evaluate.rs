//! Expressions of call frame information (DWARF 5, sections 2.5 and 6.4.2), carried out.

use gimli::{EvaluationResult, UnwindExpression, Value};

use crate::reader::Slice;

/// Operations of an expression that are carried out at the most; real ones have ten.
const MAX_OPERATIONS: u32 = 1000;

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// What expressions ask.
pub(crate) trait Machine {
    /// The value of a register, where it is known.
    fn register(&mut self, register: gimli::Register) -> Option<u64>;
    /// The word at an address, where it can be read.
    fn word(&mut self, address: u64) -> Option<u64>;
}

/// What an expression comes to, with the CFA on its stack where that is given; `None` where it
/// can't be carried out.
pub(crate) fn evaluate(
    section: &gimli::EhFrame<Slice<'_>>,
    expression: &UnwindExpression<usize>,
    cfa: Option<u64>,
    machine: &mut impl Machine,
) -> Option<u64> {
    let expression = expression.get(section).ok()?;
    let mut evaluation = expression.evaluation(ENCODING);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut result = evaluation.evaluate();
    loop {
        result = match result.ok()? {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = machine.register(register)?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory {
                address,
                size: 8,
                space: None,
                ..
            } => {
                let word = machine.word(address)?;
                evaluation.resume_with_memory(Value::Generic(word))
            }
            EvaluationResult::RequiresCallFrameCfa => evaluation.resume_with_call_frame_cfa(cfa?),
            _ => return None,
        };
    }
    match evaluation.as_result() {
        [
            gimli::Piece {
                location: gimli::Location::Address { address },
                ..
            },
        ] => Some(*address),
        _ => None,
    }
}
