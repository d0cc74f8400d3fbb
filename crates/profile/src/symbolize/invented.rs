//! Made-up symbols for tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backtrail_arch::Cpu;

use super::source::{Call, ModuleSymbols, SymbolSource, Unavailable};
use crate::modules::File;

/// The name of a function that has only a start.
pub(crate) const STRIPPED: &str = "?";

/// The name of padding.
pub(crate) const PADDING: &str = "int3";

/// Files with made-up functions; all other files are missing.
#[derive(Default)]
pub(crate) struct Invented {
    files: HashMap<String, InventedFile>,
    lookups: Arc<AtomicUsize>,
}

#[derive(Clone, Default)]
struct InventedFile {
    base_vaddr: u64,
    /// First address, and the calls there, innermost first; an empty list ends the previous
    /// function.
    functions: Vec<(u64, Vec<&'static str>)>,
    lookups: Arc<AtomicUsize>,
}

impl Invented {
    /// Adds a file with functions, ascending by address. A function's name is followed by those
    /// that it was inlined into, separated by ` < `; an empty name ends the previous function. A
    /// name may be followed by `@` and its source file.
    pub(crate) fn with_file(mut self, path: &str, base_vaddr: u64, functions: &[(u64, &'static str)]) -> Invented {
        let functions = functions
            .iter()
            .map(|&(start, names)| (start, names.split(" < ").filter(|name| !name.is_empty()).collect()))
            .collect();
        let file = InventedFile {
            base_vaddr,
            functions,
            lookups: Arc::default(),
        };
        self.files.insert(path.to_string(), file);
        self
    }

    /// Counts look-ups of addresses.
    pub(crate) fn counting(mut self, lookups: &Arc<AtomicUsize>) -> Invented {
        self.lookups = Arc::clone(lookups);
        self
    }
}

impl SymbolSource for Invented {
    fn open(&mut self, file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        let mut found = self.files.get(&file.path).ok_or(Unavailable::Missing)?.clone();
        found.lookups = Arc::clone(&self.lookups);
        Ok(Box::new(found))
    }
}

impl ModuleSymbols for InventedFile {
    fn base_vaddr(&self) -> u64 {
        self.base_vaddr
    }

    fn lookup(&self, svma: u64) -> Option<Vec<Call>> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let (start, names) = self.functions.iter().rev().find(|(start, _)| *start <= svma)?;
        if [STRIPPED, PADDING].iter().any(|name| names == &[*name]) {
            return None;
        }
        let calls = names.iter().enumerate().map(|(depth, name)| Call {
            function: name.split('@').next().unwrap_or(name).to_string(),
            offset: Some(svma - start),
            // One line per 4 bytes.
            file: name.split_once('@').map(|(_, file)| file.to_string()),
            line: name.contains('@').then_some((svma - start) as u32 / 4 + 1),
            inlined: depth + 1 < names.len(),
        });
        Some(calls.collect())
    }

    fn start(&self, svma: u64) -> Option<u64> {
        let (start, names) = self.functions.iter().rev().find(|(start, _)| *start <= svma)?;
        (names == &[STRIPPED]).then_some(*start)
    }

    fn code(&self, svma: u64, most: u64) -> Option<(Cpu, &[u8])> {
        const INT3: [u8; 64] = [0xcc; 64];
        let (_, names) = self.functions.iter().rev().find(|(start, _)| *start <= svma)?;
        (names == &[PADDING]).then(|| (Cpu::X86_64, &INT3[..most.min(64) as usize]))
    }

    fn bytes(&self) -> u64 {
        1000
    }
}
