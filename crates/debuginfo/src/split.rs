//! Split units: a file contains skeletons, and the rest of each unit is elsewhere (DWARF 5, 3.1.2
//! and 3.1.3; GNU's extension of DWARF 4). The rest is in its own file (`.dwo`), or in a package
//! with the rests of all units of a program (`.dwp`; 7.3.5).

mod on_demand;
mod rest;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use backtrail_elf::budget::Budget;
use backtrail_elf::{File, FileBytes, door};
use gimli::{DwarfFileType, EndianSlice, SectionId, Unit};

use crate::reader::Slice;
use crate::sections::{Dwarf, Loaded, endian};

pub use on_demand::{OpenFile, RestsOnDemand};
pub(crate) use rest::Rest;

/// The rest of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitUnit {
    /// The id that the unit and its rest share (`DW_AT_GNU_dwo_id`, or the headers' `dwo_id`).
    pub id: u64,
    /// The file that the compiler wrote it to (`DW_AT_dwo_name`).
    pub path: Vec<u8>,
    /// The folder in which the unit was compiled.
    pub folder: Vec<u8>,
}

/// The rest of a unit, if the unit is a skeleton; a split unit may also contain the name of its own
/// file.
pub(crate) fn rest_of<'d>(dwarf: &Dwarf<'d>, unit: &Unit<Slice<'d>>) -> gimli::Result<Option<SplitUnit>> {
    if dwarf.file_type == DwarfFileType::Dwo {
        return Ok(None);
    }
    let Some(name) = unit.dwo_name()? else { return Ok(None) };
    let path = dwarf.attr_string(unit, name)?.slice();
    let folder = unit.comp_dir.map(|folder| folder.slice()).unwrap_or_default().to_vec();
    let path = match path.starts_with(b"/") {
        true => path.to_vec(),
        false => [&folder, &b"/"[..], path].concat(),
    };
    Ok(Some(SplitUnit {
        id: unit.dwo_id.map_or(0, |id| id.0),
        path,
        folder,
    }))
}

impl SplitUnit {
    /// Where its file may be: where the compiler wrote it, or else in this folder.
    fn candidates(&self, folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let beside = path.file_name().map(|name| folder.join(name));
        [Some(path.to_path_buf()), beside].into_iter().flatten()
    }
}

/// Where a package of a file's split units is.
fn package_of(path: &Path) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(".dwp");
    path.into()
}

/// The folder in which files of units are searched for that are not where they were written: that
/// of the first of these files.
fn folder_of<'p>(places: &[&'p Path]) -> &'p Path {
    places.first().and_then(|place| place.parent()).unwrap_or(Path::new(""))
}

/// The open files with the rests of units.
#[derive(Debug, Default)]
pub struct SplitFiles(Vec<(PathBuf, FileBytes)>);

impl SplitFiles {
    /// Looks for a package next to the file with the skeletons, and next to the program that it was
    /// split from (`places`). Rests that no package contains are searched for where they were
    /// written, or else next to the first of these files.
    pub fn find(units: &[SplitUnit], places: &[&Path], budget: &Budget) -> SplitFiles {
        let open = |path: &Path| door::open(path)?.contents(budget);
        let mut found = SplitFiles::default();
        let mut missing: Vec<&SplitUnit> = units.iter().collect();
        let mut tried: HashSet<PathBuf> = HashSet::new();
        for place in places {
            let path = package_of(place);
            if !missing.is_empty() && tried.insert(path.clone()) {
                let Ok(package) = open(&path) else {
                    continue;
                };
                if let Ok(file) = File::of(&package) {
                    forget_packed(&mut missing, &file);
                }
                found.0.push((path, package));
            }
        }
        for unit in missing {
            for path in unit.candidates(folder_of(places)) {
                if tried.contains(&path) {
                    break;
                }
                if let Ok(file) = open(&path) {
                    tried.insert(path.clone());
                    found.0.push((path, file));
                    break;
                }
            }
        }
        found
    }

    /// Each file, with its path.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &FileBytes)> {
        self.0.iter().map(|(path, file)| (path.as_path(), file))
    }
}

/// Keeps only the units that a package does not contain.
#[doc(hidden)]
pub fn forget_packed(missing: &mut Vec<&SplitUnit>, file: &File<'_>) {
    let Ok(loaded) = Loaded::load_split(file, &[SectionId::DebugCuIndex]) else {
        return;
    };
    let section = EndianSlice::new(loaded.get(SectionId::DebugCuIndex), endian(file));
    if let Ok(index) = gimli::DebugCuIndex::from(section).index() {
        missing.retain(|unit| index.find(unit.id).is_none());
    }
}
