//! Room in the session's file.
//!
//! The file has holes: most rings are never used. A store into a hole for which the file system has
//! no room raises SIGBUS, which would end the program that is traced. So every part of the file is
//! reserved before the first store or load in it, with a call that can fail.

use core::sync::atomic::{AtomicI32, Ordering};

const NONE: libc::c_int = -1;
/// Calls that are interrupted by signals are made again, but not for ever.
const TRIES: usize = 100;

/// The file of the session's rings; another one after a fork.
static FILE: AtomicI32 = AtomicI32::new(NONE);

/// The descriptor of the session's file.
pub(crate) fn descriptor() -> libc::c_int {
    FILE.load(Ordering::Acquire)
}

/// Makes this the session's file; returns the one before.
pub(crate) fn replace(file: libc::c_int) -> libc::c_int {
    FILE.swap(file, Ordering::AcqRel)
}

/// Reserves this part of the session's file; true without a file, for rings in plain memory. For
/// handlers; `errno` stays.
pub(crate) fn reserve(at: usize, bytes: usize) -> bool {
    match descriptor() {
        NONE => true,
        file => reserve_in(file, at, bytes),
    }
}

/// Reserves this part of a file.
pub(crate) fn reserve_in(file: libc::c_int, at: usize, bytes: usize) -> bool {
    // SAFETY: the address of this thread's errno, which interrupted code may be about to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let done = match allocate(file, at, bytes) {
        Ok(()) => true,
        // Not every file system can do this, and not every sandbox allows the call.
        Err(libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EIO) => false,
        Err(_) => fill(file, at, bytes),
    };
    // SAFETY: as above.
    unsafe { *errno = before };
    done
}

fn allocate(file: libc::c_int, at: usize, bytes: usize) -> Result<(), libc::c_int> {
    let mut error = libc::EINTR;
    for _ in 0..TRIES {
        // SAFETY: the call takes numbers alone.
        if unsafe { libc::fallocate(file, 0, at as libc::off_t, bytes as libc::off_t) } == 0 {
            return Ok(());
        }
        // SAFETY: the address of this thread's errno.
        error = unsafe { *libc::__errno_location() };
        if error != libc::EINTR {
            break;
        }
    }
    Err(error)
}

/// Writes zeros there, where nothing was written yet.
fn fill(file: libc::c_int, at: usize, bytes: usize) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    let end = at + bytes;
    let (mut at, mut interrupted) = (at, 0);
    while at < end && interrupted < TRIES {
        let length = ZEROS.len().min(end - at);
        // SAFETY: the bytes are a constant's, at least as many.
        match unsafe { libc::pwrite(file, ZEROS.as_ptr().cast(), length, at as libc::off_t) } {
            1.. => at += length,
            // SAFETY: the address of this thread's errno.
            _ if unsafe { *libc::__errno_location() } == libc::EINTR => interrupted += 1,
            _ => return false,
        }
    }
    at >= end
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    fn holes(act: impl Fn(&File) -> bool) -> (bool, u64) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        (act(&file), file.metadata().unwrap().blocks() * 512)
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn holes_are_filled() {
        let (done, bytes) = holes(|file| reserve_in(file.as_raw_fd(), 65_536, 10_000));
        assert!(done && (10_000..65_536).contains(&bytes), "{done} {bytes}");
        let (done, bytes) = holes(|file| fill(file.as_raw_fd(), 65_536, 10_000));
        assert!(done && (10_000..65_536).contains(&bytes), "{done} {bytes}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn what_cannot_be_had_is_said() {
        let file = File::open("/dev/full").unwrap();
        assert!(!reserve_in(file.as_raw_fd(), 0, 4096));
    }
}
