//! Opens the files of a trace's directory, which somebody else may have written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `O_NONBLOCK`, of x86-64, AArch64 and s390x.
const NONBLOCK: i32 = 0o4000;
/// No metadata and no ring is longer, in bytes; packets are read one at a time.
const LONGEST: u64 = 4 << 30;

/// Opens a regular file. Nothing else is opened: a named pipe would wait for its other end, and a
/// device has no end.
///
/// # Errors
/// Those of `open(2)`; `InvalidInput` if it is not a regular file.
#[doc(hidden)]
pub fn open(path: &Path) -> io::Result<File> {
    let check = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    check(fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    check(file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file that is kept in memory as a whole.
///
/// # Errors
/// Those of [`open`] and `read(2)`; `FileTooLarge`; `OutOfMemory`.
#[doc(hidden)]
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    if len > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize)?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = backtrail_testkit::scratch();
        let of = |name: &str| folder.path().join(name);
        fs::write(of("file"), "12345").unwrap();
        assert_eq!(read(&of("file")).unwrap(), b"12345");
        std::os::unix::fs::symlink("/dev/zero", of("zeros")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(of("pipe")).status();
        for name in ["zeros", "pipe", "."] {
            if name == "pipe" && !made.as_ref().is_ok_and(std::process::ExitStatus::success) {
                backtrail_testkit::skip("no mkfifo on this machine");
                continue;
            }
            assert_eq!(
                open(&of(name)).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{name}"
            );
        }
        File::create(of("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&of("sparse")).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
