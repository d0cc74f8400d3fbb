//! Structs of options that begin with their own size, so that a program and a library of another
//! age understand each other.

use core::ffi::{c_char, c_int, c_void};
use core::mem;

/// `struct backtrail_init_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InitOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// Where tables are kept for the next start; null for nowhere.
    pub cache_dir: *const c_char,
    /// Whether a thread makes the tables of libraries that are opened later; 0 for no.
    pub follow: c_int,
    /// Nothing; 0.
    pub reserved: c_int,
}

/// `struct backtrail_crash_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrashOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// A program that reads the report on its standard input; null for none.
    pub helper: *const c_char,
    /// Where the report is written; 0 stands for standard error.
    pub fd: c_int,
    /// Nothing; 0.
    pub reserved: c_int,
}

/// `struct backtrail_cbf_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CbfOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// A handler's third argument, for the stack of what it has interrupted; null for the caller's
    /// own.
    pub ucontext: *const c_void,
}

/// A struct that begins with its size, and whose zeros mean what an older program means that does
/// not have them.
///
/// # Safety
/// Any bytes are one of its values, and it begins with a `usize` that is its size.
pub(crate) unsafe trait Options: Copy {}
// SAFETY: a size, a pointer and an integer.
unsafe impl Options for CrashOptions {}
// SAFETY: a size, a pointer and integers.
unsafe impl Options for InitOptions {}
// SAFETY: a size and a pointer.
unsafe impl Options for CbfOptions {}

/// Reads options; all zeros where there are none. `EINVAL` where the size is less than its own,
/// `E2BIG` where there is more than this library knows, and not all of that is 0.
///
/// # Safety
/// `options` is null or points to as many bytes as the size says that they begin with.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, c_int> {
    // SAFETY: zeros are a value of it.
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
    // SAFETY: within both, of which one is our own.
    unsafe { core::ptr::copy_nonoverlapping(given, (&raw mut known).cast(), size.min(size_of::<T>())) };
    Ok(known)
}
