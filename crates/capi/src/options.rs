//! Structs of options that begin with their own size, so that a program and a library of another age understand each other.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// `struct backtrail_init_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InitOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// Where tables are kept for the next start; null for nowhere.
    pub cache_dir: *const c_char,
}

impl InitOptions {
    /// The folder for tables.
    ///
    /// # Safety
    /// `cache_dir` is null or a string.
    pub(crate) unsafe fn cache_dir(&self) -> Option<PathBuf> {
        if self.cache_dir.is_null() {
            return None;
        }
        // SAFETY: as our caller promises.
        let text = unsafe { CStr::from_ptr(self.cache_dir) };
        Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
    }
}

/// `struct backtrail_cbf_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CbfOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// A handler's third argument, for the stack of what it has interrupted; null for the caller's own.
    pub ucontext: *const c_void,
}

/// A struct that begins with its size, and whose zeros mean what an older program means that does not have them.
///
/// # Safety
/// Any bytes are one of its values, and it begins with a `usize` that is its size.
pub(crate) unsafe trait Options: Copy {}
// SAFETY: a size, a pointer and an integer.
unsafe impl Options for crate::CrashOptions {}
// SAFETY: a size and a pointer.
unsafe impl Options for InitOptions {}
// SAFETY: a size and a pointer.
unsafe impl Options for CbfOptions {}

/// Reads options; all zeros where there are none. `EINVAL` where the size is less than its own, `E2BIG` where there is more than this library
/// knows, and not all of that is 0.
///
/// # Safety
/// `options` is null or points to as many bytes as the size says that they begin with.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, c_int> {
    // SAFETY: zeros are a value of it.
    let mut known: T = unsafe { std::mem::zeroed() };
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
    unsafe { std::ptr::copy_nonoverlapping(given, (&raw mut known).cast(), size.min(size_of::<T>())) };
    Ok(known)
}
