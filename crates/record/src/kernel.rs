//! Walks in the kernel: which tables it has, and of which processes.
//!
//! A process is walked there once a stack of it was walked here: only tables that stacks have
//! reached into are worth their memory. What the kernel's walk has read is walked again here, so
//! tables that are late cost no more than the end of a stack.

use std::ops::Range;
use std::rc::Rc;
use std::thread::JoinHandle;

use backtrail_arch::Arch;
use backtrail_bpf::layout::{self, TableRange};
use backtrail_bpf::{self as bpf, Code, Map, Rule};
use backtrail_process::perf::{KernelTables, Sampler, WalkCode, WalkLoader, WalkMap, WalkProgram};
use backtrail_process::{proc, this_machine};
use backtrail_recording::Stop;
use backtrail_sframe::Section;
use rustc_hash::FxHashMap;

use crate::aside;
use crate::kernel_tables::TableMaker;
use crate::modules::Modules;
use crate::options::Walk;
use crate::spaces::Space;

/// The most tables, each of up to half a million rows.
const MOST_TABLES: u32 = 1 << 13;
/// The most bytes of tables: programs may map any number of files.
const MOST_BYTES: u64 = 512 << 20;

/// The parts of a section's addresses, and the numbers of their tables.
type Parts = Rc<[(Range<u64>, u32)]>;

/// Stacks of a process that are cut where their copies end, after which they are walked in the
/// kernel: more than those of a program that is deep only while it starts, because loading the
/// program takes a quarter of a second of a CPU.
const ENOUGH_CUT: u32 = 250;
/// Lost samples after which all processes are walked in the kernel, whose records are far smaller
/// than copies: threads with real-time priority leave the recorder little time to read them.
const ENOUGH_LOST: u64 = 250;

/// Which processes are walked in the kernel: all that can be, or those with deep stacks.
#[derive(Debug, Default)]
pub(crate) struct InKernel<'a> {
    /// `None` if no process is.
    wanted: Option<Wanted>,
    /// The program while it is loaded.
    loading: Option<JoinHandle<Option<KernelTables>>>,
    walks: Option<KernelWalks<'a>>,
}

#[derive(Debug)]
enum Wanted {
    All,
    /// Those of which this many stacks were cut.
    Deep(FxHashMap<u32, u32>),
}

impl<'a> InKernel<'a> {
    pub(crate) fn new(walk: Walk, sampler: &mut Sampler) -> InKernel<'a> {
        match walk {
            Walk::Copy => InKernel::default(),
            Walk::Auto => InKernel {
                wanted: Some(Wanted::Deep(FxHashMap::default())),
                ..InKernel::default()
            },
            Walk::Kernel => {
                let tables = sampler.walk_loader().and_then(load);
                InKernel {
                    wanted: tables.is_some().then_some(Wanted::All),
                    walks: tables.map(KernelWalks::new),
                    ..InKernel::default()
                }
            }
        }
    }

    /// Whether no stack will be walked there.
    pub(crate) fn is_impossible(&self) -> bool {
        self.wanted.is_none()
    }

    /// Loads the program once a process needs it, or enough samples were lost.
    pub(crate) fn prepare(&mut self, sampler: &mut Sampler, lost: u64) {
        if self.wanted.is_some() && lost >= ENOUGH_LOST {
            self.wanted = Some(Wanted::All);
        }
        let is_needed = match &self.wanted {
            None => false,
            Some(Wanted::All) => true,
            Some(Wanted::Deep(cut)) => cut.values().any(|count| *count >= ENOUGH_CUT),
        };
        if let Some(loaded) = self.loading.take_if(|loading| loading.is_finished()) {
            self.walks = loaded.join().ok().flatten().map(KernelWalks::new);
        } else if self.walks.is_none() && self.loading.is_none() && is_needed {
            let loader = sampler.walk_loader();
            self.loading = loader.and_then(|loader| aside::start("backtrail-load", || load(loader)).ok());
        } else {
            return;
        }
        if self.walks.is_none() && self.loading.is_none() {
            self.wanted = None;
        }
    }

    /// What has the tables, if this process, of which a copied stack ended so, is to be walked by
    /// them.
    pub(crate) fn wanted(&mut self, pid: u32, stop: Stop) -> Option<&mut KernelWalks<'a>> {
        let is_cut = matches!(stop, Stop::BeyondCopy | Stop::Unreadable);
        if let Wanted::Deep(cut) = self.wanted.as_mut()? {
            if is_cut {
                *cut.entry(pid).or_default() += 1;
            }
            cut.get(&pid).filter(|count| **count >= ENOUGH_CUT)?;
        }
        self.walks.as_mut().filter(|_| is_cut || stop == Stop::EndOfStack)
    }

    /// The process has ended, runs another program, or is walked by other tables than its own.
    pub(crate) fn forget(&mut self, pid: u32) {
        if let Some(Wanted::Deep(cut)) = &mut self.wanted {
            cut.remove(&pid);
        }
        if let Some(walks) = &mut self.walks {
            walks.forget(pid);
        }
    }

    /// Bytes and rows of all tables.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.walks.as_ref().map_or((0, 0), KernelWalks::size)
    }

    /// How many samples were not taken because walks took longer than the timer's period.
    pub(crate) fn missed(&self) -> u64 {
        self.walks.as_ref().map_or(0, |walks| walks.tables.missed())
    }

    /// The same without tables, which come again when they are needed.
    pub(crate) fn without_tables(self) -> InKernel<'static> {
        InKernel {
            wanted: self.wanted,
            loading: self.loading,
            walks: self.walks.map(|walks| KernelWalks::new(walks.into_tables())),
        }
    }
}

/// What the kernel has.
#[derive(Debug)]
pub(crate) struct KernelWalks<'a> {
    arch: &'static Arch,
    tables: KernelTables,
    maker: Option<TableMaker>,
    sections: FxHashMap<SectionKey, KnownSection<'a>>,
    /// By number, those whose tables are being made.
    awaited: FxHashMap<u64, SectionKey>,
    next_section: u64,
    /// How many sections have got their tables.
    made: u64,
    /// How many tables there are.
    count: u32,
    processes: FxHashMap<u32, Installed>,
    /// Bytes and rows of all tables.
    bytes: u64,
    rows: u64,
}

/// Where a section's bytes are, and its address: files with the same table share its bytes. And
/// whether there are rules for code without rows.
type SectionKey = (usize, u64, bool);

/// A section, whose bytes stay where they are.
#[derive(Debug)]
struct KnownSection<'a> {
    _bytes: &'a [u8],
    /// `None` while they are being made.
    parts: Option<Parts>,
}

/// A process in the kernel's tables.
#[derive(Debug)]
struct Installed {
    /// The generation of its mappings.
    generation: u64,
    /// [`Modules::used`] and [`KernelWalks::made`] at the time.
    known: (u64, u64),
    ranges: Vec<TableRange>,
}

impl<'a> KernelWalks<'a> {
    /// Begins with a loaded program that has no tables.
    fn new(tables: KernelTables) -> KernelWalks<'a> {
        let arch = this_machine();
        KernelWalks {
            arch,
            maker: TableMaker::start(arch, tables.clone()),
            tables,
            sections: FxHashMap::default(),
            awaited: FxHashMap::default(),
            next_section: 0,
            made: 0,
            count: 0,
            processes: FxHashMap::default(),
            bytes: 0,
            rows: 0,
        }
    }

    /// The loaded program, without its tables.
    fn into_tables(mut self) -> KernelTables {
        self.give_back();
        self.tables
    }

    /// A stack of this process was copied: the next ones are to be walked, if the kernel has what
    /// it needs for that.
    pub(crate) fn install(&mut self, pid: u32, space: &Space, modules: &Modules<'a>) {
        self.take_made();
        let (generation, known) = (space.generation(), (modules.used(), self.made));
        let installed = self.processes.get(&pid);
        if installed.is_some_and(|process| (process.generation, process.known) == (generation, known)) {
            return;
        }
        if self.bytes > MOST_BYTES || self.count >= MOST_TABLES {
            self.give_back();
            self.maker = TableMaker::start(self.arch, self.tables.clone());
        }
        let ranges = self.ranges(space, modules);
        let before = self.processes.remove(&pid);
        let ranges = match (ranges, before) {
            (Some(ranges), before) => {
                let is_same = before.is_some_and(|before| before.ranges == ranges);
                if !is_same && !self.set(pid, &ranges) {
                    self.tables.remove_process(pid);
                }
                ranges
            }
            // The same mappings are still walked by what is there.
            (None, Some(before)) if before.generation == generation => before.ranges,
            (None, _) => {
                self.tables.remove_process(pid);
                Vec::new()
            }
        };
        self.processes.insert(
            pid,
            Installed {
                generation,
                known,
                ranges,
            },
        );
    }

    fn set(&self, pid: u32, ranges: &[TableRange]) -> bool {
        if ranges.is_empty() {
            return false;
        }
        let stack_end = proc::stack_end(pid).unwrap_or(0);
        let value = layout::process(self.arch, self.tables.generation(), stack_end, ranges);
        value.is_some_and(|value| self.tables.set_process(pid, &value).is_ok())
    }

    /// `None` while tables are being made.
    fn ranges(&mut self, space: &Space, modules: &Modules<'a>) -> Option<Vec<TableRange>> {
        let mut ranges: Vec<TableRange> = Vec::new();
        let mut is_whole = true;
        for mapping in space.mappings() {
            let Some((section, bytes, bias)) = modules.used_table(mapping) else {
                continue;
            };
            let Some(parts) = self.parts(&section, bytes, modules.stack_switches(mapping)) else {
                is_whole = false;
                continue;
            };
            for (addresses, table) in parts.iter() {
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
        is_whole.then_some(ranges)
    }

    /// The tables that the kernel has of a section. `None` while they are being made.
    fn parts(&mut self, section: &Section<'a>, bytes: &'a [u8], others: &[(Range<u64>, Rule)]) -> Option<Parts> {
        let key = (bytes.as_ptr().addr(), section.address(), !others.is_empty());
        if let Some(known) = self.sections.get(&key) {
            return known.parts.clone();
        }
        let number = self.next_section;
        self.next_section += 1;
        self.maker.as_ref()?.begin(number, section, bytes, others);
        self.awaited.insert(number, key);
        let known = KnownSection {
            _bytes: bytes,
            parts: None,
        };
        self.sections.insert(key, known);
        None
    }

    /// Takes the tables that have been made meanwhile.
    fn take_made(&mut self) {
        let Some(maker) = &self.maker else { return };
        for made in maker.take() {
            let known = self
                .awaited
                .remove(&made.section)
                .and_then(|key| self.sections.get_mut(&key));
            if let Some(known) = known {
                self.bytes += made.bytes;
                self.rows += made.rows;
                self.count += made.parts.len() as u32;
                self.made += 1;
                known.parts = Some(made.parts.into());
            }
        }
    }

    /// Gives all memory back: what is still needed comes again.
    fn give_back(&mut self) {
        for (pid, _) in self.processes.drain() {
            self.tables.remove_process(pid);
        }
        let maker = self.maker.take();
        maker.into_iter().for_each(TableMaker::end);
        self.tables.remove_tables();
        self.sections.clear();
        self.awaited.clear();
        (self.count, self.bytes, self.rows) = (0, 0, 0);
    }

    /// Bytes and rows of all tables.
    fn size(&self) -> (u64, u64) {
        (self.bytes, self.rows)
    }

    /// The process has ended, or runs another program.
    fn forget(&mut self, pid: u32) {
        if self.processes.remove(&pid).is_some() {
            self.tables.remove_process(pid);
        }
    }
}

/// Loads the program. `None` if the machine or the rights do not allow it.
fn load(loader: WalkLoader) -> Option<KernelTables> {
    let program = bpf::program().ok()?;
    let program = WalkProgram {
        begin: code(program.begin),
        walk: code(program.walk),
        find: code(program.find),
        process_bytes: layout::PROCESS_BYTES as u32,
        page_bytes: layout::PAGE_BYTES as u32,
        state_bytes: layout::STATE_BYTES as u32,
        period_at: layout::PERIOD_AT,
        missed_at: layout::MISSED_AT,
    };
    loader.load(&program).ok()
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
