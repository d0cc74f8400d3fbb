//! Walks in the kernel: which tables it has, and of which processes.
//!
//! A process is walked there once a stack of it was walked here: only tables that stacks have
//! reached into are worth their memory. What the kernel's walk has read is walked again here, so
//! tables that are late cost no more than the end of a stack.

use std::rc::Rc;

use backtrail_arch::Arch;
use backtrail_bpf::layout::{self, TableRange};
use backtrail_bpf::{self as bpf, Code, Map};
use backtrail_process::perf::{KernelTables, Sampler, WalkCode, WalkMap, WalkProgram};
use backtrail_process::this_machine;
use backtrail_sframe::Section;
use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::spaces::Space;

/// The most tables, each of up to half a million rows.
const MOST_TABLES: u32 = 1 << 13;
/// The most bytes of tables: programs may map any number of files.
const MOST_BYTES: u64 = 512 << 20;

/// The parts of a section's addresses, and the numbers of their tables.
type Parts = Rc<[(std::ops::Range<u64>, u32)]>;

/// What the kernel has.
#[derive(Debug)]
pub(crate) struct KernelWalks<'a> {
    arch: &'static Arch,
    tables: KernelTables,
    /// By sections, given by their bytes and address: files with the same table share it.
    by_section: FxHashMap<(&'a [u8], u64), Parts>,
    next: u32,
    processes: FxHashMap<u32, Installed>,
    /// Bytes and rows of all tables.
    bytes: u64,
    rows: u64,
}

/// A process in the kernel's tables.
#[derive(Debug)]
struct Installed {
    generation: u64,
    /// [`Modules::used`] at the time.
    used: u64,
    ranges: Vec<TableRange>,
}

impl<'a> KernelWalks<'a> {
    /// Loads the program. `None` if the machine or the rights do not allow it.
    pub(crate) fn begin(sampler: &mut Sampler) -> Option<KernelWalks<'a>> {
        let program = bpf::program().ok()?;
        let tables = sampler.walk_in_kernel(&WalkProgram {
            begin: code(program.begin),
            walk: code(program.walk),
            process_bytes: layout::PROCESS_BYTES as u32,
            page_bytes: layout::PAGE_BYTES as u32,
            state_bytes: layout::STATE_BYTES as u32,
        })?;
        Some(KernelWalks::again(tables))
    }

    /// Begins with a loaded program that has no tables.
    pub(crate) fn again(tables: KernelTables) -> KernelWalks<'a> {
        KernelWalks {
            arch: this_machine(),
            tables,
            by_section: FxHashMap::default(),
            next: 0,
            processes: FxHashMap::default(),
            bytes: 0,
            rows: 0,
        }
    }

    /// The loaded program, without its tables.
    pub(crate) fn into_tables(mut self) -> KernelTables {
        self.clear();
        self.tables
    }

    /// A stack of this process was copied: the next ones are to be walked, if the kernel has what
    /// it needs for that.
    pub(crate) fn install(&mut self, pid: u32, space: &Space, modules: &Modules<'a>) {
        let (generation, used) = (space.generation(), modules.used());
        let known = self.processes.get(&pid);
        if known.is_some_and(|known| (known.generation, known.used) == (generation, used)) {
            return;
        }
        if self.bytes > MOST_BYTES || self.next >= MOST_TABLES {
            self.clear();
        }
        let ranges = self.ranges(space, modules);
        let is_same = known_ranges(&self.processes, pid) == Some(ranges.as_slice());
        if !is_same && !self.set(pid, &ranges) {
            self.tables.remove_process(pid);
        }
        self.processes.insert(
            pid,
            Installed {
                generation,
                used,
                ranges,
            },
        );
    }

    fn set(&self, pid: u32, ranges: &[TableRange]) -> bool {
        let value = (!ranges.is_empty())
            .then(|| layout::process(self.arch, ranges))
            .flatten();
        value.is_some_and(|value| self.tables.set_process(pid, &value).is_ok())
    }

    fn ranges(&mut self, space: &Space, modules: &Modules<'a>) -> Vec<TableRange> {
        let mut ranges: Vec<TableRange> = Vec::new();
        for mapping in space.mappings() {
            let Some((section, bytes, bias)) = modules.used_table(mapping) else {
                continue;
            };
            for (addresses, table) in self.parts(&section, bytes).iter() {
                let base = addresses.start.wrapping_add(bias);
                let start = base.max(mapping.start);
                let end = addresses.end.wrapping_add(bias).min(mapping.end);
                if start < end {
                    ranges.push(TableRange {
                        addresses: start..end,
                        base,
                        table: *table,
                    });
                }
            }
        }
        ranges
    }

    /// The tables of a section, which the kernel has from then on.
    fn parts(&mut self, section: &Section<'a>, bytes: &'a [u8]) -> Parts {
        let key = (bytes, section.address());
        if let Some(parts) = self.by_section.get(&key) {
            return Rc::clone(parts);
        }
        let mut parts = Vec::new();
        bpf::tables(self.arch, section, |table| {
            let number = self.next;
            if self.tables.set_table(number, &table.pages).is_ok() {
                self.bytes += table.pages.len() as u64;
                self.rows += table.rows as u64;
                parts.push((table.addresses, number));
                self.next += 1;
            }
        });
        let parts: Parts = parts.into();
        self.by_section.insert(key, Rc::clone(&parts));
        parts
    }

    /// Gives all memory back: what is still needed comes again.
    fn clear(&mut self) {
        for (pid, _) in self.processes.drain() {
            self.tables.remove_process(pid);
        }
        for number in 0..self.next {
            self.tables.remove_table(number);
        }
        self.by_section.clear();
        (self.next, self.bytes, self.rows) = (0, 0, 0);
    }

    /// Bytes and rows of all tables.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.bytes, self.rows)
    }

    /// The process has ended, or runs another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        if self.processes.remove(&pid).is_some() {
            self.tables.remove_process(pid);
        }
    }
}

fn known_ranges(processes: &FxHashMap<u32, Installed>, pid: u32) -> Option<&[TableRange]> {
    processes.get(&pid).map(|installed| installed.ranges.as_slice())
}

fn code(code: Code) -> WalkCode {
    let map = |map| match map {
        Map::Processes => WalkMap::Processes,
        Map::Tables => WalkMap::Tables,
        Map::States => WalkMap::States,
        Map::Events => WalkMap::Events,
        Map::Programs => WalkMap::Programs,
    };
    WalkCode {
        instructions: code.instructions,
        maps: code.maps.into_iter().map(|(at, used)| (at, map(used))).collect(),
    }
}
