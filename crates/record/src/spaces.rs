//! The address spaces of the sampled processes: which file is mapped where.

use std::rc::Rc;

use backtrail_process::proc;
use rustc_hash::FxHashMap;

use crate::modules::{FileKey, MappedAt, Mapping, Modules};

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

    /// The mapping that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    /// Adds a mapping, which replaces the older ones that it covers.
    pub(crate) fn insert(&mut self, new: Mapping) {
        self.generation = new.id.into();
        let mappings = Rc::make_mut(&mut self.mappings);
        let first = mappings.partition_point(|mapping| mapping.end <= new.start);
        let last = mappings.partition_point(|mapping| mapping.start < new.end);
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
            self.map(at, key, map.path.clone(), modules);
        }
    }

    /// A process has mapped a file for execution.
    pub(crate) fn map(&mut self, at: MappedAt, key: FileKey, path: String, modules: &mut Modules<'_>) {
        let module = modules.index(key, path, at);
        let known = self
            .by_pid
            .get(&at.pid)
            .and_then(|space| space.find(at.start))
            .is_some_and(|old| {
                (old.start, old.end, old.file_offset, old.module) == (at.start, at.end, at.file_offset, module)
            });
        if known {
            return;
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
        });
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
    use crate::modules::ModuleIndex;

    fn mapping(start: u64, end: u64, id: u32) -> Mapping {
        Mapping {
            start,
            end,
            file_offset: 0,
            module: ModuleIndex(0),
            id,
        }
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
