//! The C functions that handlers may call.

use core::ffi::{c_int, c_void};

use backtrail_local::handler::entry::{Captured, encode, start, write_interrupted, write_return_addresses};
use backtrail_local::with_callers_registers;

use super::options::{self, CbfOptions};

/// Brings what runs before `main` into a program that links the archive and calls only these
/// functions: a linker takes from an archive what something refers to.
#[used]
static BEGIN: &extern "C" fn() = &crate::BEGIN;

with_callers_registers! {
    /// Like `backtrace(3)`: writes the return addresses of the active calls, the caller's own
    /// first. Returns their number, at most `size`.
    ///
    /// # Safety
    /// `buffer` has room for `size` pointers.
    #[unsafe(no_mangle)]
    backtrail_backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int, write_return_addresses, "rdx", "x2"
}

with_callers_registers! {
    /// Writes the stack as a compact backtrace into `out`, and returns its length in bytes or a
    /// negative error number. If not all frames fit, the outermost are left out and the backtrace
    /// is marked as truncated.
    ///
    /// # Safety
    /// `out` has room for `size` bytes; `options` is null or points to a `struct
    /// backtrail_cbf_options` that begins with its size.
    #[unsafe(no_mangle)]
    backtrail_backtrace_cbf(out: *mut u8, size: usize, options: *const CbfOptions) -> isize, backtrace_cbf, "rcx", "x3"
}

/// Writes the stack of interrupted code: its program counter, then the return addresses. Returns
/// their number, at most `size`.
///
/// # Safety
/// `ucontext` is a signal handler's third argument; `buffer` has room for `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_backtrace_from_ucontext(
    ucontext: *const c_void,
    buffer: *mut *mut c_void,
    size: c_int,
) -> c_int {
    match ucontext.is_null() {
        true => -libc::EINVAL,
        // SAFETY: as our caller promises.
        false => unsafe { write_interrupted(ucontext, buffer, size) },
    }
}

unsafe extern "C" fn backtrace_cbf(
    out: *mut u8,
    size: usize,
    given: *const CbfOptions,
    caller: *const Captured,
) -> isize {
    // SAFETY: as our caller promises.
    let options = match unsafe { options::read(given) } {
        Ok(options) => options,
        Err(error) => return -(error as isize),
    };
    if out.is_null() || isize::try_from(size).is_err() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: as our caller promises; the registers were saved at the entry.
    let position = unsafe { start(options.ucontext, caller) };
    // SAFETY: the caller gives us these bytes; the encoder reads only those that it has written.
    let out = unsafe { core::slice::from_raw_parts_mut(out, size) };
    encode(&position, 0, out).map_or(-(libc::ENOSPC as isize), |len| len as isize)
}
