//! Walks a path to a file without opening the file (`O_PATH`).

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};

/// As many links as the kernel follows (`path_resolution(7)`).
const MOST_LINKS: usize = 40;
/// `PROC_SUPER_MAGIC`
const PROC: u64 = 0x9fa0;

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The place that a path leads to.
pub(super) fn walk(root: Option<&OwnedFd>, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd> {
    let start = root.map_or(rustix::fs::CWD, AsFd::as_fd);
    match openat2(start, path, PLACE, Mode::empty(), resolve) {
        // Kernels before 5.6, and sandboxes that forbid what they do not know.
        Err(Errno::NOSYS | Errno::PERM) if !resolve.contains(ResolveFlags::CACHED) => {
            step_by_step(start, path, resolve)
        }
        found => found,
    }
}

/// Opens a place for reading.
pub(super) fn reopen(place: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty())
}

/// Opens the file at a path for reading where there is no `/proc`: only if it still is the file
/// that was looked at.
pub(super) fn open_again(place: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let (seen, opened) = (rustix::fs::fstat(place)?, rustix::fs::fstat(&file)?);
    match (seen.st_dev, seen.st_ino) == (opened.st_dev, opened.st_ino) {
        true => Ok(file),
        false => Err(Errno::NOENT),
    }
}

/// Does the same with older system calls: a component at a time, links by hand.
pub(super) fn step_by_step(start: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd> {
    let is_bound = resolve.contains(ResolveFlags::IN_ROOT);
    if !is_bound && !resolve.contains(ResolveFlags::NO_MAGICLINKS) {
        return openat(start, path, PLACE, Mode::empty());
    }
    let directory = PLACE | OFlags::DIRECTORY;
    let root = match is_bound {
        true => openat(start, ".", directory, Mode::empty())?,
        false => openat(start, "/", directory, Mode::empty())?,
    };
    let mut todo = components(path);
    let mut above = Vec::new();
    let mut here = match path.is_absolute() || is_bound {
        true => openat(&root, ".", directory, Mode::empty())?,
        false => openat(start, ".", directory, Mode::empty())?,
    };
    let mut links = 0;
    while let Some(component) = todo.pop_front() {
        if component == ".." {
            here = match above.pop() {
                Some(parent) => parent,
                None if is_bound => openat(&root, ".", directory, Mode::empty())?,
                None => openat(&here, "..", directory, Mode::empty())?,
            };
            continue;
        }
        let next = openat(&here, &component, PLACE | OFlags::NOFOLLOW, Mode::empty())?;
        let status = rustix::fs::fstat(&next)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
            above.push(std::mem::replace(&mut here, next));
            continue;
        }
        links += 1;
        // The links of /proc lead to what they name, not to their text.
        if links > MOST_LINKS || rustix::fs::fstatfs(&next)?.f_type as u64 == PROC {
            return Err(Errno::LOOP);
        }
        let target = PathBuf::from(OsString::from_vec(target(&next)?.into_bytes()));
        if target.is_absolute() {
            above.clear();
            here = openat(&root, ".", directory, Mode::empty())?;
        }
        for component in components(&target).into_iter().rev() {
            todo.push_front(component);
        }
    }
    Ok(here)
}

fn target(link: &OwnedFd) -> Result<CString> {
    rustix::fs::readlinkat(link, c"", Vec::new())
}

/// The names on a path, with every `..`.
fn components(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::from_bytes(b"..").to_owned()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// The inode of a place in a folder, by the system call and by hand.
    fn inode(root: &Path, path: &str, resolve: ResolveFlags) -> Result<u64> {
        let root = rustix::fs::open(root, PLACE | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let inode = |place: Result<OwnedFd>| place.map(|place| rustix::fs::fstat(place).unwrap().st_ino);
        let by_hand = inode(step_by_step(root.as_fd(), Path::new(path), resolve));
        let by_kernel = openat2(&root, path, PLACE, Mode::empty(), resolve);
        if matches!(by_kernel, Err(Errno::NOSYS | Errno::PERM)) {
            backtrail_testkit::skip("no openat2 on this machine");
        } else {
            assert_eq!(inode(by_kernel), by_hand, "{path}");
        }
        by_hand
    }

    #[test]
    fn both_ways_lead_to_the_same_places() {
        let folder = backtrail_testkit::scratch();
        let root = folder.path().join("root");
        let of = |name: &str| root.join(name);
        fs::create_dir_all(of("a/b")).unwrap();
        fs::write(of("a/b/file"), "inside").unwrap();
        fs::write(folder.path().join("file"), "outside").unwrap();
        symlink("/a/b/file", of("absolute")).unwrap();
        symlink("../../../../../a/b/file", of("a/b/far")).unwrap();
        symlink("b", of("a/around")).unwrap();
        symlink("loop", of("loop")).unwrap();
        symlink(folder.path().join("file"), of("out")).unwrap();
        let expected = fs::metadata(of("a/b/file")).unwrap().ino();
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for path in [
            "/a/b/file",
            "a//b/./file",
            "../../a/b/file",
            "absolute",
            "a/b/far",
            "/a/around/file",
            "a/b/../../a/around/../b/far",
        ] {
            assert_eq!(inode(&root, path, within), Ok(expected), "{path}");
        }
        assert_eq!(inode(&root, "loop", within), Err(Errno::LOOP));
        assert_eq!(inode(&root, "out", within), Err(Errno::NOENT));
        assert_eq!(inode(&root, "../file", within), Err(Errno::NOENT));
        assert_eq!(inode(&root, "a/b/file/more", within), Err(Errno::NOTDIR));
        // Of our own root, only the links of /proc are left out.
        let free = ResolveFlags::NO_MAGICLINKS;
        let outside = fs::metadata(folder.path().join("file")).unwrap().ino();
        assert_eq!(inode(&root, "../file", free), Ok(outside));
        assert_eq!(inode(&root, "out", free), Ok(outside));
        for path in ["/proc/self/exe", "/proc/self/root/etc", "/proc/self/fd/0"] {
            assert_eq!(inode(&root, path, free), Err(Errno::LOOP), "{path}");
        }
    }
}
