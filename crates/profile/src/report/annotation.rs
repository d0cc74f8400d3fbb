//! The lines and instructions of a function.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::Report;
use crate::function_name::matches_function;
use crate::stacks::StackFrame;
use crate::weights::weigh;

/// A function's lines and instructions with their samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its name and module.
    pub function: (String, String),
    /// By source file and line; for what was inlined into it, the line that calls it.
    pub lines: Vec<AnnotationRow>,
    /// By address.
    pub addresses: Vec<AnnotationRow>,
}

/// A line or an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationRow {
    /// Its source file; empty if it is not known.
    pub file: String,
    /// Its line; 0 if it is not known.
    pub line: u32,
    /// For an instruction, the address that its file was linked for.
    pub address: u64,
    /// Bytes from the function's start, if they are known.
    pub offset: Option<u64>,
    /// Samples that ended there, or in what is inlined there.
    pub samples: u64,
    /// Samples with it anywhere on their stack.
    pub total: u64,
}

impl Report {
    /// The lines and instructions of each function with this name. Instructions of its callers that
    /// it is inlined into count too.
    pub fn annotate(&self, function: &str) -> Vec<Annotation> {
        /// What a row is about: module, name, file, line; address and offset of an instruction.
        type Key = (String, String, String, u32, Option<(u64, Option<u64>)>);
        let mut keys: HashMap<Key, u32> = HashMap::new();
        let weights = [false, true].map(|by_address| {
            weigh(self.stacks(), |stack, found| {
                let StackFrame::Location(id) = self.stacks().frame(stack) else {
                    return None;
                };
                let location = self.location(id);
                for call in location.calls.iter().rev() {
                    if matches_function(&call.function, function) {
                        let address = self.address(id).address;
                        let offset = location.calls[location.calls.len() - 1].offset;
                        let key = (
                            location.module.clone(),
                            call.function.clone(),
                            call.file.clone().unwrap_or_default(),
                            call.line.unwrap_or(0),
                            by_address.then_some((address, offset)),
                        );
                        let next = keys.len() as u32;
                        found.push(*keys.entry(key).or_insert(next));
                    }
                }
                found.last().copied()
            })
        });
        let mut functions: BTreeMap<(String, String), Annotation> = BTreeMap::new();
        for ((module, name, file, line, instruction), key) in keys {
            let (samples, total) = weights[usize::from(instruction.is_some())].of(key);
            let annotation = functions
                .entry((name.clone(), module.clone()))
                .or_insert_with(|| Annotation {
                    function: (name, module),
                    lines: Vec::new(),
                    addresses: Vec::new(),
                });
            let (address, offset) = instruction.unwrap_or((0, None));
            let row = AnnotationRow {
                file,
                line,
                address,
                offset,
                samples,
                total,
            };
            match instruction {
                Some(_) => annotation.addresses.push(row),
                None => annotation.lines.push(row),
            }
        }
        let mut all: Vec<Annotation> = functions.into_values().collect();
        for annotation in &mut all {
            annotation
                .lines
                .sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
            annotation.addresses.sort_by_key(|row| (row.address, row.line));
        }
        let own = |annotation: &Annotation| annotation.lines.iter().map(|row| row.samples).sum::<u64>();
        all.sort_by_key(|annotation| Reverse(own(annotation)));
        all
    }
}
