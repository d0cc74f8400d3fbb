//! Evaluates expressions of call frame information (DWARF 5, sections 2.5 and 6.4.2).

use gimli::{EvaluationResult, UnwindExpression, Value};

use crate::reader::Slice;

/// The most operations of an expression that are evaluated; real ones have ten.
const MAX_OPERATIONS: u32 = 1000;

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// The registers and memory that expressions read.
pub(crate) trait Machine {
    /// The value of a register, if it is known.
    fn register(&mut self, register: gimli::Register) -> Option<u64>;
    /// The word at an address, if it is readable.
    fn word(&mut self, address: u64) -> Option<u64>;
}

/// The value of an expression, which starts with the CFA on its stack if one is given; `None` if it
/// can't be evaluated.
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
