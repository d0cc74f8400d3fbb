//! Return addresses that no call has pushed: a run-time system keeps them in tables and pushes them
//! itself.
//!
//! HotSpot's interpreter enters a method by a jump, with a return address from a table in libjvm's
//! data. Such an address is accepted if it points into code made at run time and occurs in that
//! data. Other run-time systems have addresses of code in their data that no frame returns to, so
//! only HotSpot is handled this way. Erlang pushes a single one (see `erlang`).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::erlang;
use crate::process_code::{ProcessCode, Region};

/// Processes that are remembered; beyond this number all are forgotten.
const MOST_PROCESSES: usize = 1 << 10;
/// Bytes that are read of one mapping: the kernel may have joined a module's data with other
/// memory.
const MOST_OF_MAPPING: u64 = 4 << 20;
/// Bytes that are read of a process's data.
const MOST_DATA: u64 = 64 << 20;

/// The addresses that a process's run-time system pushes.
#[derive(Debug, Default)]
struct Tables {
    addresses: FxHashSet<u64>,
    /// The one to which the first function of an Erlang process returns.
    erlang_end: Option<u64>,
    /// Failed lookups since the data was read; each time, the data is read again only after twice
    /// as many.
    misses: u32,
    patience: u32,
}

/// Addresses in the data of modules, by process.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    by_process: FxHashMap<u32, Tables>,
}

impl Pushed {
    /// Whether a run-time system may have pushed this address.
    pub(crate) fn has(&mut self, process: &impl ProcessCode, address: u64) -> bool {
        if self.by_process.len() >= MOST_PROCESSES && !self.by_process.contains_key(&process.process()) {
            self.by_process.clear();
        }
        let tables = self.by_process.entry(process.process()).or_default();
        if tables.has(address) {
            return true;
        }
        tables.misses = tables.misses.saturating_add(1);
        if tables.misses <= tables.patience {
            return false;
        }
        tables.misses = 0;
        tables.patience = tables.patience.saturating_mul(2).max(1);
        let regions = process.regions();
        tables.addresses = read(process, &regions);
        tables.erlang_end = erlang::normal_exit(process, &regions);
        tables.has(address)
    }

    /// Whether the process runs Erlang's code.
    pub(crate) fn is_erlang(&mut self, process: &impl ProcessCode) -> bool {
        // No such address is pushed, so it looks again from time to time.
        const NONE: u64 = 1;
        self.has(process, NONE);
        let tables = self.by_process.get(&process.process());
        tables.is_some_and(|tables| tables.erlang_end.is_some_and(|end| end != 0))
    }

    /// Whether a stack ends at this address, which [`Pushed::has`] found.
    pub(crate) fn ends_stack(&self, process: &impl ProcessCode, address: u64) -> bool {
        let tables = self.by_process.get(&process.process());
        tables.is_some_and(|tables| tables.erlang_end == Some(address))
    }
}

impl Tables {
    fn has(&self, address: u64) -> bool {
        self.addresses.contains(&address) || self.erlang_end == Some(address)
    }
}

/// The addresses of code made at run time that occur in the data of all modules.
fn read(process: &impl ProcessCode, regions: &[Region]) -> FxHashSet<u64> {
    let is_made = |&word: &u64| {
        let mapping = process.find(word);
        mapping.is_some_and(|mapping| !process.is_file(mapping))
    };
    let mut left = MOST_DATA;
    let mut found = FxHashSet::default();
    for region in data(regions) {
        let len = region
            .range
            .end
            .saturating_sub(region.range.start)
            .min(MOST_OF_MAPPING)
            .min(left);
        left -= len;
        let mut bytes = vec![0; len as usize];
        let read = process.read(region.range.start, &mut bytes);
        let words = bytes[..read].as_chunks::<8>().0.iter();
        found.extend(words.map(|word| u64::from_ne_bytes(*word)).filter(is_made));
    }
    found
}

/// HotSpot's writable data: mappings of its library, and the anonymous memory right after these.
fn data(regions: &[Region]) -> Vec<&Region> {
    const HOTSPOT: &str = "/libjvm.so";
    let code = regions
        .iter()
        .filter(|region| region.executable && region.path.ends_with(HOTSPOT));
    let modules: FxHashSet<&str> = code.map(|region| &region.path[..]).collect();
    let belongs = |index: usize| {
        let region = &regions[index];
        let before = index.checked_sub(1).map(|before| &regions[before]);
        let is_bss = |before: &Region| before.range.end == region.range.start && modules.contains(&before.path[..]);
        modules.contains(&region.path[..]) || region.path.is_empty() && before.is_some_and(is_bss)
    };
    let writable = (0..regions.len()).filter(|&index| regions[index].writable && !regions[index].executable);
    writable
        .filter(|&index| belongs(index))
        .map(|index| &regions[index])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_what_modules_may_write() {
        let entry = |start, end, path: &str, permissions: &str| Region {
            range: start..end,
            writable: permissions.contains('w'),
            executable: permissions.contains('x'),
            path: path.to_owned(),
        };
        let regions = [
            entry(0x1000, 0x2000, "/lib/libjvm.so", "x"),
            entry(0x2000, 0x3000, "/lib/libjvm.so", "w"),
            entry(0x3000, 0x4000, "", "w"),
            entry(0x4000, 0x5000, "/an/archive", "w"),
            entry(0x5000, 0x6000, "", "w"),
            entry(0x9000, 0xa000, "[stack]", "w"),
        ];
        let starts: Vec<u64> = data(&regions).iter().map(|region| region.range.start).collect();
        assert_eq!(starts, [0x2000, 0x3000]);
    }
}
