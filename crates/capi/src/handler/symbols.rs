//! Addresses as text, in a handler.

use core::ffi::{c_int, c_void};

use backtrail_local::handler::line::Line;

/// Writes each address of a backtrace on a line of its own: the module's path and the offset in its
/// file's terms, which `addr2line -e PATH OFFSET` takes, and the address. Names are not looked up,
/// since that is nothing for a handler.
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
