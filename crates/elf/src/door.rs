//! The door for files of others: every file that a process, a module or a recording names is opened
//! here.
//!
//! Whoever names the file may have put anything at its path. So a path is walked inside the root of
//! whoever named it, without the links of `/proc` that lead to other places (`openat2(2)`:
//! `RESOLVE_IN_ROOT`, `RESOLVE_NO_MAGICLINKS`); the file is looked at before it is opened, and only
//! a regular one is opened, never a named pipe or a device. A file system that does not answer,
//! such as one of a user's own (FUSE) or of the network, is waited for in a thread of its own, and
//! not for long. What is opened is read, not mapped: a mapping raises SIGBUS when somebody shortens
//! the file ([`FileBytes`](crate::FileBytes)).
//!
//! | who names the file | |
//! |---|---|
//! | our user, on the command line | [`named`]: links may lead anywhere |
//! | a file or a recording, in our own root | [`open`] |
//! | the same, in a folder that our user named | [`open_below`] |
//! | a process or a core, in its own root | [`Root::open`] |
//!
//! ```
//! use backtrail_elf::door;
//!
//! let file = door::open("/etc/hostname".as_ref());
//! let pipe = door::open("/dev/zero".as_ref()).unwrap_err();
//! assert_eq!(pipe.to_string(), "is a device, not a file");
//! # let _ = file;
//! ```

mod waiting;
mod walk;

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

/// The file is not a regular file; reading it could block for ever or have side effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRegular {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Something else that is not a regular file.
    Other,
}

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotRegular::Directory => "is a directory, not a file",
            NotRegular::Fifo => "is a named pipe, not a file",
            NotRegular::Socket => "is a socket, not a file",
            NotRegular::Device => "is a device, not a file",
            NotRegular::Other => "is not a regular file",
        })
    }
}

impl std::error::Error for NotRegular {}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct RegularFile {
    reading: Readable,
    metadata: Metadata,
}

/// What the bytes of a regular file are read from.
#[derive(Clone, Debug)]
pub(crate) struct Readable {
    file: Arc<File>,
    /// Whether its file system may leave a read without an answer.
    may_hang: bool,
}

/// Opens a file that our own user named: links may lead anywhere.
///
/// # Errors
/// Those of `open(2)`; [`NotRegular`] inside an error of kind `InvalidInput` if it is not a regular
/// file, which is not opened then; `TimedOut` if its file system does not answer.
pub fn named(path: &Path) -> io::Result<RegularFile> {
    open_at(None, path, ResolveFlags::empty())
}

/// Opens a file that others named, in our own root. A path that begins with `/proc/PID/root` is
/// walked in that root, and `/proc/PID/exe` and those in `/proc/PID/map_files` are the files that
/// the kernel has there.
///
/// # Errors
/// As [`named`]; `ELOOP` if another link of `/proc` leads there.
pub fn open(path: &Path) -> io::Result<RegularFile> {
    match of_process(path) {
        Some((pid, "root", rest)) => Root::of_process(pid)?.open(rest),
        Some((_, "map_files" | "exe", _)) => named(path),
        _ => open_at(None, path, ResolveFlags::NO_MAGICLINKS),
    }
}

/// Opens a file that others named, by its path from a folder that our own user named.
///
/// # Errors
/// As [`open`].
pub fn open_below(folder: &Path, path: &Path) -> io::Result<RegularFile> {
    let Root(folder) = Root::at(folder)?;
    open_at(Some(folder), path, ResolveFlags::NO_MAGICLINKS)
}

/// The parts of a path in the folder of a process.
fn of_process(path: &Path) -> Option<(u32, &str, &Path)> {
    let mut parts = path.strip_prefix("/proc").ok()?.iter();
    let pid = parts.next()?.to_str()?.parse().ok()?;
    Some((pid, parts.next()?.to_str()?, parts.as_path()))
}

/// The root directory of whoever names paths.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Our own root.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn own() -> io::Result<Root> {
        Root::at(Path::new("/"))
    }

    /// The root of a process, which may be in a container.
    ///
    /// # Errors
    /// If the process is gone, or we may not see it.
    pub fn of_process(pid: u32) -> io::Result<Root> {
        Root::at(&PathBuf::from(format!("/proc/{pid}/root")))
    }

    /// This directory, which our own user named.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn at(directory: &Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root(rustix::fs::open(directory, flags, Mode::empty())?))
    }

    /// A path that leads there while this is open.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Its device and inode.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let status = rustix::fs::fstat(&self.0)?;
        Ok((status.st_dev, status.st_ino))
    }

    /// The open directory.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Opens the file at `path` as a process with this root would find it: absolute links and `..`
    /// lead nowhere outside.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self, path: &Path) -> io::Result<RegularFile> {
        let root = self.0.try_clone()?;
        open_at(Some(root), path, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }
}

impl RegularFile {
    fn new(file: File, metadata: Metadata, may_hang: bool) -> RegularFile {
        let file = Arc::new(file);
        RegularFile {
            reading: Readable { file, may_hang },
            metadata,
        }
    }

    /// Its owner, mode, inode and length when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The file itself, for its attributes.
    pub fn file(&self) -> &Arc<File> {
        &self.reading.file
    }

    /// Fills a buffer from an offset on, and returns how many bytes the file has there.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.reading.read_at(offset, buffer)
    }

    pub(crate) fn into_readable(self) -> Readable {
        self.reading
    }

    /// All its bytes, if there are at most this many.
    ///
    /// # Errors
    /// Those of `read(2)`; `FileTooLarge` if there are more.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        if self.metadata.len() > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = self.reading.file.try_clone()?;
        let read = move || {
            let mut bytes = Vec::new();
            io::Seek::rewind(&mut &file)?;
            // It may grow while it is read.
            (&file).take(most.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = if self.reading.may_hang {
            waiting::within(read)
        } else {
            read()
        }?;
        match bytes.len() as u64 <= most {
            true => Ok(bytes),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }

    /// Its bytes from the first to the last.
    pub fn reader(self) -> impl Read {
        Reader {
            file: self.reading,
            at: 0,
        }
    }
}

impl Readable {
    /// A file that was opened by another process, and whose reads may take any time.
    pub(crate) fn received(file: File) -> Readable {
        Readable {
            file: Arc::new(file),
            may_hang: false,
        }
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_size as u64)
    }

    /// Fills a buffer from an offset on, and returns how many bytes the file has there.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.may_hang {
            return fill_at(&self.file, offset, buffer);
        }
        let (file, len) = (self.file.try_clone()?, buffer.len());
        let bytes = waiting::within(move || {
            let mut bytes = vec![0; len];
            let got = fill_at(&file, offset, &mut bytes)?;
            bytes.truncate(got);
            Ok(bytes)
        })?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

struct Reader {
    file: Readable,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(self.at, buffer)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// Treats an open file as one of others.
///
/// # Errors
/// [`NotRegular`] inside an error of kind `InvalidInput`.
impl TryFrom<File> for RegularFile {
    type Error = io::Error;

    fn try_from(file: File) -> io::Result<RegularFile> {
        let metadata = regular(file.metadata()?)?;
        let may_hang = may_hang(&metadata, &file)?;
        Ok(RegularFile::new(file, metadata, may_hang))
    }
}

fn fill_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn open_at(root: Option<OwnedFd>, path: &Path, resolve: ResolveFlags) -> io::Result<RegularFile> {
    // What the kernel has in its caches, on a disk of this machine, is opened without waiting.
    match walk::walk(root.as_ref(), path, resolve | ResolveFlags::CACHED) {
        Ok(place) if is_on_disk(&place) => return look_and_open(&place, path),
        Ok(_) | Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let path = path.to_path_buf();
    waiting::within(move || look_and_open(&walk::walk(root.as_ref(), &path, resolve)?, &path))
}

/// Whether it is on a block device, as far as can be said without asking its file system.
fn is_on_disk(place: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(place, c"", flags, StatxFlags::TYPE).is_ok_and(|status| status.stx_dev_major != 0)
}

/// Opens what was found, if it is a regular file.
fn look_and_open(place: &OwnedFd, path: &Path) -> io::Result<RegularFile> {
    let metadata = regular(File::from(place.try_clone()?).metadata()?)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match walk::reopen(place, flags) {
        Err(Errno::NOENT) => walk::open_again(place, path, flags)?,
        opened => opened?,
    };
    let file = File::from(file);
    let may_hang = may_hang(&metadata, &file)?;
    Ok(RegularFile::new(file, metadata, may_hang))
}

/// Whether reads may get no answer: from the network, and from programs that are file systems.
fn may_hang(metadata: &Metadata, file: &File) -> io::Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const BTRFS: u64 = 0x9123_683e;
    if rustix::fs::major(metadata.dev()) != 0 {
        return Ok(false);
    }
    let kind = rustix::fs::fstatfs(file.as_fd())?.f_type as u64 & 0xffff_ffff;
    Ok(![TMPFS, RAMFS, BTRFS].contains(&kind))
}

fn regular(metadata: Metadata) -> io::Result<Metadata> {
    let kind = metadata.file_type();
    let wrong = if kind.is_file() {
        return Ok(metadata);
    } else if kind.is_dir() {
        NotRegular::Directory
    } else if kind.is_fifo() {
        NotRegular::Fifo
    } else if kind.is_socket() {
        NotRegular::Socket
    } else if kind.is_char_device() || kind.is_block_device() {
        NotRegular::Device
    } else {
        NotRegular::Other
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn refused(opened: io::Result<RegularFile>) -> Option<NotRegular> {
        let error = opened.unwrap_err();
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<NotRegular>())
            .copied()
    }

    #[test]
    fn only_regular_files_pass_and_no_pipe_blocks() {
        let folder = backtrail_testkit::scratch();
        let of = |name: &str| folder.path().join(name);
        std::fs::write(of("file"), "12345").unwrap();
        symlink("/dev/zero", of("zeros")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, of("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(of("socket")).unwrap();
        for open in [open as fn(&Path) -> _, named, |path| Root::own()?.open(path)] {
            let file = open(&of("file")).unwrap();
            assert_eq!((file.read(5).unwrap(), file.metadata().len()), (b"12345".to_vec(), 5));
            assert_eq!(file.read(4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
            for (name, what) in [
                ("", NotRegular::Directory),
                ("zeros", NotRegular::Device),
                ("pipe", NotRegular::Fifo),
                ("socket", NotRegular::Socket),
            ] {
                assert_eq!(refused(open(&of(name))), Some(what), "{name}");
            }
            assert_eq!(open(&of("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn links_of_proc_are_for_our_user_only() {
        let own = Path::new("/proc/self/exe");
        assert!(named(own).is_ok());
        let error = open(own).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn links_out_of_a_root_stay_in_it() {
        let folder = backtrail_testkit::scratch();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(folder.path().join("secret"), "").unwrap();
        symlink(folder.path().join("secret"), root.join("link")).unwrap();
        let root = Root::at(&root).unwrap();
        for path in ["/link", "../secret", "/../secret"] {
            assert_eq!(
                root.open(Path::new(path)).unwrap_err().kind(),
                io::ErrorKind::NotFound,
                "{path}"
            );
        }
    }

    #[test]
    fn endless_files_end() {
        // Files of /proc state no length.
        let file = named(Path::new("/proc/self/maps")).unwrap();
        assert!(!file.read(1 << 20).unwrap().is_empty());
        assert_eq!(file.read(1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
