//! Prints addresses from a handler.

use core::ffi::{c_int, c_void};

use backtrail_local::handler::line::Line;

/// Writes each address of a backtrace on its own line: the module's path, the offset in its file,
/// which `addr2line -e PATH OFFSET` takes, and the address. Does not look up names, which is not
/// possible in a handler.
///
/// # Safety
/// `buffer` holds `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) {
    if buffer.is_null() {
        return;
    }
    for index in 0..usize::try_from(size).unwrap_or(0) {
        // SAFETY: within what the caller gave.
        let address = unsafe { *buffer.add(index) }.addr() as u64;
        let mut line = Line::new(fd);
        line.push_address(address);
        line.push(b"\n");
        line.flush();
    }
}
