//! Where reports are written to. A program may have closed the descriptor, as daemons do, and may
//! even have got the same one for a file of its own, which a report must not damage.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use super::system;

static FD: AtomicI32 = AtomicI32::new(2);
static FILE: AtomicPtr<OutputFile> = AtomicPtr::new(core::ptr::null_mut());

/// The file that reports are appended to.
pub(crate) struct OutputFile {
    /// Its absolute path, a string that lives for ever.
    path: *const c_char,
    /// Its device and inode.
    identity: [u64; 2],
}

impl OutputFile {
    /// `None` if the kernel does not say which file this is.
    pub(crate) fn new(fd: c_int, path: *const c_char) -> Option<OutputFile> {
        let identity = system::identity(fd).ok()?;
        Some(OutputFile { path, identity })
    }
}

/// Sets where reports go. `file` lives for ever; if it is not null, it is what `fd` refers to.
pub(crate) fn set(fd: c_int, file: *mut OutputFile) {
    FD.store(fd, Ordering::Release);
    FILE.store(file, Ordering::Release);
}

/// The descriptor that reports are written to, or -1.
pub(crate) fn descriptor() -> c_int {
    FD.load(Ordering::Acquire)
}

/// Opens the file again if the descriptor no longer refers to it.
pub(crate) fn renew() {
    // SAFETY: null, or a file that lives for ever.
    let Some(file) = (unsafe { FILE.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let is_file = match system::identity(descriptor()) {
        Ok(identity) => identity == file.identity,
        // A filter of system calls may deny the question.
        Err(error) => error != libc::EBADF,
    };
    if is_file {
        return;
    }
    let Ok(fd) = system::open_to_append(file.path) else {
        return FD.store(-1, Ordering::Release);
    };
    if system::identity(fd) == Ok(file.identity) {
        FD.store(fd, Ordering::Release);
    } else {
        system::close(fd);
        FD.store(-1, Ordering::Release);
    }
}
