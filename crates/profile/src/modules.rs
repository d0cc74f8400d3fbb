//! The file at an address of a process, over the time of the recording.

use std::collections::HashMap;
use std::ops::Range;

use backtrail_recording::{Module, is_kernel_address};
use rustc_hash::FxHashMap;

use crate::ranges::RangeMap;

/// A mapped file, whichever process it is mapped into.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct File {
    /// Path, as the process saw it; `[vdso]` and the like if it is not a file.
    pub path: String,
    /// Build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// As [recorded](Module::elsewhere): 0 for the file at the path.
    pub elsewhere: u32,
}

impl File {
    /// The file that a recorded module maps.
    pub fn of(module: &Module) -> File {
        File {
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            elsewhere: module.elsewhere,
        }
    }

    /// Its name in reports: the path's last component.
    pub fn display_name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        match path.rsplit('/').next() {
            Some(name) if !name.is_empty() => name,
            _ if path.is_empty() => "[unnamed]",
            _ => path,
        }
    }

    /// Whether the path cannot be that of a file with linked code: memory that programs fill
    /// themselves, and code that the kernel provides under a name in brackets.
    pub fn is_anonymous(&self) -> bool {
        const PREFIXES: [&str; 6] = ["//anon", "[", "/memfd:", "/dev/zero", "/SYSV", "anon_inode:"];
        // Programs are also executed from memory files; only linked code has a build ID.
        let is_linked = self.path.starts_with("/memfd:") && !self.build_id.is_empty();
        !is_linked && (self.path.is_empty() || PREFIXES.iter().any(|prefix| self.path.starts_with(prefix)))
    }
}

/// A file, by its number in [`Modules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId(pub(crate) u32);

/// A mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The address of its first byte.
    pub(crate) base: u64,
    /// Whether addresses count from there; those of a fixed-position executable are the file's own.
    pub(crate) relative: bool,
    /// The file.
    pub(crate) file: FileId,
}

/// All files of a recording, and their current mappings in each process.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// With the addresses that the mapped file has: from 0, or those that it is linked for.
    files: Vec<(File, Range<u64>)>,
    ids: HashMap<File, FileId>,
    processes: FxHashMap<u32, RangeMap<Mapping>>,
    kernel: RangeMap<Mapping>,
}

impl Modules {
    /// Maps a module, replacing what it overlaps. Kernel addresses are mapped in every process.
    /// Returns whether that is news.
    pub(crate) fn map(&mut self, module: &Module) -> bool {
        let mapping = Mapping {
            base: module.base,
            relative: module.position_independent,
            file: self.intern(File::of(module)),
        };
        let is_relative = module.position_independent && !is_kernel_address(module.base);
        let start = if is_relative { 0 } else { module.base };
        let extent = &mut self.files[mapping.file.0 as usize].1;
        let is_first = extent.is_empty();
        extent.start = if is_first { start } else { extent.start.min(start) };
        extent.end = extent.end.max(start.saturating_add(module.size));
        let addresses = module.addresses();
        let space = if is_kernel_address(module.base) {
            &mut self.kernel
        } else {
            self.processes.entry(module.pid).or_default()
        };
        if space.has(addresses.start, addresses.end, mapping) {
            return false;
        }
        space.insert(addresses.start, addresses.end, mapping);
        true
    }

    /// The process started another program: its mappings are gone.
    pub(crate) fn clear(&mut self, pid: u32) {
        if let Some(space) = self.processes.get_mut(&pid) {
            space.clear();
        }
    }

    /// The mapping at an address of the process.
    pub(crate) fn find(&self, pid: u32, address: u64) -> Option<Mapping> {
        let space = if is_kernel_address(address) {
            &self.kernel
        } else {
            self.processes.get(&pid)?
        };
        space.get(address).map(|(_, mapping)| mapping)
    }

    /// The number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// All files, by number, each with its addresses.
    pub(crate) fn into_files(self) -> Vec<(File, Range<u64>)> {
        self.files
    }

    /// The file with this number.
    pub(crate) fn file(&self, id: FileId) -> &File {
        &self.files[id.0 as usize].0
    }

    fn intern(&mut self, file: File) -> FileId {
        if let Some(&id) = self.ids.get(&file) {
            return id;
        }
        let id = FileId(self.files.len() as u32);
        self.files.push((file.clone(), 0..0));
        self.ids.insert(file, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(pid: u32, base: u64, size: u64, path: &str) -> Module {
        Module {
            time: 0,
            pid,
            base,
            size,
            mapped: None,
            position_independent: true,
            path: path.into(),
            build_id: Vec::new(),
            elsewhere: 0,
        }
    }

    fn path_at(modules: &Modules, pid: u32, address: u64) -> Option<(&str, u64)> {
        let mapping = modules.find(pid, address)?;
        Some((modules.file(mapping.file).path.as_str(), mapping.base))
    }

    #[test]
    fn a_later_module_replaces_what_it_overlaps_and_the_rest_keeps_its_base() {
        let mut modules = Modules::default();
        modules.map(&module(1, 0x1000, 0x3000, "/a"));
        modules.map(&module(1, 0x2000, 0x1000, "/b"));
        assert_eq!(path_at(&modules, 1, 0x1fff), Some(("/a", 0x1000)));
        assert_eq!(path_at(&modules, 1, 0x2000), Some(("/b", 0x2000)));
        assert_eq!(path_at(&modules, 1, 0x3000), Some(("/a", 0x1000)));
        assert_eq!(path_at(&modules, 1, 0x4000), None);
    }

    #[test]
    fn a_piece_that_is_mapped_again_has_a_base_of_its_own_and_covers_nothing_else() {
        let mut modules = Modules::default();
        modules.map(&module(1, 0x40_0000, 0x10_0000, "/a"));
        modules.map(&module(1, 0x79_0000, 0x1000, "/b"));
        let mut piece = module(1, 0x70_0000, 0x10_0000, "/a");
        piece.mapped = Some(0x78_0000..0x78_2000);
        modules.map(&piece);
        assert_eq!(path_at(&modules, 1, 0x48_0000), Some(("/a", 0x40_0000)));
        assert_eq!(path_at(&modules, 1, 0x78_1fff), Some(("/a", 0x70_0000)));
        assert_eq!(path_at(&modules, 1, 0x79_0000), Some(("/b", 0x79_0000)));
        assert_eq!(path_at(&modules, 1, 0x78_2000), None);
        assert_eq!(path_at(&modules, 1, 0x70_0000), None);
    }

    #[test]
    fn processes_are_apart_and_the_kernel_is_everywhere() {
        let mut modules = Modules::default();
        modules.map(&module(1, 0x1000, 0x1000, "/a"));
        modules.map(&module(2, 0x1000, 0x1000, "/a"));
        modules.map(&module(u32::MAX, 0xffff_ffff_c000_0000, 0x1000, "[ext4]"));
        modules.clear(1);
        assert_eq!(path_at(&modules, 1, 0x1000), None);
        assert_eq!(path_at(&modules, 2, 0x1000), Some(("/a", 0x1000)));
        assert_eq!(
            path_at(&modules, 1, 0xffff_ffff_c000_0010),
            Some(("[ext4]", 0xffff_ffff_c000_0000))
        );
        assert_eq!(modules.find(1, 0x1000), None);
    }

    #[test]
    fn the_same_file_of_two_processes_is_one() {
        let mut modules = Modules::default();
        modules.map(&module(1, 0x1000, 0x1000, "/a"));
        modules.map(&module(2, 0x7000, 0x1000, "/a"));
        let first = modules.find(1, 0x1000).unwrap();
        let second = modules.find(2, 0x7000).unwrap();
        assert_eq!(first.file, second.file);
    }

    #[test]
    fn a_module_at_the_end_of_the_address_space_does_not_wrap() {
        let mut modules = Modules::default();
        modules.map(&module(1, 0xffff_ffff_ffff_f000, u64::MAX, "[vsyscall]"));
        assert!(modules.find(9, 0xffff_ffff_ffff_f800).is_some());
        assert!(modules.find(9, 0x10).is_none());
    }

    #[test]
    fn files_have_short_names() {
        let name = |path: &str| File::of(&module(1, 0, 1, path)).display_name().to_string();
        assert_eq!(name("/usr/lib/libc.so.6"), "libc.so.6");
        assert_eq!(name("/tmp/a.out (deleted)"), "a.out");
        assert_eq!(name("[vdso]"), "[vdso]");
        assert_eq!(name("/strange/"), "/strange/");
        assert_eq!(name(""), "[unnamed]");
    }
}
