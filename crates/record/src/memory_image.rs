//! Modules whose contents are read from the memory of a process: the vdso, and files that are gone.

use std::io;

use backtrail_elf::Image;
use backtrail_process::proc::{DELETED, VDSO};
use backtrail_process::{proc, sys};

/// Where a module was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedAt {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file_offset: u64,
}

/// The most bytes read of a module whose file is gone, from the process that has it mapped.
const LONGEST_IMAGE: u64 = 512 << 20;

/// Passes an image to `look` as it is mapped in a process.
pub(crate) fn look_at_memory<T>(at: &MappedAt, look: impl FnOnce(&Image<'_>) -> T) -> Option<T> {
    if at.file_offset != 0 {
        return None;
    }
    let len = at.end.checked_sub(at.start)?.min(LONGEST_IMAGE);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = sys::read_process(at.pid as i32, at.start, &mut bytes).ok()?;
    bytes.truncate(read);
    let image = Image::parse_memory(&bytes, at.start).ok()?;
    Some(look(&image))
}

/// The vdso is the same in every process of this kernel, so ours can replace that of an ended
/// process.
pub(crate) fn vdso() -> Option<MappedAt> {
    let pid = std::process::id();
    let map = proc::maps(pid).ok()?.into_iter().find(|map| map.path == VDSO)?;
    Some(MappedAt {
        pid,
        start: map.start,
        end: map.end,
        file_offset: 0,
    })
}

/// From the first byte of a file's first mapping to the last byte of its last one, in the process
/// where it was seen.
pub(crate) fn whole_file_mapping(at: &MappedAt, path: &str) -> io::Result<MappedAt> {
    let maps = proc::maps(at.pid)?;
    let of_file = |map: &&proc::MapsEntry| {
        map.path.strip_suffix(DELETED).unwrap_or(&map.path) == path.strip_suffix(DELETED).unwrap_or(path)
    };
    let first = maps
        .iter()
        .filter(of_file)
        .find(|map| map.start <= at.start && map.file_offset == 0);
    let last = maps.iter().filter(of_file).map(|map| map.end).max();
    match (first, last) {
        (Some(first), Some(end)) => Ok(MappedAt {
            pid: at.pid,
            start: first.start,
            end,
            file_offset: 0,
        }),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}
