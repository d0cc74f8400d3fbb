//! Not part of the interface: for the fuzz targets, which must not read other files.

use backtrail_cfi::tables::Tables;
use backtrail_ctype::Surroundings;
use backtrail_ctype::link::Section;
use backtrail_process::Snapshot;
use backtrail_wire::Endian;

use crate::arguments::{self, module::Source};
use crate::modules::{ModuleSet, Problem};
use crate::process::{Process, ThreadStack};
use crate::shown::Shown;
use crate::space::Space;
use crate::walk::{self, Wants};

fn no_files() -> ModuleSet {
    ModuleSet::new(Tables::without_cache(), None, None)
}

/// The stacks of a snapshot, with registers and arguments, and what was wrong with its modules.
pub fn stacks(snapshot: &Snapshot<'_>) -> (Process, Vec<Problem>) {
    let modules = no_files();
    let shown = Shown::default();
    let wants = Wants {
        registers: true,
        arguments: Some(&shown),
    };
    let (process, _) = walk::stacks(snapshot, &modules, wants);
    (process, modules.problems())
}

/// Finds the threads' arguments by one table and its section of types, in little endian.
pub fn find_arguments(snapshot: &Snapshot<'_>, table: Vec<u8>, types: Vec<u8>, threads: &mut [ThreadStack]) {
    let source = Source {
        table,
        types,
        strings: b"\0outside\0".to_vec(),
        endian: Endian::Little,
    };
    let modules = no_files();
    let (space, shown) = (Space::new(snapshot, &modules), Shown::default());
    arguments::find_by(snapshot, &space, &shown, threads, |_| Some((&source, 0, 0)));
}

/// The values that the structs of a section of types, in little endian, would have at these
/// addresses of a process whose memory `read` copies.
pub fn values_at(types: &[u8], read: &dyn Fn(u64, &mut [u8]) -> usize, addresses: &[u64]) -> Vec<String> {
    let Ok(section) = Section::open(types, Surroundings::default()) else {
        return Vec::new();
    };
    let dicts = section.types();
    dicts
        .flat_map(|types| arguments::values_at(types, Endian::Little, read, addresses))
        .collect()
}
