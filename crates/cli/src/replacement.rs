//! A file that replaces another once it is complete.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// Whether a file must be on the disk before it replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// It must: not even a power failure leaves half a file.
    Yes,
    /// It need not: the previous file was made a moment ago, and can be made again.
    No,
}

/// A file being written that will replace the one at its path, or be the first there.
///
/// Until everything is written and on the disk, it is a file without a name in the target's folder:
/// after a failure, without [finish](Replacement::finish), or if the process is killed, the old
/// file (or nothing) remains, and nothing else. If the file system has no such files, it is a
/// temporary file beside the target, which a kill leaves behind. An existing file keeps its mode,
/// its owner and its extended attributes, and a symbolic link stays one. Anything but a regular
/// file (a terminal, a pipe), and an open file (`/dev/stdout`), is written directly.
pub(crate) struct Replacement {
    target: PathBuf,
    present: Option<Metadata>,
    durable: Durable,
    place: Place,
    ahead: Option<JoinHandle<io::Result<u64>>>,
}

enum Place {
    Nameless(File),
    Beside(NamedTempFile),
    Direct(File),
}

impl Replacement {
    pub(crate) fn begin(path: &Path, durable: Durable) -> io::Result<Replacement> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let present = match fs::metadata(&target) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let place = if let Some(open) = open_file(path) {
            // Whoever has opened it may have written before, and goes on afterwards.
            let stream = match open.file_name().and_then(|number| number.to_str()) {
                Some("1") if is_own(&open) => io::stdout().as_fd().try_clone_to_owned()?.into(),
                Some("2") if is_own(&open) => io::stderr().as_fd().try_clone_to_owned()?.into(),
                _ => File::options().append(true).open(path)?,
            };
            Place::Direct(stream)
        } else if present.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            Place::Direct(File::options().write(true).open(&target)?)
        } else if let Some(file) = nameless(&directory(&target)) {
            Place::Nameless(file)
        } else {
            let mut temporary = tempfile::Builder::new();
            temporary.prefix(".backtrail-").suffix(".tmp");
            // Opened here, so that the process's umask applies as to any new file, and errors do
            // not name the temporary file.
            let open = |path: &Path| File::options().read(true).write(true).create_new(true).open(path);
            Place::Beside(temporary.make_in(directory(&target), open)?)
        };
        Ok(Replacement {
            target,
            present,
            durable,
            place,
            ahead: None,
        })
    }

    /// Whether the file to be replaced is the one that is open as `file`.
    pub(crate) fn replaces(&self, file: &File) -> io::Result<bool> {
        let (open, present) = (file.metadata()?, self.present.as_ref());
        Ok(present.is_some_and(|present| (present.dev(), present.ino()) == (open.dev(), open.ino())))
    }

    /// What is to be written.
    pub(crate) fn file(&self) -> &File {
        match &self.place {
            Place::Beside(temporary) => temporary.as_file(),
            Place::Nameless(file) | Place::Direct(file) => file,
        }
    }

    /// Copies the first `len` bytes of `source` before it is known which of them will change;
    /// [`Replacement::copied`] says when this is done.
    pub(crate) fn copy_ahead(&mut self, source: &File, len: u64) -> io::Result<()> {
        /// Copying less is not worth a thread.
        const WORTH: u64 = 1 << 20;
        if matches!(self.place, Place::Direct(_)) || len < WORTH {
            return Ok(());
        }
        let (source, mut file, durable) = (source.try_clone()?, self.file().try_clone()?, self.durable);
        let copy = move || {
            let copied = io::copy(&mut source.take(len), &mut file)?;
            // Most of the data is already on its way to the disk. The kernel reports a write error
            // only once, so it must be passed on.
            if durable == Durable::Yes {
                file.sync_data()?;
            }
            Ok(copied)
        };
        // Without a thread it is copied later.
        self.ahead = thread::Builder::new().spawn(copy).ok();
        Ok(())
    }

    /// Waits for the copy, and returns its length.
    pub(crate) fn copied(&mut self) -> io::Result<u64> {
        match self.ahead.take() {
            Some(ahead) => ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(0),
        }
    }

    /// Moves the file to its place, with this mode if one is given.
    pub(crate) fn finish(self, mode: Option<u32>) -> io::Result<()> {
        if matches!(self.place, Place::Direct(_)) {
            return Ok(());
        }
        let file = self.file();
        if let Some(present) = &self.present {
            keep_owner_and_mode(file, present)?;
            keep_attributes(&File::open(&self.target)?, file)?;
        }
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        }
        if self.durable == Durable::Yes {
            file.sync_all()?;
        }
        match self.place {
            Place::Nameless(file) => name(&file, &self.target, self.present.is_some()),
            Place::Beside(temporary) => Ok(temporary.persist(&self.target).map(drop)?),
            Place::Direct(_) => Ok(()),
        }
    }
}

/// The place in `/proc` of a file that a process has open, if a path leads there (`/dev/stdout`,
/// `/dev/fd/1`): it may have another name or none, and no other file can take its place.
fn open_file(path: &Path) -> Option<PathBuf> {
    /// The kernel follows 40 links.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let next = fs::read_link(&path).ok()?;
        let folder = fs::canonicalize(directory(&path)).ok()?;
        if folder.starts_with("/proc") {
            return Some(folder.join(path.file_name()?));
        }
        path = folder.join(next);
    }
    None
}

/// Whether it is this process that has the file open.
fn is_own(open: &Path) -> bool {
    open.parent() == Some(&Path::new("/proc").join(std::process::id().to_string()).join("fd"))
}

/// A new file in a folder, without a name, that can get one. `None` if the system can't do that, or
/// no file can be made there.
fn nameless(directory: &Path) -> Option<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits() as i32);
    let file = options.open(directory).ok()?;
    // Files get names through this path.
    path_of(&file).exists().then_some(file)
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Gives a file its name. A name that exists can only be replaced by another name.
fn name(file: &File, target: &Path, exists: bool) -> io::Result<()> {
    let link = |path: &Path| rustix::fs::linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW);
    if !exists {
        match link(target) {
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
    }
    let mut number = 0;
    let temporary = loop {
        let name = format!(".backtrail-{}-{number}.tmp", std::process::id());
        let temporary = directory(target).join(name);
        match link(&temporary) {
            Err(Errno::EXIST) => number += 1,
            Err(error) => return Err(error.into()),
            Ok(()) => break temporary,
        }
    };
    fs::rename(&temporary, target).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Sets the owner first: changing it clears the set-user-id bit.
fn keep_owner_and_mode(file: &File, present: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (present.uid(), present.gid()) {
        fchown(file, Some(present.uid()), Some(present.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(present.mode() & 0o7777))
}

/// Extended attributes that hold for one file with one content: the kernel refuses to run a file
/// whose hash or signature is another's, and computes the second by itself.
const OF_CONTENTS: [&[u8]; 2] = [b"security.ima", b"security.evm"];

/// Whether the file has a hash or signature for the kernel, which a new content invalidates.
pub(crate) fn is_signed(path: &Path) -> bool {
    rustix::fs::getxattr(path, "security.ima", &mut [0u8; 0][..]).is_ok()
}

/// Copies extended attributes: capabilities, access control lists, labels. Runs after owner and
/// mode, because changing those clears capabilities.
fn keep_attributes(old: &File, new: &File) -> io::Result<()> {
    use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

    // The kernel's limits for the list of names and for a value (XATTR_LIST_MAX, XATTR_SIZE_MAX).
    let mut names = vec![0; 65536];
    let len = match flistxattr(old, &mut names[..]) {
        Ok(len) => len,
        // The file system has no attributes.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; 65536];
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = std::ffi::CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if OF_CONTENTS.iter().any(|of_contents| name.to_bytes() == *of_contents) {
            continue;
        }
        let len = fgetxattr(old, name, &mut value[..])?;
        match fsetxattr(new, name, &value[..len], XattrFlags::empty()) {
            Ok(()) => {}
            // An active security module sets its labels itself, and only root may copy them.
            Err(Errno::PERM | Errno::OPNOTSUPP) if name.to_bytes().starts_with(b"security.selinux") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_ahead_is_not_there_until_it_is_finished() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        let bytes: Vec<u8> = (0..3 << 20).map(|index: u32| (index / 7) as u8).collect();
        fs::write(&old, &bytes).unwrap();
        for finish in [false, true] {
            let mut replacement = Replacement::begin(&new, Durable::Yes).unwrap();
            let source = File::open(&old).unwrap();
            replacement.copy_ahead(&source, bytes.len() as u64).unwrap();
            assert_eq!(replacement.copied().unwrap(), bytes.len() as u64);
            // A process that is killed now leaves nothing.
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
            if finish {
                replacement.finish(Some(0o640)).unwrap();
            }
        }
        assert_eq!(fs::read(&new).unwrap(), bytes);
        assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn open_files_are_written_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let (named, link) = (directory.path().join("named"), directory.path().join("link"));
        for has_name in [true, false] {
            let mut open = File::options()
                .read(true)
                .append(true)
                .create(true)
                .open(&named)
                .unwrap();
            io::Write::write_all(&mut open, b"before").unwrap();
            if !has_name {
                fs::remove_file(&named).unwrap();
            }
            std::os::unix::fs::symlink(path_of(&open), &link).unwrap();
            let replacement = Replacement::begin(&link, Durable::No).unwrap();
            io::Write::write_all(&mut replacement.file(), b" and after").unwrap();
            replacement.finish(None).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            fs::remove_file(&link).unwrap();
            let mut written = String::new();
            io::Seek::rewind(&mut open).unwrap();
            open.read_to_string(&mut written).unwrap();
            assert!(written.ends_with("before and after"), "{written}");
        }
    }

    #[test]
    fn failures_do_not_name_the_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing/file");
        let Err(error) = Replacement::begin(&missing, Durable::Yes) else {
            panic!("made");
        };
        let plain = File::create(&missing).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (plain.kind(), plain.to_string()));
    }
}
