//! Files in which processes give names to code that they make while they run.
//!
//! They lie in folders to which everybody may write, so another user could give a process false
//! names, and a file could be a pipe that never ends. As in perf, files of root and of the reader
//! are read, and here also those of the process's own user; only regular files, and only where the
//! process itself sees them. They are checked after they were opened.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustc_hash::FxHashMap;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::notes::{Notes, Trouble};

/// Perf maps are texts of some MB; jitdumps also contain the code. Larger files are not read any
/// further, so that a file left in a world-writable folder cannot take all memory.
const LONGEST: u64 = 1 << 30;
/// The same for all files of a user that is neither root nor our own.
const LONGEST_OF_OTHERS: u64 = 512 << 20;

/// Reads these files. What is made of them stays, so there is a limit for all files of another
/// user together: a program can have children for ever.
#[derive(Default)]
pub(super) struct Reader {
    /// Bytes that were read, by owner.
    read: FxHashMap<u32, u64>,
}

impl Reader {
    /// The contents of the file in a folder that has this name, and the number that the process has
    /// in its own namespace, by which the file is named.
    pub(super) fn in_folder(
        &mut self,
        pid: u32,
        folder: &Path,
        name: impl Fn(u32) -> String,
        notes: &mut Notes,
    ) -> Option<(Vec<u8>, u32)> {
        let own = own_number(pid).unwrap_or(pid);
        let path = folder.join(name(own));
        Some((self.mapped(pid, &path, notes)?, own))
    }

    /// The contents of a file that a process has mapped.
    pub(super) fn mapped(&mut self, pid: u32, path: &Path, notes: &mut Notes) -> Option<Vec<u8>> {
        let (file, owner) = open_trusted(pid, path, notes)?;
        let mut data = Vec::new();
        if owner == 0 || owner == rustix::process::geteuid().as_raw() {
            file.take(LONGEST).read_to_end(&mut data).ok()?;
            return Some(data);
        }
        let read = self.read.entry(owner).or_default();
        let left = LONGEST_OF_OTHERS - *read;
        file.take(left).read_to_end(&mut data).ok()?;
        *read += data.len() as u64;
        if data.len() as u64 == left {
            notes.add(Trouble::TooMuch, &path.to_string_lossy());
        }
        Some(data)
    }
}

/// The file, and its owner.
fn open_trusted(pid: u32, path: &Path, notes: &mut Notes) -> Option<(File, u32)> {
    let fd = match open(pid, path) {
        Ok(fd) => fd,
        // A link, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => {
            notes.add(Trouble::Foreign, &path.to_string_lossy());
            return None;
        }
        Err(_) => return None,
    };
    let stat = rustix::fs::fstat(&fd).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    if !is_file || !is_trusted(stat.st_uid, user_of(pid)) {
        notes.add(Trouble::Foreign, &path.to_string_lossy());
        return None;
    }
    Some((File::from(fd), stat.st_uid))
}

/// Whether names are believed that belong to `owner`, about a process of `user`; `None` if the
/// process has ended, and its user is not known.
fn is_trusted(owner: u32, user: Option<u32>) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw() || Some(owner) == user
}

/// The user of a process, if it is there.
fn user_of(pid: u32) -> Option<u32> {
    let process = rustix::fs::stat(format!("/proc/{pid}")).ok()?;
    Some(process.st_uid)
}

/// Opens a path as a process sees it, or, if it has ended, as this process does. The file itself
/// must not be a link.
fn open(pid: u32, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let here = || rustix::fs::openat(CWD, path, flags, Mode::empty());
    if is_same_place(pid) {
        return here();
    }
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match rustix::fs::openat(CWD, format!("/proc/{pid}/root"), folder, Mode::empty()) {
        Ok(root) => root,
        // It has ended, or belongs to another user.
        Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS) => return here(),
        Err(error) => return Err(error),
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let inside = path.strip_prefix("/").unwrap_or(path);
    match rustix::fs::openat2(&root, inside, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, or forbidden by a filter: then no link on the way is followed.
        Err(Errno::NOSYS | Errno::PERM) => without_links(root, inside, flags),
        done => done,
    }
}

/// Whether a process has the same root and mounts as this one.
fn is_same_place(pid: u32) -> bool {
    let link = |pid: &str, name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let pid = pid.to_string();
    ["ns/mnt", "root"].iter().all(|name| {
        let theirs = link(&pid, name);
        theirs.is_some() && theirs == link("self", name)
    })
}

fn without_links(root: OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = root;
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else {
            return Err(Errno::LOOP);
        };
        if components.peek().is_none() {
            return rustix::fs::openat(&at, name, flags, Mode::empty());
        }
        at = rustix::fs::openat(&at, name, folder, Mode::empty())?;
    }
    Err(Errno::ISDIR)
}

/// The number of a process in its innermost namespace.
fn own_number(pid: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::process::{Child, Command, Stdio};

    use rustix::fs::mkfifoat;

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn sleeping(program: &str, arguments: &[&str]) -> Option<Ended> {
        let child = Command::new(program).args(arguments).stdout(Stdio::null()).spawn();
        child.ok().map(Ended)
    }

    #[test]
    fn only_regular_files_of_root_or_the_processs_user_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("perf-7.map");
        // No process has this number.
        let gone = u32::MAX >> 2;
        let mut notes = Notes::default();
        let mut reader = Reader::default();
        let mut read = |pid| reader.mapped(pid, &path, &mut notes);
        fs::write(&path, "1000 10 name\n").unwrap();
        assert!(read(gone).is_some());
        assert!(read(std::process::id()).is_some());
        // None of these blocks, and none is believed.
        let real = folder.path().join("real");
        fs::rename(&path, &real).unwrap();
        symlink(&real, &path).unwrap();
        assert_eq!(read(gone), None, "a link");
        fs::remove_file(&path).unwrap();
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        assert_eq!(read(gone), None, "a pipe");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(read(gone), None, "a folder");
        fs::remove_dir(&path).unwrap();
        fs::rename(&real, &path).unwrap();

        if chown(&path, Some(65534), None).is_err() {
            backtrail_testkit::skip("only root can give a file away");
            return;
        }
        assert_eq!(read(gone), None, "nobody's");
        assert_eq!(read(std::process::id()), None, "nobody's, about a process of root");
        let as_nobody = ["--reuid=65534", "--clear-groups", "sleep", "100"];
        let Some(process) = sleeping("setpriv", &as_nobody) else {
            backtrail_testkit::skip("no setpriv");
            return;
        };
        let pid = process.0.id();
        while user_of(pid) != Some(65534) {
            std::thread::yield_now();
        }
        assert!(read(pid).is_some(), "nobody's own");
        let long = "1000 10 name\n".len() as u64;
        reader.read.insert(65534, LONGEST_OF_OTHERS - long - 4);
        let lengths = [0; 3].map(|_| reader.mapped(pid, &path, &mut notes).unwrap().len());
        assert_eq!(lengths, [13, 4, 0], "one user's files together");
        let mut read = |pid| reader.mapped(pid, &path, &mut notes);
        chown(&path, Some(65533), None).unwrap();
        assert_eq!(read(pid), None, "somebody else's");
        drop(process);
        let sentences = notes.sentences();
        assert!(sentences[0].contains("owned by another user"), "{sentences:?}");
        assert!(sentences[1].contains("too long"), "{sentences:?}");
    }

    #[test]
    fn a_process_in_a_namespace_is_asked_there() {
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs none /tmp && echo '1000 10 inside' > /tmp/perf-$$.map && ln -s / /tmp/out && exec sleep 100";
        let arguments = ["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script];
        let Some(process) = sleeping("unshare", &arguments) else {
            backtrail_testkit::skip("no unshare");
            return;
        };
        let (mut reader, mut notes) = (Reader::default(), Notes::default());
        for _ in 0..1000 {
            let children = format!("/proc/{0}/task/{0}/children", process.0.id());
            let children = fs::read_to_string(children).unwrap_or_default();
            let inner = children
                .split_ascii_whitespace()
                .next()
                .and_then(|pid| pid.parse().ok());
            if let Some(inner) = inner
                && let Some((data, own)) =
                    reader.in_folder(inner, Path::new("/tmp"), |pid| format!("perf-{pid}.map"), &mut notes)
                && !data.is_empty()
            {
                assert_eq!((data.as_slice(), own), (&b"1000 10 inside\n"[..], 1));
                // A link to the root leads to that of the process.
                let outside = folder.path().join("names");
                fs::write(&outside, "1000 10 outside\n").unwrap();
                let through = Path::new("/tmp/out").join(outside.strip_prefix("/").unwrap());
                assert_eq!(reader.mapped(inner, &through, &mut notes), None);
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        backtrail_testkit::skip("namespaces are not permitted");
    }
}
