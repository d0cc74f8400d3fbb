//! Finds control groups by their paths.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use crate::Error;

/// Where systems mount the hierarchies whose groups performance events know: version 2, alone or
/// beside version 1, and version 1's own.
const HIERARCHIES: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/perf_event"];

/// Opens the directory of each group, given by its path, or by its name as `/proc/PID/cgroup` shows
/// it.
pub(crate) fn directories(groups: &[PathBuf]) -> Result<Vec<OwnedFd>, Error> {
    groups
        .iter()
        .map(|path| {
            directory(path).map_err(|error| Error::Group {
                path: path.clone(),
                error,
            })
        })
        .collect()
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = path.strip_prefix("/").unwrap_or(path);
    let named = HIERARCHIES.iter().map(|hierarchy| Path::new(hierarchy).join(name));
    // The name of a hierarchy's outermost group is also the path of the root directory.
    let given = Some(path.to_owned()).filter(|path| path != Path::new("/"));
    let mut first_error = None;
    for candidate in given.into_iter().chain(named) {
        match open(&candidate, flags, Mode::empty()) {
            Ok(directory) => return Ok(directory),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    Err(first_error.map_or(io::ErrorKind::NotFound.into(), io::Error::from))
}
