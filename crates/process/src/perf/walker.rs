//! The program that walks stacks in the kernel, and the tables that it walks by.
//!
//! Where it comes to the outermost frame, its records take the place of the sample; otherwise the
//! sample is written with its copy of the stack.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::programs::{BEGIN, FINDER, LICENSE, WALKER, is_initial_namespace};
use crate::sys::{self, BpfMap, MapKind};

/// The most tables.
const MOST_TABLES: u32 = 1 << 14;
/// The most processes.
const MOST_PROCESSES: u32 = 1 << 14;
/// `LOAD_MAP` with the descriptor of a map (`BPF_PSEUDO_MAP_FD`).
const MAP_FD: u64 = 1 << 12;

/// What an instruction refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkMap {
    /// By process number, its ranges of addresses.
    Processes,
    /// By number, tables.
    Tables,
    /// By CPU, what the program keeps.
    States,
    /// By CPU, events to write to.
    Events,
    /// Programs to continue with: the copier is number 1, the walker number 2, the copier of other
    /// stacks number 3, and the finder number 5.
    Programs,
}

/// Instructions, and which of them load the address of a map.
#[derive(Clone, Debug)]
pub struct WalkCode {
    /// `struct bpf_insn`.
    pub instructions: Vec<u64>,
    /// Numbers of instructions.
    pub maps: Vec<(usize, WalkMap)>,
}

/// The program, and the sizes of what it shares with us.
#[derive(Clone, Debug)]
pub struct WalkProgram {
    /// Runs first.
    pub begin: WalkCode,
    /// Walks some frames by rules that were looked up before, and continues with itself, or with
    /// the finder.
    pub walk: WalkCode,
    /// Looks up the rules of some frames, walks them, and continues with the walker.
    pub find: WalkCode,
    /// Bytes of a process's value.
    pub process_bytes: u32,
    /// Bytes of a page of a table.
    pub page_bytes: u32,
    /// Bytes of a CPU's state.
    pub state_bytes: u32,
    /// Where a state has the timer's period, in nanoseconds.
    pub period_at: usize,
    /// Where a state has the number of samples that the timer left out.
    pub missed_at: usize,
}

/// The tables in the kernel.
#[derive(Clone, Debug)]
pub struct KernelTables {
    shared: Arc<Shared>,
}

/// A table in the kernel that has no number yet.
#[derive(Debug)]
pub struct KernelTable(BpfMap);

impl KernelTable {
    /// Made of `pages` of `page_bytes` each, as [`KernelTables::page_bytes`] says.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(pages: &[u8], page_bytes: u32) -> io::Result<KernelTable> {
        let pages = pages.chunks_exact(page_bytes as usize);
        let map = BpfMap::new(MapKind::InnerArray, 4, page_bytes, pages.len() as u32)?;
        for (index, page) in (0_u32..).zip(pages) {
            map.set(&index.to_ne_bytes(), page)?;
        }
        Ok(KernelTable(map))
    }
}

#[derive(Debug)]
struct Shared {
    processes: BpfMap,
    tables: BpfMap,
    states: BpfMap,
    cpus: u32,
    missed_at: usize,
    page_bytes: u32,
    /// One more than the highest number of a table.
    end: AtomicU32,
    generations: AtomicU32,
}

impl KernelTables {
    /// Bytes of a table's page.
    pub fn page_bytes(&self) -> u32 {
        self.shared.page_bytes
    }

    /// Gives these tables the numbers from `first` on; what had them is freed. Returns after no
    /// program uses it any more, which takes some ten milliseconds.
    ///
    /// # Errors
    /// If the numbers are too high, or there is no memory.
    pub fn set_tables(&self, first: u32, tables: &[KernelTable]) -> io::Result<()> {
        let numbers: Vec<u32> = (first..).take(tables.len()).collect();
        let maps: Vec<u32> = tables.iter().map(|table| table.0.as_fd().as_raw_fd() as u32).collect();
        let end = first.saturating_add(tables.len() as u32);
        self.shared.end.fetch_max(end, Ordering::Relaxed);
        self.shared.tables.set_all(&words(&numbers), &words(&maps))
    }

    /// Frees all tables.
    pub fn remove_tables(&self) {
        let end = self.shared.end.swap(0, Ordering::Relaxed);
        self.shared.tables.remove_all(&words(&(0..end).collect::<Vec<_>>()));
    }

    /// Another number at each call, for the ranges of a process; never 0.
    pub fn generation(&self) -> u32 {
        let next = || self.shared.generations.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        match next() {
            0 => next(),
            generation => generation,
        }
    }

    /// Walks the stacks of this process from now on, by ranges in the program's format.
    ///
    /// # Errors
    /// If there are too many processes.
    pub fn set_process(&self, pid: u32, ranges: &[u8]) -> io::Result<()> {
        self.shared.processes.set(&pid.to_ne_bytes(), ranges)
    }

    /// How many samples the timer has left out, because walks took longer than its period.
    pub fn missed(&self) -> u64 {
        let states = &self.shared.states;
        let missed_at = self.shared.missed_at;
        let of_cpu = |cpu: u32| {
            let state = states.get(&cpu.to_ne_bytes()).ok()?;
            let word = state.get(missed_at..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*word))
        };
        (0..self.shared.cpus).filter_map(of_cpu).sum()
    }

    /// Copies the stacks of this process from now on.
    pub fn remove_process(&self, pid: u32) {
        // It may not be there.
        let _ = self.shared.processes.remove(&pid.to_ne_bytes());
    }
}

/// Loads the program, in any thread: the kernel's verifier takes tenths of a second.
#[derive(Debug)]
pub struct WalkLoader {
    /// One more than the highest number of a CPU.
    pub(super) cpus: u32,
    pub(super) period_ns: u64,
    /// By which events find the program.
    pub(super) programs: BpfMap,
    /// By CPU, events to write to.
    pub(super) events: BpfMap,
}

impl WalkLoader {
    /// Starts to walk stacks in the kernel, those of the processes in the tables, until the sampler
    /// is dropped.
    ///
    /// # Errors
    /// If the machine or the rights do not allow it.
    pub fn load(&self, program: &WalkProgram) -> io::Result<KernelTables> {
        if !is_initial_namespace() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let processes = BpfMap::new(MapKind::SparseHash, 4, program.process_bytes, MOST_PROCESSES)?;
        let page = BpfMap::new(MapKind::InnerArray, 4, program.page_bytes, 1)?;
        let tables = BpfMap::of_maps(&page, MOST_TABLES)?;
        let states = self.states(program)?;
        let load = |code: &WalkCode| {
            let fd = |map: WalkMap| match map {
                WalkMap::Processes => processes.as_fd(),
                WalkMap::Tables => tables.as_fd(),
                WalkMap::States => states.as_fd(),
                WalkMap::Events => self.events.as_fd(),
                WalkMap::Programs => self.programs.as_fd(),
            };
            sys::load_program(&linked(code, fd), &[], LICENSE)
        };
        // The first one is called once the others are there. The map keeps the programs, and they
        // keep the states.
        let parts = [
            (FINDER, &program.find),
            (WALKER, &program.walk),
            (BEGIN, &program.begin),
        ];
        for (number, code) in parts {
            let loaded = load(code)?;
            self.programs
                .set(&number.to_ne_bytes(), &loaded.as_raw_fd().to_ne_bytes())?;
        }
        Ok(KernelTables {
            shared: Arc::new(Shared {
                processes,
                tables,
                states,
                cpus: self.cpus,
                missed_at: program.missed_at,
                page_bytes: program.page_bytes,
                end: AtomicU32::new(0),
                generations: AtomicU32::new(0),
            }),
        })
    }

    /// What the program keeps for each CPU.
    fn states(&self, program: &WalkProgram) -> io::Result<BpfMap> {
        let states = BpfMap::new(MapKind::Array, 4, program.state_bytes, self.cpus)?;
        let mut state = vec![0; program.state_bytes as usize];
        let period = state.get_mut(program.period_at..).and_then(<[u8]>::first_chunk_mut);
        *period.ok_or(io::ErrorKind::InvalidInput)? = self.period_ns.to_ne_bytes();
        for cpu in 0..self.cpus {
            states.set(&cpu.to_ne_bytes(), &state)?;
        }
        Ok(states)
    }
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn linked<'m>(code: &WalkCode, fd: impl Fn(WalkMap) -> BorrowedFd<'m>) -> Vec<u64> {
    let mut instructions = code.instructions.clone();
    for &(at, map) in &code.maps {
        if let Some(instruction) = instructions.get_mut(at) {
            let fd = u64::from(fd(map).as_raw_fd() as u32);
            *instruction = *instruction & 0x0fff | MAP_FD | fd << 32;
        }
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_set_and_freed_together() {
        const PAGE: u32 = 64;
        let inner = BpfMap::new(MapKind::InnerArray, 4, PAGE, 1);
        let Ok(tables) = inner.and_then(|inner| BpfMap::of_maps(&inner, 8)) else {
            println!("SKIPPED: no maps may be made here");
            return;
        };
        let shared = Shared {
            processes: BpfMap::new(MapKind::Hash, 4, 8, 1).expect("others could be made"),
            states: BpfMap::new(MapKind::Array, 4, 16, 2).expect("others could be made"),
            cpus: 2,
            missed_at: 8,
            tables,
            page_bytes: PAGE,
            end: AtomicU32::new(0),
            generations: AtomicU32::new(u32::MAX - 1),
        };
        let tables = KernelTables {
            shared: Arc::new(shared),
        };
        let some = |count: usize| {
            let made = (0..count).map(|_| KernelTable::new(&[0; 3 * PAGE as usize], tables.page_bytes()));
            made.collect::<io::Result<Vec<_>>>().expect("there is memory")
        };
        tables.set_tables(0, &some(3)).expect("there is room");
        tables.set_tables(3, &some(1)).expect("there is room");
        tables.set_tables(4, &[]).expect("nothing is to be set");
        assert!(tables.set_tables(6, &some(3)).is_err(), "there are eight");
        for (cpu, missed) in [(0_u32, 5_u64), (1, 7)] {
            let state = [3, missed].map(u64::to_ne_bytes);
            let states = &tables.shared.states;
            states
                .set(&cpu.to_ne_bytes(), state.as_flattened())
                .expect("there are two");
        }
        assert_eq!(tables.missed(), 12);
        assert_eq!([(); 3].map(|()| tables.generation()), [u32::MAX, 1, 2], "never 0");
        let remove = |number: u32| tables.shared.tables.remove(&number.to_ne_bytes());
        remove(1).expect("it is there");
        tables.remove_tables();
        for number in 0..8 {
            assert!(remove(number).is_err(), "{number} is freed");
        }
    }
}
