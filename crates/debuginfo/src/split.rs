//! Split units: a file contains skeletons, and the rest of each unit is elsewhere (DWARF 5, 3.1.2
//! and 3.1.3; GNU's extension of DWARF 4). The rest is in its own file (`.dwo`), or in a package
//! with the rests of all units of a program (`.dwp`; 7.3.5).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use backtrail_elf::budget::Budget;
use backtrail_elf::{File, FileBytes, door};
use gimli::{DwarfFileType, EndianSlice, SectionId, Unit};

use crate::reader::Slice;
use crate::sections::{Dwarf, Loaded, endian};

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

/// The open files with the rests of units.
#[derive(Debug, Default)]
pub struct SplitFiles(Vec<(PathBuf, FileBytes)>);

impl SplitFiles {
    /// Looks for a package next to the file with the skeletons, and next to the program that it was
    /// split from (`places`). Rests that no package contains are searched for where they were
    /// written, or else next to the first of these files.
    pub fn find(units: &[SplitUnit], places: &[&Path], budget: &Budget) -> SplitFiles {
        let mut found = SplitFiles::default();
        let mut missing: Vec<&SplitUnit> = units.iter().collect();
        let mut tried: HashSet<PathBuf> = HashSet::new();
        for place in places {
            let mut path = OsString::from(place);
            path.push(".dwp");
            if !missing.is_empty() && tried.insert(path.clone().into()) {
                let Ok(package) = open(Path::new(&path), budget) else {
                    continue;
                };
                if let Ok(file) = File::of(&package) {
                    forget_packed(&mut missing, &file);
                }
                found.0.push((path.into(), package));
            }
        }
        let folder = places.first().and_then(|place| place.parent()).unwrap_or(Path::new(""));
        for unit in missing {
            let path = Path::new(OsStr::from_bytes(&unit.path));
            let beside = path.file_name().map(|name| folder.join(name));
            let candidates = [Some(path.to_path_buf()), beside];
            for path in candidates.into_iter().flatten() {
                if tried.contains(&path) {
                    break;
                }
                if let Ok(file) = open(&path, budget) {
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

fn open(path: &Path, budget: &Budget) -> io::Result<FileBytes> {
    door::open(path)?.contents(budget)
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
