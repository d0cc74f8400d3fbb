//! Places an edited file: at `--output`, or over the file that it was made from.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use backtrail_elf::edit::{Edited, Part};

use crate::error::{Failure, shown};
use crate::output;
use crate::replacement::{self, Durable, Replacement};

/// Which names (hard links) of the original lead to the edited file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The given one; a message says so if there are more.
    One,
    /// All: the caller sees to the others.
    All,
}

/// Creates the file that will be the edited one, and copies the original to it while the table is
/// made; `None` for standard output.
pub(crate) fn begin(
    path: &Path,
    output: Option<&Path>,
    durable: Durable,
    source: &File,
    len: u64,
) -> Result<Option<Replacement>, Failure> {
    let place = output.unwrap_or(path);
    if place == Path::new("-") {
        return Ok(None);
    }
    let begin = || -> io::Result<Replacement> {
        let mut replacement = Replacement::begin(place, durable)?;
        // Whoever may write to the folder could give the name to another file meanwhile, whose
        // owner and mode the contents of this one would get.
        if output.is_none() && !replacement.replaces(source)? {
            return Err(io::Error::other("the file was replaced by another meanwhile"));
        }
        replacement.copy_ahead(source, len)?;
        Ok(replacement)
    };
    begin().map(Some).map_err(|error| Failure::of_io(place, &error))
}

/// Stores the edited file. The unchanged parts of the original, which is open as `source`, are
/// copied without passing through this process, unless `replacement`, from [`begin`], already
/// contains them.
pub(crate) fn store_edited(
    replacement: Option<Replacement>,
    path: &Path,
    output: Option<&Path>,
    source: &File,
    edited: &Edited<'_>,
    names: Names,
) -> Result<(), Failure> {
    store_by(path, output, names, |path, mode| match replacement {
        Some(replacement) => {
            write_edited(replacement, mode, source, edited).map_err(|error| Failure::of_io(path, &error))
        }
        None => output::to_stdout(|out| edited.write_to(out)),
    })
}

/// Stores what `write` writes.
pub(crate) fn store(
    path: &Path,
    output: Option<&Path>,
    names: Names,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    store_by(path, output, names, |path, mode| match mode {
        Some(mode) => output::with_mode(path, mode, write),
        None => output::to(path, write),
    })
}

/// Moves the edited file to its place: to `output`, as executable as the file at `path` was, or
/// over the original.
fn store_by(
    path: &Path,
    output: Option<&Path>,
    names: Names,
    put: impl FnOnce(&Path, Option<u32>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::of_io(path, &error))?;
    if let Some(output) = output {
        return put(output, Some(metadata.mode()));
    }
    let signed = replacement::is_signed(path);
    put(path, None)?;
    if signed {
        crate::error::say!(
            "{}: the signature in its attribute security.ima no longer applies and was left out; sign the file again",
            shown(path)
        );
    }
    if metadata.nlink() > 1 && names == Names::One {
        crate::error::say!(
            "{}: the file had {} names (hard links); this name leads to a new file now, the others to what it was",
            shown(path),
            metadata.nlink()
        );
    }
    Ok(())
}

/// Whether `write` writes these very bytes.
pub(crate) fn is_written_as(bytes: &[u8], write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> bool {
    struct Rest<'b>(&'b [u8]);

    impl Write for Rest<'_> {
        fn write(&mut self, written: &[u8]) -> io::Result<usize> {
            self.0 = self.0.strip_prefix(written).ok_or(io::ErrorKind::InvalidData)?;
            Ok(written.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut rest = Rest(bytes);
    write(&mut rest).is_ok() && rest.0.is_empty()
}

fn write_edited(mut replacement: Replacement, mode: Option<u32>, source: &File, edited: &Edited<'_>) -> io::Result<()> {
    let copied = replacement.copied()?;
    let mut file = replacement.file();
    // A pipe has no positions, and nothing is copied ahead to it.
    if copied > 0 {
        file.rewind()?;
    }
    let mut at = 0;
    for part in edited.parts() {
        let len = part.len() as u64;
        if len > 0 && part.offset == Some(at) && at + len <= copied {
            file.seek(SeekFrom::Start(at + len))?;
        } else {
            write_part(file, source, &part)?;
        }
        at += len;
    }
    if at < copied {
        file.set_len(at)?;
    }
    replacement.finish(mode)
}

fn write_part(mut file: &File, mut source: &File, part: &Part<'_>) -> io::Result<()> {
    /// Parts up to this many bytes are written directly.
    const SHORT: usize = 64 << 10;
    let len = part.len() as u64;
    match part.offset.filter(|_| part.len() > SHORT) {
        Some(offset) => {
            source.seek(SeekFrom::Start(offset))?;
            match io::copy(&mut source.take(len), &mut file)? {
                copied if copied == len => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        None => file.write_all(part.bytes().ok_or(io::ErrorKind::UnexpectedEof)?),
    }
}
