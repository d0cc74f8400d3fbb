//! Writes results: to standard output, or to a file that is either complete or absent.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::error::Failure;
use crate::replacement::{Durable, Replacement};

/// Lets `write` write to standard output.
pub(crate) fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out).and_then(|()| out.flush()).map_err(Failure::of_stdout)
}

/// Lets `write` write the file at `path`, or standard output for `-`. See [`Replacement`].
pub(crate) fn to(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(write);
    }
    replace(path, None, write).map_err(|error| Failure::of(path, error))
}

/// The same, for a file that gets this mode whether it existed or not.
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

/// Reads the argument that names the directory of a new trace. Elsewhere, `-` is standard output.
pub(crate) fn directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Err("a trace is a directory, so it can't go to standard output"),
        false => Ok(path),
    })
}

/// Replaces or creates the file at `path` with what `write` writes.
fn replace(path: &Path, mode: Option<u32>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let replacement = Replacement::begin(path, Durable::Yes)?;
    let mut out = BufWriter::new(replacement.file());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    replacement.finish(mode)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
        // Only root may give a file away; for others the owner stays the same.
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
