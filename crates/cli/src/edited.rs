//! Places an edited file: at `--output`, or over the file that it was made from.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use backtrail_elf::edit::{Edited, Part};

use crate::error::{Failure, shown};
use crate::output;
use crate::replacement::{Durable, Replacement};

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
        replacement.copy_ahead(source, len)?;
        Ok(replacement)
    };
    begin().map(Some).map_err(|error| Failure::of(place, error))
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
) -> Result<(), Failure> {
    store_by(path, output, |path, mode| match replacement {
        Some(replacement) => write_edited(replacement, mode, source, edited).map_err(|error| Failure::of(path, error)),
        None => output::to_stdout(|out| edited.write_to(out)),
    })
}

/// Stores what `write` writes.
pub(crate) fn store(
    path: &Path,
    output: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    store_by(path, output, |path, mode| match mode {
        Some(mode) => output::with_mode(path, mode, write),
        None => output::to(path, write),
    })
}

/// Moves the edited file to its place: to `output`, as executable as the file at `path` was, or
/// over the original.
fn store_by(
    path: &Path,
    output: Option<&Path>,
    put: impl FnOnce(&Path, Option<u32>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::of(path, error))?;
    if let Some(output) = output {
        return put(output, Some(metadata.mode()));
    }
    put(path, None)?;
    if metadata.nlink() > 1 {
        crate::error::say!(
            "{}: the file had {} names (hard links); this name leads to a new file now, the others to what it was",
            shown(path),
            metadata.nlink()
        );
    }
    Ok(())
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
