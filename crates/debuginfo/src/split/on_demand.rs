//! Files with the rests of units, opened when the first address of a unit is looked up: a large
//! program may have thousands.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use backtrail_elf::{File, FileBytes};
use gimli::DebugInfoOffset;
use rustc_hash::{FxHashMap, FxHashSet};
use self_cell::self_cell;

use super::{Rest, SplitUnit, folder_of, package_of};
use crate::error::Error;
use crate::sections::Dwarf;

self_cell!(
    struct OpenRest {
        owner: FileBytes,
        #[covariant]
        dependent: Rest,
    }
);

impl OpenRest {
    fn of(file: FileBytes) -> Option<OpenRest> {
        OpenRest::try_new(file, |file| Rest::load(&File::of(file).map_err(Error::Elf)?)).ok()
    }
}

/// Opens a file with rests of units.
pub type OpenFile = dyn Fn(&Path) -> io::Result<FileBytes> + Send + Sync;

/// The files with the rests of a program's units.
#[derive(Default)]
pub struct RestsOnDemand {
    open: Option<Box<OpenFile>>,
    packages: Vec<OpenRest>,
    /// Where the file of each unit may be, by the unit's id.
    places: FxHashMap<u64, Vec<PathBuf>>,
    files: FxHashMap<PathBuf, OnceLock<Option<OpenRest>>>,
    misses_some: AtomicBool,
}

impl RestsOnDemand {
    /// Opens packages next to the file with the skeletons, and next to the program that it was
    /// split from (`places`). The files of units are searched for where they were written, or else
    /// next to the first of these files. Files that `open` refuses, or that are damaged, are left
    /// out.
    pub fn new(units: &[SplitUnit], places: &[&Path], open: Box<OpenFile>) -> RestsOnDemand {
        let (mut by_unit, mut files) = (FxHashMap::default(), FxHashMap::default());
        for unit in units {
            let candidates: Vec<PathBuf> = unit.candidates(folder_of(places)).collect();
            files.extend(candidates.iter().map(|path| (path.clone(), OnceLock::new())));
            by_unit.insert(unit.id, candidates);
        }
        let packages: FxHashSet<PathBuf> = places.iter().map(|place| package_of(place)).collect();
        let packages = packages.iter().filter(|_| !units.is_empty());
        RestsOnDemand {
            packages: packages.filter_map(|path| OpenRest::of(open(path).ok()?)).collect(),
            open: Some(open),
            places: by_unit,
            files,
            misses_some: AtomicBool::new(false),
        }
    }

    /// Whether the file of a unit that was needed was not found.
    pub fn misses_some(&self) -> bool {
        self.misses_some.load(Ordering::Relaxed)
    }

    /// The debug information with the rest of a unit, and where it is in that.
    pub(crate) fn unit<'d>(&'d self, main: &Dwarf<'d>, id: u64) -> Option<(Dwarf<'d>, DebugInfoOffset)> {
        let in_rest = |rest: &'d OpenRest| rest.borrow_dependent().unit(main, id);
        let in_file = |path: &PathBuf| in_rest(self.file(path)?);
        let in_files = || self.places.get(&id)?.iter().find_map(in_file);
        let found = self.packages.iter().find_map(in_rest).or_else(in_files);
        if found.is_none() {
            self.misses_some.store(true, Ordering::Relaxed);
        }
        found
    }

    fn file(&self, path: &Path) -> Option<&OpenRest> {
        let open = || OpenRest::of(self.open.as_ref()?(path).ok()?);
        self.files.get(path)?.get_or_init(open).as_ref()
    }
}
