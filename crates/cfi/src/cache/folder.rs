//! A folder that nobody else can change.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

/// Symbolic links that may be on the way, as in the kernel.
const MOST_LINKS: u32 = 40;
/// Time stamps of entries that were used this recently are not renewed.
const USED_LATELY: Duration = Duration::from_secs(3600);

/// Why a cache is not used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A folder, or a link on the way to it, belongs to somebody else.
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Others can write to a folder.
    Writable {
        /// The folder.
        path: PathBuf,
    },
    /// Opening a folder failed.
    Io(io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Owner { path, uid } => write!(f, "{} belongs to user {uid}", path.display()),
            Refused::Writable { path } => write!(f, "others can write to {}", path.display()),
            Refused::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Errno> for Refused {
    fn from(error: Errno) -> Refused {
        Refused::Io(error.into())
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Io(error)
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        match refused {
            Refused::Io(error) => error,
            other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
        }
    }
}

/// An open folder that belongs to this user, like all that leads to it, or to root; nobody else can
/// write to it.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
}

impl Folder {
    /// Opens the folder at an absolute path. Missing folders are created if `create` is set, for
    /// this user only.
    pub(super) fn open(path: &Path, create: bool) -> Result<Folder, Refused> {
        Ok(Folder {
            fd: last_of(path, create)?,
        })
    }

    /// Opens a folder in this one, which must not be a link.
    pub(super) fn subfolder(&self, name: &str, create: bool) -> Result<Folder, Refused> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) if create => {
                make(self.fd.as_fd(), OsStr::new(name))?;
                open()
            }
            other => other,
        }?;
        check_own(&rustix::fs::fstat(&fd)?, || PathBuf::from(name))?;
        Ok(Folder { fd })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reads a file, unless it is longer than `most` bytes, and marks it as used.
    pub(super) fn read(&self, name: &str, most: u64) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        check_own(&stat, PathBuf::new).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        let len = u64::try_from(stat.st_size).ok()?;
        if !is_file || len > most {
            return None;
        }
        mark_as_used(&fd, &stat);
        let mut content = Vec::new();
        content.try_reserve_exact(len as usize + 1).ok()?;
        File::from(fd).take(most).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// Writes a file, which has no name until it is complete.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, ".", flags, private()) {
            Ok(fd) => {
                let mut file = File::from(fd);
                file.write_all(content)?;
                self.link(&file, name)
            }
            // Some file systems do not have files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => self.write_beside(name, content),
            Err(error) => Err(error.into()),
        }
    }

    fn link(&self, file: &File, name: &str) -> io::Result<()> {
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = || rustix::fs::linkat(CWD, &nameless, &self.fd, name, AtFlags::SYMLINK_FOLLOW);
        match link() {
            Err(Errno::EXIST) => {
                // The same entry, or what is left of it.
                rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?;
                Ok(link()?)
            }
            done => Ok(done?),
        }
    }

    fn write_beside(&self, name: &str, content: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{name}.{}-{number}{TEMPORARY}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &temporary, flags, private())?;
        let written = File::from(fd)
            .write_all(content)
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &temporary, &self.fd, name)?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        written
    }
}

/// The ending of files that are being written.
pub(super) const TEMPORARY: &str = ".tmp";

fn private() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn mark_as_used(fd: &OwnedFd, stat: &Stat) {
    let used = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    if SystemTime::now()
        .duration_since(used)
        .is_ok_and(|age| age > USED_LATELY)
    {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        let _ = rustix::fs::futimens(fd, &times);
    }
}

/// Follows a path, one component at a time, and checks each.
fn last_of(path: &Path, create: bool) -> Result<OwnedFd, Refused> {
    if !path.is_absolute() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
    }
    let on_the_way = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::openat(CWD, "/", on_the_way, Mode::empty());
    let mut folder = root()?;
    let mut links = 0;
    // The last component is the next one.
    let mut left = components(path);
    let mut stat = rustix::fs::fstat(&folder)?;
    let mut at = PathBuf::from("/");
    while let Some(name) = left.pop() {
        check_parent(&stat, &at)?;
        if name == "/" {
            folder = root()?;
            stat = rustix::fs::fstat(&folder)?;
            at = PathBuf::from("/");
            continue;
        }
        let open = || rustix::fs::openat(&folder, &name, on_the_way, Mode::empty());
        let found = match open() {
            Err(Errno::NOENT) if create => {
                make(folder.as_fd(), &name)?;
                open()
            }
            other => other,
        }?;
        let new = rustix::fs::fstat(&found)?;
        if rustix::fs::FileType::from_raw_mode(new.st_mode).is_symlink() {
            check_owner(&new, &at.join(&name))?;
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
            left.extend(components(Path::new(&OsString::from_vec(target))));
            continue;
        }
        at.push(&name);
        (folder, stat) = (found, new);
    }
    check_own(&stat, || at.clone())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&folder, ".", flags, Mode::empty())?)
}

/// A path's components, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

fn make(parent: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Nobody but this user and root may change where a path leads to. In a sticky folder (`/tmp`),
/// others cannot replace what is not theirs.
fn check_parent(stat: &Stat, path: &Path) -> Result<(), Refused> {
    const STICKY: u32 = 0o1000;
    check_owner(stat, path)?;
    if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0 {
        return Err(Refused::Writable { path: path.to_owned() });
    }
    Ok(())
}

fn check_owner(stat: &Stat, path: &Path) -> Result<(), Refused> {
    if stat.st_uid == 0 || stat.st_uid == user() {
        return Ok(());
    }
    Err(Refused::Owner {
        path: path.to_owned(),
        uid: stat.st_uid,
    })
}

/// Permission bits with which others could write. Access control lists show here too: as the bits
/// of the group.
const OTHERS_WRITE: u32 = 0o022;

/// What holds entries is this user's own.
fn check_own(stat: &Stat, path: impl Fn() -> PathBuf) -> Result<(), Refused> {
    if stat.st_uid != user() {
        return Err(Refused::Owner {
            path: path(),
            uid: stat.st_uid,
        });
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        return Err(Refused::Writable { path: path() });
    }
    Ok(())
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}
