//! The address spaces of the sampled processes: which file is mapped where.

use std::rc::Rc;

use backtrail_process::proc;
use rustc_hash::FxHashMap;

use crate::memory_image::MappedAt;
use crate::modules::{FileKey, Mapping, ModuleIndex, Modules};

/// Mappings of a process are looked through if there are at least this many: the kernel does not
/// report that something was unmapped.
const MANY: usize = 4096;

/// One process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// By ascending address, without overlaps.
    mappings: Rc<Vec<Mapping>>,
    /// The number of the newest mapping.
    generation: u64,
    /// Threads that have not ended.
    threads: u32,
    /// Whether the mappings were read from `/proc` since records were last lost.
    refreshed: bool,
    /// Whether the process had ended when that was last looked for.
    has_ended: bool,
    /// At this many mappings, if it is more than [`MANY`], they are looked through again.
    many: usize,
}

impl Space {
    /// A number that changes whenever something is mapped; a forked child has its parent's.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// All mappings, by ascending address.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// The end of the last mapping; 0 without any.
    pub(crate) fn end(&self) -> u64 {
        self.mappings.last().map_or(0, |last| last.end)
    }

    /// The mapping that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    /// Whether it is time to remove mappings that are [not there any more](Self::keep).
    fn has_many(&self) -> bool {
        self.mappings.len() >= self.many.max(MANY)
    }

    /// Removes all mappings except these, which are in the order of their addresses.
    fn keep(&mut self, maps: &[proc::MapsEntry]) {
        let is_there = |mapping: &Mapping| {
            let first = maps.partition_point(|map| map.end <= mapping.start);
            let same = |map: &proc::MapsEntry| {
                let at = |start: u64, offset: u64| start.wrapping_sub(offset);
                map.executable && at(map.start, map.file_offset) == at(mapping.start, mapping.file_offset)
            };
            maps[first..].iter().take_while(|map| map.start < mapping.end).any(same)
        };
        let left: Vec<Mapping> = self
            .mappings
            .iter()
            .filter(|mapping| is_there(mapping))
            .cloned()
            .collect();
        self.many = 2 * left.len();
        self.mappings = Rc::new(left);
    }

    /// Adds a mapping, which replaces the older ones that it covers.
    pub(crate) fn insert(&mut self, mut new: Mapping) {
        self.generation = new.id.into();
        let mappings = Rc::make_mut(&mut self.mappings);
        let first = mappings.partition_point(|mapping| mapping.end <= new.start);
        let last = mappings.partition_point(|mapping| mapping.start < new.end);
        let was_other = |old: &Mapping| old.replaces || old.module != new.module;
        new.replaces = mappings[first..last].iter().any(was_other);
        let mut replacement = Vec::with_capacity(3);
        if let Some(cut) = mappings[first..last].first().filter(|cut| cut.start < new.start) {
            replacement.push(Mapping {
                end: new.start,
                ..cut.clone()
            });
        }
        let tail = mappings[first..last]
            .last()
            .filter(|cut| cut.end > new.end)
            .map(|cut| Mapping {
                start: new.end,
                file_offset: cut.file_offset + (new.end - cut.start),
                // A separate mapping from now on: its position must be reported to readers.
                id: new.id + 1,
                ..cut.clone()
            });
        replacement.push(new);
        replacement.extend(tail);
        mappings.splice(first..last, replacement);
    }
}

/// The spaces of all processes.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    by_pid: FxHashMap<u32, Space>,
    next_mapping: u32,
}

impl Spaces {
    /// The space of a process; read from `/proc` if no record has described it.
    pub(crate) fn get(&mut self, pid: u32, modules: &mut Modules<'_>) -> &Space {
        if !self.by_pid.contains_key(&pid) {
            self.read(pid, modules);
        }
        self.by_pid.entry(pid).or_default()
    }

    /// Reads a process's current mappings. Returns whether this was not already done since records
    /// were lost.
    pub(crate) fn refresh(&mut self, pid: u32, modules: &mut Modules<'_>) -> bool {
        if self.by_pid.get(&pid).is_some_and(|space| space.refreshed) {
            return false;
        }
        self.read(pid, modules);
        true
    }

    fn read(&mut self, pid: u32, modules: &mut Modules<'_>) {
        let threads = proc::threads(pid as i32).map_or(1, |threads| threads.len() as u32);
        let maps = proc::maps(pid).unwrap_or_default();
        let space = self.by_pid.entry(pid).or_default();
        space.threads = space.threads.max(threads);
        space.refreshed = true;
        for map in maps.iter().filter(|map| map.executable) {
            let at = MappedAt {
                pid,
                start: map.start,
                end: map.end,
                file_offset: map.file_offset,
            };
            let key = match map.inode {
                0 => FileKey::Unidentified,
                inode => FileKey::Inode {
                    device: map.device,
                    inode,
                },
            };
            let _ = self.map(at, key, map.path.clone(), modules);
        }
    }

    /// A process has mapped a file for execution. Returns whether older mappings of it were
    /// forgotten, because they are not there any more.
    pub(crate) fn map(&mut self, at: MappedAt, key: FileKey, path: String, modules: &mut Modules<'_>) -> bool {
        let module = modules.index(key, path, at);
        let known = self
            .by_pid
            .get(&at.pid)
            .and_then(|space| space.find(at.start))
            .is_some_and(|old| {
                (old.start, old.end, old.file_offset, old.module) == (at.start, at.end, at.file_offset, module)
            });
        if known {
            return false;
        }
        // Every other number is reserved for what remains after a mapping that covers the middle of
        // an older one.
        self.next_mapping += 2;
        self.by_pid.entry(at.pid).or_default().insert(Mapping {
            start: at.start,
            end: at.end,
            file_offset: at.file_offset,
            module,
            id: self.next_mapping,
            replaces: false,
        });
        self.forget_unmapped(at.pid, modules)
    }

    /// Keeps no more than a multiple of what is mapped now, whatever was mapped before.
    fn forget_unmapped(&mut self, pid: u32, modules: &mut Modules<'_>) -> bool {
        let mut forgotten = false;
        if let Some(space) = self.by_pid.get_mut(&pid)
            && space.has_many()
            // A process that has ended is removed soon.
            && let Ok(maps) = proc::maps(pid)
        {
            space.keep(&maps);
            forgotten = true;
        }
        if modules.are_many() {
            self.forget_modules(modules);
        }
        forgotten
    }

    fn forget_modules(&self, modules: &mut Modules<'_>) {
        let used = |space: &Space| {
            space
                .mappings
                .iter()
                .map(|mapping| mapping.module)
                .collect::<Vec<ModuleIndex>>()
        };
        modules.forget(self.by_pid.values().flat_map(used));
    }

    /// Forgets processes whose end no record has reported, and modules that nothing maps any more.
    pub(crate) fn forget_ended(&mut self, modules: &mut Modules<'_>) {
        self.by_pid.retain(|&pid, space| {
            // Records of a process that has just ended may still come.
            let had_ended = std::mem::replace(&mut space.has_ended, !proc::exists(pid));
            !(had_ended && space.has_ended)
        });
        self.by_pid.shrink_to_fit();
        self.forget_modules(modules);
    }

    /// A process was created as a copy of its parent.
    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        if parent == child {
            self.by_pid.entry(parent).or_default().threads += 1;
            return;
        }
        // If no record has described the parent, the child's space is read from /proc at its first
        // sample.
        if let Some(space) = self.by_pid.get(&parent) {
            let copy = Space {
                threads: 1,
                ..space.clone()
            };
            self.by_pid.insert(child, copy);
        } else {
            self.by_pid.remove(&child);
        }
    }

    /// A process runs another program, so nothing of the old one remains.
    pub(crate) fn exec(&mut self, pid: u32) {
        self.by_pid.insert(
            pid,
            Space {
                threads: 1,
                refreshed: true,
                ..Space::default()
            },
        );
    }

    /// A thread ended. Returns whether it was its process's last.
    pub(crate) fn exit(&mut self, pid: u32) -> bool {
        let Some(space) = self.by_pid.get_mut(&pid) else {
            return false;
        };
        space.threads = space.threads.saturating_sub(1);
        if space.threads > 0 {
            return false;
        }
        self.by_pid.remove(&pid);
        true
    }

    /// Records were lost, possibly mappings: `/proc` may be read again.
    pub(crate) fn records_lost(&mut self) {
        for space in self.by_pid.values_mut() {
            space.refreshed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use backtrail_cfi::tables::Tables;

    fn mapping(start: u64, end: u64, id: u32) -> Mapping {
        Mapping {
            start,
            end,
            file_offset: 0,
            module: ModuleIndex(0),
            id,
            replaces: false,
        }
    }

    /// This process, which maps a few files, is said to have mapped 200,000.
    #[test]
    fn what_is_not_mapped_any_more_is_forgotten() {
        let (tables, arena) = (Tables::without_cache(), Arena::default());
        let mut modules = Modules::new(&tables, &arena);
        let mut spaces = Spaces::default();
        let pid = std::process::id();
        spaces.read(pid, &mut modules);
        let own = spaces.get(pid, &mut modules).mappings.len();
        assert!(own > 0);
        let mut most = (0, 0);
        for number in 0..200_000_u64 {
            let start = 0x1000 + (number << 13);
            let at = MappedAt {
                pid,
                start,
                end: start + 0x1000,
                file_offset: 0x5000,
            };
            spaces.map(at, FileKey::Unidentified, format!("/tmp/{number}"), &mut modules);
            let mappings = spaces.get(pid, &mut modules).mappings.len();
            most = (most.0.max(mappings), most.1.max(modules.count()));
        }
        assert!(most.0 <= MANY + own && most.1 <= 2 * MANY + own, "{most:?}");
        // What is still there is still known.
        let here = what_is_not_mapped_any_more_is_forgotten as *const () as u64;
        let mapping = spaces.get(pid, &mut modules).find(here).cloned().expect("mapped");
        assert!(modules.is_file(&mapping));
    }

    #[test]
    fn newer_mappings_replace_what_they_cover() {
        let mut space = Space::default();
        space.insert(mapping(0x1000, 0x5000, 1));
        space.insert(mapping(0x8000, 0x9000, 2));
        space.insert(mapping(0x2000, 0x3000, 3));
        let ids = |space: &Space| {
            space
                .mappings
                .iter()
                .map(|m| (m.start, m.end, m.id))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            ids(&space),
            [
                (0x1000, 0x2000, 1),
                (0x2000, 0x3000, 3),
                (0x3000, 0x5000, 4),
                (0x8000, 0x9000, 2)
            ]
        );
        assert_eq!(space.find(0x3000).unwrap().file_offset, 0x2000);
        assert!(space.find(0x5000).is_none());
        assert!(space.find(0xfff).is_none());
        space.insert(mapping(0x0, 0x10000, 4));
        assert_eq!(ids(&space), [(0, 0x10000, 4)]);
    }
}
