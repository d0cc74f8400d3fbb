//! Option structs that begin with their own size, so that programs and libraries of different
//! versions are compatible.

use core::ffi::{c_char, c_int, c_void};
use core::mem;

/// `struct backtrail_init_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InitOptions {
    /// Size of the struct as the program knows it.
    pub size: usize,
    /// Folder that keeps tables for the next start; null for none.
    pub cache_dir: *const c_char,
    /// Whether a thread makes the tables of libraries that are opened later; 0 for no.
    pub follow: c_int,
    /// Must be 0.
    pub reserved: c_int,
}

/// `struct backtrail_crash_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrashOptions {
    /// Size of the struct as the program knows it.
    pub size: usize,
    /// A program that reads the report on its standard input; null for none.
    pub helper: *const c_char,
    /// File descriptor that reports are written to; 0 means standard error.
    pub fd: c_int,
    /// Must be 0.
    pub reserved: c_int,
}

/// `struct backtrail_cbf_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CbfOptions {
    /// Size of the struct as the program knows it.
    pub size: usize,
    /// A handler's third argument, for the stack of the interrupted code; null for the caller's own
    /// stack.
    pub ucontext: *const c_void,
}

/// A struct that begins with its size, in which members added later mean the old behaviour when
/// they are 0.
///
/// # Safety
/// Any bytes are a valid value, and it begins with a `usize` that is its size.
pub(crate) unsafe trait Options: Copy {}
// SAFETY: a size, a pointer and an integer.
unsafe impl Options for CrashOptions {}
// SAFETY: a size, a pointer and integers.
unsafe impl Options for InitOptions {}
// SAFETY: a size and a pointer.
unsafe impl Options for CbfOptions {}

/// Reads options; all zeros if `options` is null. `EINVAL` if the size is too small for the size
/// field itself, `E2BIG` if bytes beyond this library's struct are not all 0.
///
/// # Safety
/// `options` is null or points to a struct that begins with its size in bytes.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, c_int> {
    // SAFETY: all zeros are a valid value.
    let mut known: T = unsafe { mem::zeroed() };
    if options.is_null() {
        return Ok(known);
    }
    let given = options.cast::<u8>();
    // SAFETY: as our caller promises.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() {
        return Err(libc::EINVAL);
    }
    for at in size_of::<T>()..size {
        // SAFETY: within the size that the caller gave.
        if unsafe { given.add(at).read() } != 0 {
            return Err(libc::E2BIG);
        }
    }
    // SAFETY: within both structs; `known` is our own.
    unsafe { core::ptr::copy_nonoverlapping(given, (&raw mut known).cast(), size.min(size_of::<T>())) };
    Ok(known)
}
