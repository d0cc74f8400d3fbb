//! Names that a recording brings with it, and the names to give to one.

use std::collections::HashMap;

use backtrail_recording::{Reader, SpaceOwner, SymbolEntry, SymbolSpace, Symbols};
use rustc_hash::FxHashMap;

use super::source::Call;
use super::{Location, LocationId, Origin, Place, Symbolizer, SystemFiles};
use crate::modules::File;

/// The names in a recording.
#[derive(Debug, Default)]
pub(super) struct Packed {
    files: HashMap<File, PackedFile>,
    kernel: Vec<SymbolEntry>,
    processes: FxHashMap<u32, PackedProcess>,
    /// Notes about names that were not found when these were.
    pub(super) notes: Vec<String>,
    /// Whether nothing else is asked.
    pub(super) is_alone: bool,
}

#[derive(Debug)]
struct PackedFile {
    base_vaddr: u64,
    entries: Vec<SymbolEntry>,
}

#[derive(Debug)]
struct PackedProcess {
    entries: Vec<SymbolEntry>,
    /// When an address got other names than before.
    changes: Vec<u64>,
    time: u64,
}

impl Packed {
    pub(super) fn new(symbols: Symbols, is_alone: bool) -> Packed {
        let mut packed = Packed {
            notes: symbols.notes,
            is_alone,
            ..Packed::default()
        };
        for SymbolSpace { owner, mut entries } in symbols.spaces {
            // Damage that is no error must not lead look-ups astray.
            entries.sort_by_key(|entry| (entry.address, entry.time));
            match owner {
                SpaceOwner::File {
                    path,
                    build_id,
                    elsewhere,
                    base_vaddr,
                } => {
                    let file = File {
                        path,
                        build_id,
                        elsewhere,
                    };
                    packed.files.insert(file, PackedFile { base_vaddr, entries });
                }
                SpaceOwner::Kernel => packed.kernel = entries,
                SpaceOwner::Process(pid) => {
                    let pairs = entries.windows(2).filter(|pair| pair[0].address == pair[1].address);
                    let mut changes: Vec<u64> = pairs.map(|pair| pair[1].time).collect();
                    changes.sort_unstable();
                    let process = PackedProcess {
                        entries,
                        changes,
                        time: 0,
                    };
                    packed.processes.insert(pid, process);
                }
            }
        }
        packed
    }

    pub(super) fn base_vaddr(&self, file: &File) -> Option<u64> {
        Some(self.files.get(file)?.base_vaddr)
    }

    pub(super) fn in_file(&self, file: &File, svma: u64) -> Option<Vec<Call>> {
        let entries = &self.files.get(file)?.entries;
        let index = entries.binary_search_by_key(&svma, |entry| entry.address).ok()?;
        Some(entries[index].calls.clone())
    }

    pub(super) fn in_kernel(&self, address: u64) -> Option<Location> {
        let index = self.kernel.binary_search_by_key(&address, |entry| entry.address).ok()?;
        Some(location(&self.kernel[index], Origin::Kernel))
    }

    /// The entry of an address of a process, if it has one now.
    pub(super) fn find_in_process(&self, pid: u32, address: u64) -> Option<usize> {
        let process = self.processes.get(&pid)?;
        let after = process
            .entries
            .partition_point(|entry| (entry.address, entry.time) <= (address, process.time));
        let index = after.checked_sub(1)?;
        (process.entries[index].address == address).then_some(index)
    }

    pub(super) fn in_process(&self, pid: u32, index: usize) -> Option<Location> {
        let entry = self.processes.get(&pid)?.entries.get(index)?;
        Some(location(entry, Origin::Generated))
    }

    /// Advances to a time, and returns whether names change.
    pub(super) fn advance(&mut self, pid: u32, time: u64) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else {
            return false;
        };
        let before = std::mem::replace(&mut process.time, time);
        let passed = |time: u64| process.changes.partition_point(|&change| change <= time);
        passed(before) != passed(time)
    }
}

fn location(entry: &SymbolEntry, origin: Origin) -> Location {
    Location {
        module: entry.module.clone(),
        origin,
        calls: entry.calls.clone(),
    }
}

/// What addresses outside of files meant at their times.
#[derive(Debug, Default)]
pub(super) struct Moments {
    now: u64,
    found: FxHashMap<(u32, u64), Vec<(u64, LocationId)>>,
}

impl Moments {
    pub(super) fn advance(&mut self, time: u64) {
        self.now = time;
    }

    /// Returns the location.
    pub(super) fn note(&mut self, pid: u32, address: u64, id: LocationId) -> LocationId {
        let moments = self.found.entry((pid, address)).or_default();
        if moments.last().is_none_or(|&(_, last)| last != id) {
            moments.push((self.now, id));
        }
        id
    }
}

impl Symbolizer {
    /// Names of a recording: those that it has in itself, or else those of these files.
    pub fn of_recording(reader: &mut Reader, system: SystemFiles) -> Symbolizer {
        let symbolizer = Symbolizer::new(system);
        match reader.take_symbols() {
            Some(symbols) => symbolizer.only_from(symbols),
            None => symbolizer,
        }
    }

    /// Takes all names from the ones that a recording brings with it, and asks nothing else.
    #[must_use]
    pub fn only_from(mut self, symbols: Symbols) -> Symbolizer {
        self.packed = Some(Packed::new(symbols, true));
        self
    }

    /// Takes names from these where no file has them.
    #[must_use]
    pub fn falling_back_to(mut self, symbols: Symbols) -> Symbolizer {
        self.packed = Some(Packed::new(symbols, false));
        self
    }

    /// Notes which names code outside of files has over time, so that
    /// [`into_symbols`](Self::into_symbols) has them.
    #[must_use]
    pub(crate) fn noting_moments(mut self) -> Symbolizer {
        self.moments = Some(Moments::default());
        self
    }

    /// All names that were looked up.
    pub(crate) fn into_symbols(self) -> Symbols {
        let mut files: Vec<Vec<SymbolEntry>> = vec![Vec::new(); self.modules.len()];
        let mut kernel = Vec::new();
        for (location, &(place, ..)) in self.locations.iter().zip(&self.places) {
            let entry = |address, module: &str| SymbolEntry {
                address,
                time: 0,
                module: module.to_owned(),
                calls: location.calls.clone(),
            };
            match place {
                Place::File(file, _) | Place::Fixed(file, _) => {
                    files[file.0 as usize].push(entry(self.svma(place), ""));
                }
                Place::Kernel(address) => kernel.push(entry(address, &location.module)),
                Place::Jit(..) | Place::Process(..) | Place::Packed(..) => {}
            }
        }
        let mut spaces = Vec::new();
        let mut push = |owner, mut entries: Vec<SymbolEntry>| {
            entries.sort_by_key(|entry| (entry.address, entry.time));
            entries.dedup_by_key(|entry| (entry.address, entry.time));
            if !entries.is_empty() {
                spaces.push(SymbolSpace { owner, entries });
            }
        };
        for (index, entries) in files.into_iter().enumerate() {
            let file = self.modules.file(crate::modules::FileId(index as u32));
            let owner = SpaceOwner::File {
                path: file.path.clone(),
                build_id: file.build_id.clone(),
                elsewhere: file.elsewhere,
                base_vaddr: self.base_vaddr(crate::modules::FileId(index as u32)),
            };
            push(owner, entries);
        }
        push(SpaceOwner::Kernel, kernel);
        let mut processes: HashMap<u32, Vec<SymbolEntry>> = HashMap::new();
        let moments = self.moments.iter().flat_map(|moments| &moments.found);
        for (&(pid, address), moments) in moments {
            let entries = processes.entry(pid).or_default();
            entries.extend(moments.iter().enumerate().map(|(index, &(time, id))| SymbolEntry {
                address,
                // The first names hold from the start: nothing was asked before.
                time: if index == 0 { 0 } else { time },
                module: self.location(id).module.clone(),
                calls: self.location(id).calls.clone(),
            }));
        }
        let mut processes: Vec<_> = processes.into_iter().collect();
        processes.sort_unstable_by_key(|&(pid, _)| pid);
        for (pid, entries) in processes {
            push(SpaceOwner::Process(pid), entries);
        }
        Symbols {
            spaces,
            notes: self.notes(),
        }
    }
}
