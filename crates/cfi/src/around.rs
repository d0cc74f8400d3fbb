//! The code around an address of a process, and code elsewhere that its jumps lead to.

use std::cell::Cell;
use std::ops::Range;

use backtrail_sframe::Rule;

use crate::instructions::{self, Around};
use crate::process_code::ProcessCode;
use crate::registers::FunctionRule;

/// Bytes that are read at the target of a far jump in code made at run time.
const FAR_BYTES: u64 = 256;

/// Part of a process's code.
pub(crate) struct CodeAround {
    bytes: Vec<u8>,
    start: u64,
    functions: Vec<u64>,
}

impl CodeAround {
    pub(crate) fn new<C: ProcessCode>(process: &C, mapping: C::Mapping, pc: u64) -> CodeAround {
        let range = process.range(mapping);
        let start = pc.saturating_sub(instructions::BYTES_BEFORE).max(range.start);
        let end = pc.saturating_add(instructions::BYTES_FROM).min(range.end);
        CodeAround {
            bytes: read(process, start..end),
            start,
            functions: process.starts(mapping, start..end),
        }
    }

    pub(crate) fn code(&self) -> instructions::Code<'_> {
        instructions::Code {
            bytes: &self.bytes,
            start: self.start,
            functions: &self.functions,
        }
    }
}

pub(crate) fn read(process: &impl ProcessCode, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
    let read = process.read(range.start, &mut bytes);
    bytes.truncate(read);
    bytes
}

/// Code elsewhere in a process.
pub(crate) struct Elsewhere<'p, C> {
    process: &'p C,
    /// Where the code jumps into an interpreter, if it does, and the rule there.
    pub(crate) interpreter: Cell<Option<(u64, Rule)>>,
}

impl<'p, C> Elsewhere<'p, C> {
    pub(crate) fn new(process: &'p C) -> Self {
        Elsewhere {
            process,
            interpreter: Cell::new(None),
        }
    }
}

impl<C: ProcessCode> Around for Elsewhere<'_, C> {
    fn is_start(&self, at: u64) -> bool {
        let mut before = [0; instructions::BYTES_BEFORE_START];
        let read = self.process.read(at.wrapping_sub(before.len() as u64), &mut before);
        instructions::is_start(&before[..read], at)
    }

    fn code(&self, at: u64) -> Vec<u8> {
        let made = self.process.find(at).filter(|mapping| !self.process.is_file(*mapping));
        self.piece(made, at, FAR_BYTES)
    }

    fn following(&self, at: u64) -> Vec<u8> {
        self.piece(self.process.find(at), at, instructions::BYTES_FROM)
    }

    fn described(&self, at: u64) -> Option<FunctionRule> {
        let found = self.process.rule(self.process.find(at)?, at)?;
        if found.is_interpreter(self.process.arch()) {
            self.interpreter.set(Some((at, found.rule)));
        }
        Some(found)
    }
}

impl<C: ProcessCode> Elsewhere<'_, C> {
    /// At most this many bytes from `at` on.
    fn piece(&self, mapping: Option<C::Mapping>, at: u64, most: u64) -> Vec<u8> {
        let end = mapping.map(|mapping| self.process.range(mapping).end.min(at.saturating_add(most)));
        end.map(|end| read(self.process, at..end)).unwrap_or_default()
    }
}
