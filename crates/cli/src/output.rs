//! Where results go: standard output, or a file that is either whole or not there.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use backtrail_elf::edit::{Edited, Part};

use crate::error::Failure;

/// Lets `write` write to standard output.
pub(crate) fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out).and_then(|()| out.flush()).map_err(Failure::of_stdout)
}

/// Lets `write` write the file at `path`, or standard output for `-`. See [`replace`].
pub(crate) fn to(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(write);
    }
    replace(path, None, write).map_err(|error| Failure::of(path, error))
}

/// The same, for a file that gets this mode whether it was there or not.
pub(crate) fn with_mode(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(write);
    }
    replace(path, Some(mode), write).map_err(|error| Failure::of(path, error))
}

/// Whether a file is on the disk before it takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// It is: not even a power failure leaves half a file.
    Yes,
    /// It need not be: what was there before was made a moment ago, and can be made again.
    No,
}

/// The same, for an edited file: what stays of the file before, which is open as `source`, is copied without passing through this process.
pub(crate) fn edited(
    path: &Path,
    mode: Option<u32>,
    durable: Durable,
    source: &File,
    edited: &Edited<'_>,
) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(|out| edited.write_to(out));
    }
    replace_file(path, mode, durable, |file| {
        for part in edited.parts() {
            write_part(file, source, &part)?;
        }
        Ok(())
    })
    .map_err(|error| Failure::of(path, error))
}

fn write_part(mut file: &File, mut source: &File, part: &Part<'_>) -> io::Result<()> {
    /// Parts up to this many bytes are written as they are.
    const SHORT: usize = 64 << 10;
    let len = part.bytes.len() as u64;
    match part.offset.filter(|_| part.bytes.len() > SHORT) {
        Some(offset) => {
            source.seek(SeekFrom::Start(offset))?;
            match io::copy(&mut source.take(len), &mut file)? {
                copied if copied == len => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        None => file.write_all(part.bytes),
    }
}

/// Replaces or makes the file at `path` by what `write` writes. See [`replace_file`].
fn replace(path: &Path, mode: Option<u32>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    replace_file(path, mode, Durable::Yes, |file| write_buffered(file, write))
}

/// Replaces or makes the file at `path` by what `write` writes.
///
/// Until all is written and on the disk, it goes to a temporary file beside it: a failure leaves what was there, or nothing.
/// A file that was there keeps its mode, its owner and its extended attributes, and a symbolic link stays one. What is no regular
/// file (a terminal, a pipe) is written directly.
fn replace_file(
    path: &Path,
    mode: Option<u32>,
    durable: Durable,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let present = match fs::metadata(&target) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if present.as_ref().is_some_and(|metadata| !metadata.is_file()) {
        return write(&File::options().write(true).open(&target)?);
    }
    let temporary = tempfile::Builder::new()
        .prefix(".backtrail-")
        .suffix(".tmp")
        // The process's mask applies, as to any new file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory(&target))?;
    write(temporary.as_file())?;
    if let Some(present) = present {
        keep_owner_and_mode(temporary.as_file(), &present)?;
        keep_attributes(&File::open(&target)?, temporary.as_file())?;
    }
    if let Some(mode) = mode {
        temporary
            .as_file()
            .set_permissions(Permissions::from_mode(mode & 0o777))?;
    }
    if durable == Durable::Yes {
        temporary.as_file().sync_all()?;
    }
    temporary.persist(&target)?;
    Ok(())
}

fn write_buffered(file: &File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The owner first: a change of it takes the set-user-id bit away.
fn keep_owner_and_mode(file: &File, present: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (present.uid(), present.gid()) {
        fchown(file, Some(present.uid()), Some(present.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(present.mode() & 0o7777))
}

/// Extended attributes: capabilities, access control lists, labels. After owner and mode, a change of which takes capabilities away.
fn keep_attributes(old: &File, new: &File) -> io::Result<()> {
    use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
    use rustix::io::Errno;

    // As large as the kernel lets names, and a value, become (XATTR_LIST_MAX, XATTR_SIZE_MAX).
    let mut names = vec![0; 65536];
    let len = match flistxattr(old, &mut names[..]) {
        Ok(len) => len,
        // The file system has none.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; 65536];
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = std::ffi::CStr::from_bytes_with_nul(name) else {
            continue;
        };
        let len = fgetxattr(old, name, &mut value[..])?;
        match fsetxattr(new, name, &value[..len], XattrFlags::empty()) {
            Ok(()) => {}
            // Labels of a security module that is there are its own matter, and only root may copy them.
            Err(Errno::PERM | Errno::OPNOTSUPP) if name.to_bytes().starts_with(b"security.selinux") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn fails(out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&[1; 100_000])?;
        Err(io::Error::other("the source broke"))
    }

    #[test]
    fn a_new_file_is_like_any_other() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (directory.path().join("ours"), directory.path().join("other"));
        replace(&ours, None, |out| out.write_all(b"whole")).unwrap();
        File::create(&other).unwrap();
        assert_eq!(fs::read(&ours).unwrap(), b"whole");
        assert_eq!(
            fs::metadata(&ours).unwrap().mode(),
            fs::metadata(&other).unwrap().mode()
        );
        assert_eq!(names(directory.path()), ["other", "ours"]);
    }

    #[test]
    fn a_failure_leaves_what_was_there_or_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(replace(&path, None, fails).unwrap_err().to_string(), "the source broke");
        assert!(names(directory.path()).is_empty());

        fs::write(&path, b"old").unwrap();
        replace(&path, None, fails).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["file"]);
        let missing = directory.path().join("missing/file");
        assert_eq!(
            replace(&missing, None, |_| Ok(())).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn the_old_file_is_whole_while_the_new_one_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, b"old").unwrap();
        replace(&path, None, |out| {
            out.write_all(b"new, ")?;
            out.flush()?;
            assert_eq!(fs::read(&path)?, b"old");
            out.write_all(b"and longer")
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new, and longer");
    }

    #[test]
    fn mode_and_owner_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, b"old").unwrap();
        // Only root may give a file away; others see that theirs stays theirs.
        let _ = std::os::unix::fs::chown(&path, Some(12345), Some(54321));
        fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
        let before = fs::metadata(&path).unwrap();
        replace(&path, None, |out| out.write_all(b"new")).unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_ne!(before.ino(), after.ino());
        assert_eq!(after.mode() & 0o7777, 0o4751);
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_a_device() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&real, b"old").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        replace(&link, None, |out| out.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");

        replace(Path::new("/dev/null"), None, |out| out.write_all(b"gone")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
