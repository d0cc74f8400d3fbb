//! Reads the code of a sampled process on demand.

use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_cfi::proof::{CodeProofs, ProcessCode, Region};
use backtrail_cfi::registers::FunctionRule;
use backtrail_process::{proc, sys};

use crate::modules::{Mapping, Modules};
use crate::spaces::Space;

/// An address: in a file, whichever process has it mapped, or in memory that a process filled
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    File { module: u32, offset: u64 },
    Process { pid: u32, generation: u64, address: u64 },
}

/// Facts proved about code.
pub(crate) type Code = CodeProofs<Place>;

/// A process's memory and modules, for reading code.
#[derive(Clone, Copy)]
pub(crate) struct Process<'v, 'a> {
    pub(crate) pid: u32,
    pub(crate) arch: &'static Arch,
    pub(crate) space: &'v Space,
    pub(crate) modules: &'v Modules<'a>,
}

impl<'v> ProcessCode for Process<'v, '_> {
    type Mapping = &'v Mapping;
    type Place = Place;

    fn arch(&self) -> &'static Arch {
        self.arch
    }

    fn process(&self) -> u32 {
        self.pid
    }

    fn find(&self, address: u64) -> Option<&'v Mapping> {
        self.space.find(address)
    }

    fn range(&self, mapping: &'v Mapping) -> Range<u64> {
        mapping.start..mapping.end
    }

    fn place(&self, mapping: &'v Mapping, address: u64) -> Place {
        match self.modules.is_file(mapping) {
            true => Place::File {
                module: mapping.module.0,
                offset: address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset),
            },
            false => Place::Process {
                pid: self.pid,
                generation: self.space.generation(),
                address,
            },
        }
    }

    fn is_file(&self, mapping: &'v Mapping) -> bool {
        self.modules.is_file(mapping)
    }

    fn is_same_file(&self, one: &'v Mapping, other: &'v Mapping) -> bool {
        one.module == other.module
    }

    fn has_table(&self, mapping: &'v Mapping) -> bool {
        self.modules.has_table(mapping)
    }

    fn function_at(&self, mapping: &'v Mapping, address: u64) -> Option<Range<u64>> {
        self.modules.function_at(mapping, address)
    }

    fn described_function(&self, mapping: &'v Mapping, address: u64) -> Option<Range<u64>> {
        let (frames, bias) = self.modules.call_frames(mapping)?;
        let function = frames.function_at(address.wrapping_sub(bias))?;
        Some(function.start.wrapping_add(bias)..function.end.wrapping_add(bias))
    }

    fn has_call_frames(&self, mapping: &'v Mapping) -> bool {
        self.modules.call_frames(mapping).is_some()
    }

    fn starts(&self, mapping: &'v Mapping, range: Range<u64>) -> Vec<u64> {
        let Some((called, bias)) = self.modules.called(mapping) else {
            return Vec::new();
        };
        let from = |address: u64| called.partition_point(|&target| target.wrapping_add(bias) < address);
        let inside = called.get(from(range.start)..from(range.end)).unwrap_or_default();
        inside.iter().map(|target| target.wrapping_add(bias)).collect()
    }

    fn objects(&self, mapping: &'v Mapping, prefix: &str) -> Vec<(String, u64)> {
        self.modules.objects(mapping, prefix)
    }

    fn is_described(&self, mapping: &'v Mapping, address: u64) -> bool {
        let frames = self.modules.call_frames(mapping);
        frames.is_some_and(|(frames, bias)| frames.describes(address.wrapping_sub(bias)))
    }

    fn rule(&self, mapping: &'v Mapping, address: u64) -> Option<FunctionRule> {
        let (frames, bias) = self.modules.call_frames(mapping)?;
        let rule = frames.rule(address.wrapping_sub(bias))?;
        Some(rule.moved(bias))
    }

    fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
        match sys::read_process(self.pid as i32, start, bytes) {
            Ok(read) if read > 0 => read,
            // The process may have ended, but its file remains.
            _ => self
                .find(start)
                .map_or(0, |mapping| self.modules.read(mapping, start, bytes)),
        }
    }

    fn regions(&self) -> Vec<Region> {
        let maps = proc::maps(self.pid).unwrap_or_default().into_iter();
        let regions = maps.map(|map| Region {
            range: map.start..map.end,
            writable: map.writable,
            executable: map.executable,
            path: map.path,
        });
        regions.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::memory_image::MappedAt;
    use crate::modules::FileKey;
    use backtrail_cfi::tables::{self, Tables};
    use backtrail_elf::isolation::{Isolate, Job, Lost};
    use backtrail_unwind::Coverage;
    use rustix::fs::{major, minor};
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// The mapping of this program's file that has its code at an address.
    fn own_mapping(code: u64, modules: &mut Modules<'_>) -> Mapping {
        let pid = std::process::id();
        let mut maps = proc::maps(pid).unwrap().into_iter();
        let map = maps.find(|map| (map.start..map.end).contains(&code)).unwrap();
        let key = FileKey::Inode {
            device: map.device,
            inode: map.inode,
        };
        let at = MappedAt {
            pid,
            start: map.start,
            end: map.end,
            file_offset: map.file_offset,
        };
        Mapping {
            start: map.start,
            end: map.end,
            file_offset: map.file_offset,
            module: modules.index(key, map.path, at),
            id: 1,
            replaces: false,
        }
    }

    #[test]
    fn code_of_a_process_that_has_ended_is_its_files() {
        /// The kernel never assigns this number.
        const NOBODY: u32 = i32::MAX as u32;
        let code = code_of_a_process_that_has_ended_is_its_files as fn() as usize as u64;
        let own = std::process::id();
        let (tables, arena) = (Tables::open(Some(std::env::temp_dir())), Arena::default());
        let mut modules = Modules::new(&tables, &arena);
        let mapping = own_mapping(code, &mut modules);
        let end = mapping.end;
        let mut space = Space::default();
        space.insert(mapping);
        let read = |pid, start| {
            let process = Process {
                pid,
                arch: Arch::native(),
                space: &space,
                modules: &modules,
            };
            let mut bytes = [0; 64];
            let len = process.read(start, &mut bytes);
            bytes[..len].to_vec()
        };
        assert_eq!(read(own, code).len(), 64);
        assert_eq!(read(NOBODY, code), read(own, code));
        assert!(read(NOBODY, end).is_empty());
    }

    /// Files that were just written are read anew each time: linkers write to this one.
    fn wait_until_settled() {
        let program = std::env::current_exe().and_then(std::fs::metadata);
        let age = || program.as_ref().ok()?.modified().ok()?.elapsed().ok();
        while age().is_some_and(|age| age < Duration::from_secs(3)) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// This program is large enough. Each function has the same rows before its file's table is
    /// made and after.
    #[test]
    fn walks_have_rows_before_the_table_is_made() {
        wait_until_settled();
        let code = walks_have_rows_before_the_table_is_made as fn() as usize as u64;
        let cache = tempfile::tempdir().unwrap();
        let (tables, arena) = (Tables::open(Some(cache.path().to_owned())), Arena::default());
        let mut modules = Modules::new(&tables, &arena);
        modules.make_tables_aside();
        let mapping = own_mapping(code, &mut modules);
        let index = mapping.module;
        let row = |modules: &Modules<'_>, address: u64| match modules.coverage(&mapping, address) {
            (range, Coverage::Table(table)) => {
                assert!(range.contains(&address));
                let found = table.section.lookup(address - table.bias).unwrap();
                let row = found.map(|found| (found.function.start, found.function.size, found.row.rule));
                (table.id, row)
            }
            (range, _) => {
                assert_eq!(range, address..address + 1);
                (!index.0, None)
            }
        };
        let addresses: Vec<u64> = (mapping.start..mapping.end).step_by(509).collect();
        let before: Vec<_> = addresses.iter().map(|&address| row(&modules, address)).collect();
        assert!(
            before.iter().all(|(id, _)| *id == !index.0),
            "the table is made already"
        );
        assert!(modules.has_table(&mapping));
        assert_eq!(modules.made(), 0);
        modules.take_made(true);
        assert_eq!(modules.made(), 1);
        let mut same = 0;
        for (&address, before) in addresses.iter().zip(before) {
            let (id, after) = row(&modules, address);
            assert_eq!(id, index.0);
            if let (_, Some((.., rule))) = before {
                assert_eq!(after.map(|(.., rule)| rule), Some(rule), "{address:#x}");
                same += 1;
            }
        }
        assert!(2 * same > addresses.len(), "{same} of {}", addresses.len());
        // The next recording finds it in the cache.
        let mut next = Modules::new(&tables, &arena);
        next.make_tables_aside();
        assert_eq!(own_mapping(code, &mut next).module, index);
        assert_eq!(row(&next, code).0, index.0);
    }

    /// Whether answers about other users' files may be given.
    static ANSWERS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    /// Makes tables here, but not before it may.
    struct Slow;

    impl Isolate for Slow {
        fn ask(&self, _: u32, _: Job, files: &[&File], request: &[u8]) -> Result<Vec<u8>, Lost> {
            let (may_answer, changed) = &ANSWERS;
            drop(changed.wait_while(may_answer.lock().unwrap(), |may| !*may).unwrap());
            let files = files.iter().map(|file| file.try_clone().unwrap());
            Ok(tables::isolated::answer(files.collect(), request))
        }
    }

    /// A walk does not wait for the table of a file that anybody can write to, and neither does the
    /// end of a recording.
    #[test]
    fn nobody_waits_for_tables_of_other_users_files() {
        let code = nobody_waits_for_tables_of_other_users_files as fn() as usize as u64;
        backtrail_elf::isolation::isolate(Box::new(Slow));
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        fs::copy("/proc/self/exe", &copy).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o777)).unwrap();
        let (tables, arena) = (Tables::open(Some(folder.path().join("cache"))), Arena::default());
        let mut modules = Modules::new(&tables, &arena);
        modules.make_tables_aside();
        let own = own_mapping(code, &mut modules);
        let metadata = fs::metadata(&copy).unwrap();
        let key = FileKey::Inode {
            device: (major(metadata.dev()), minor(metadata.dev())),
            inode: metadata.ino(),
        };
        // Where no file is mapped, so that its path is used.
        let at = MappedAt {
            pid: std::process::id(),
            start: 4096,
            end: 4096 + (own.end - own.start),
            file_offset: own.file_offset,
        };
        let mapping = Mapping {
            module: modules.index(key, copy.to_str().unwrap().to_owned(), at),
            ..own
        };
        let table = |modules: &Modules<'_>| match modules.coverage(&mapping, code) {
            (_, Coverage::Table(table)) => {
                let found = table.section.lookup(code - table.bias).unwrap().unwrap();
                (table.id, found.row.rule)
            }
            (_, other) => panic!("{other:?}"),
        };
        let (id, rule) = table(&modules);
        assert_eq!(id, !mapping.module.0, "that of one function");
        modules.take_made(true);
        assert_eq!(modules.made(), 0);
        let (may_answer, changed) = &ANSWERS;
        *may_answer.lock().unwrap() = true;
        changed.notify_all();
        while modules.made() == 0 {
            modules.take_made(true);
        }
        assert_eq!(table(&modules), (mapping.module.0, rule));
    }
}
