//! The bytes of a file, mapped privately and read-only.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Files up to this size are read into memory instead of being mapped: reading costs no more than a
/// mapping's page faults, and a copy cannot be truncated by others.
const READ_LIMIT: u64 = 256 << 10;

/// The contents of a regular file.
///
/// If another process *shortens* a mapped file *in place*, touching a removed page raises SIGBUS.
/// Package managers and linkers replace files by renaming, which keeps mappings intact, so large
/// files are mapped anyway; files up to 256 KiB are copied.
pub struct MappedFile {
    bytes: Bytes,
}

enum Bytes {
    Copied(Vec<u8>),
    Mapped(memmap2::Mmap),
}

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

impl MappedFile {
    /// Opens `path`. Fails with [`NotRegular`] inside an [`io::Error`] of kind `InvalidInput` if it
    /// is not a regular file, without waiting for the other end of a pipe.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        Self::from_file(open_regular(path.as_ref())?)
    }

    /// The contents of an open file, from its start regardless of its position; see
    /// [`MappedFile::open`].
    pub fn from_file(file: File) -> io::Result<MappedFile> {
        let len = regular_len(&file)?;
        let bytes = if len <= READ_LIMIT {
            let mut copy = Vec::with_capacity(len as usize);
            read_from_start(file, &mut copy)?;
            Bytes::Copied(copy)
        } else {
            // SAFETY: the mapping is private and read-only and outlives the slices borrowed from
            // it. Another process may change bytes under it, as with every file; each read byte
            // still is some byte, and readers never trust two reads to agree for memory safety: all
            // accesses are bounds-checked against the mapping's length, which does not change.
            // Shortening the file ends the process with SIGBUS, see the type's documentation; it
            // gives no access to other memory.
            Bytes::Mapped(unsafe { memmap2::Mmap::map(&file)? })
        };
        Ok(MappedFile { bytes })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Copied(copy) => copy,
            Bytes::Mapped(map) => map,
        }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.bytes().len())
    }
}

/// Opens a regular file for reading; see [`MappedFile::open`].
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    regular_len(&file)?;
    Ok(file)
}

fn regular_len(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let wrong = if kind.is_file() {
        return Ok(metadata.len());
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

fn read_from_start(mut file: File, out: &mut Vec<u8>) -> io::Result<()> {
    use std::io::Seek;
    file.rewind()?;
    // Reading must end even if the file keeps growing.
    file.take(READ_LIMIT).read_to_end(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_files_and_what_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for len in [0usize, 1, READ_LIMIT as usize, READ_LIMIT as usize + 1] {
            let path = dir.path().join("file");
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            std::fs::write(&path, &data).unwrap();
            assert!(MappedFile::open(&path).unwrap().bytes() == data);
        }
        for (path, what) in [
            (dir.path(), NotRegular::Directory),
            (Path::new("/dev/null"), NotRegular::Device),
        ] {
            let error = MappedFile::open(path).unwrap_err();
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NotRegular>());
            assert_eq!(inner, Some(&what));
        }
        assert_eq!(
            MappedFile::open(dir.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_pipe_without_a_writer_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if !made.is_ok_and(|status| status.success()) {
            backtrail_testkit::skip("no mkfifo on this machine");
            return;
        }
        let error = MappedFile::open(&path).unwrap_err();
        assert_eq!(error.to_string(), "is a named pipe, not a file");
    }
}
