//! The string table of a dict, and strings that the file around it already has ("The string
//! section").

use rustc_hash::FxHashMap;

use super::WriteError;

/// The bit of a reference that selects the external table.
const EXTERNAL: u32 = 0x8000_0000;

/// Names in a string table of the file around a section, so that dicts can refer to them.
#[derive(Clone, Debug, Default)]
pub struct ExternalStrings<'s> {
    at: FxHashMap<&'s [u8], u32>,
}

impl<'s> ExternalStrings<'s> {
    /// Collects the strings of `.strtab` or `.dynstr`, each from its beginning in the table.
    pub fn new(table: &'s [u8]) -> ExternalStrings<'s> {
        let mut at = FxHashMap::default();
        let mut offset = 0;
        // An unterminated string does not count, and references can't reach beyond 2 GiB.
        while let Some(len) = table
            .get(offset..)
            .and_then(|tail| tail.iter().position(|&byte| byte == 0))
        {
            if offset >= EXTERNAL as usize {
                break;
            }
            at.entry(&table[offset..offset + len]).or_insert(offset as u32);
            offset += len + 1;
        }
        ExternalStrings { at }
    }

    fn get(&self, string: &[u8]) -> Option<u32> {
        self.at.get(string).map(|at| at | EXTERNAL)
    }
}

/// The strings of a dict, each once, and their offsets. Add all strings before looking any up.
pub(super) struct Strings<'a, 's> {
    external: Option<&'s ExternalStrings<'s>>,
    at: FxHashMap<&'a [u8], u32>,
}

impl<'a, 's> Strings<'a, 's> {
    pub(super) fn new(external: Option<&'s ExternalStrings<'s>>) -> Strings<'a, 's> {
        Strings {
            external,
            at: FxHashMap::default(),
        }
    }

    pub(super) fn add(&mut self, string: &'a [u8]) {
        if string.is_empty() || self.at.contains_key(string) {
            return;
        }
        let at = self.external.and_then(|external| external.get(string));
        self.at.insert(string, at.unwrap_or(0));
    }

    /// Assigns each string its offset. The table is sorted because that compresses best.
    pub(super) fn place(&mut self) -> Result<Vec<u8>, WriteError> {
        let internal = self.at.iter_mut().filter(|(_, at)| **at == 0);
        let mut internal: Vec<(&[u8], &mut u32)> = internal.map(|(string, at)| (*string, at)).collect();
        internal.sort_unstable_by_key(|(string, _)| *string);
        let mut table = vec![0];
        for (string, at) in internal {
            if table.len() >= EXTERNAL as usize {
                return Err(WriteError::TooLarge);
            }
            *at = table.len() as u32;
            table.extend_from_slice(string);
            table.push(0);
        }
        Ok(table)
    }

    /// The reference to a string that has been added.
    pub(super) fn get(&self, string: &[u8]) -> u32 {
        self.at.get(string).copied().unwrap_or(0)
    }
}
