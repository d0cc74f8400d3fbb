//! Which descriptors a process has.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Closes all descriptors but the standard input, and returns that as the only one.
///
/// For the main function of a process that has opened nothing yet.
///
/// # Errors
/// Those of `close_range(2)`.
pub fn only_standard_input() -> io::Result<OwnedFd> {
    // SAFETY: it takes no pointers. Nothing in this process owns descriptors yet, so nobody will
    // use one that is closed here; the standard streams are not owned by anybody.
    if unsafe { libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the standard input is open since the start, and from now on belongs to the result.
    Ok(unsafe { OwnedFd::from_raw_fd(0) })
}
