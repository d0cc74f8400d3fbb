//! The C library: `include/backtrail.h` has its interface, `docs/c-library.md` how to use it.
//!
//! Conversions only. What runs in a signal handler is in `handler` and in `backtrail_unwind::local`; what may allocate is `register`, which
//! gives every module its table beforehand.
#![allow(unsafe_code)]

mod arrivals;
mod crash;
mod follow;
mod frames;
mod handler;
mod register;
mod types;

pub use crash::{backtrail_crash_install, backtrail_crash_thread};
pub use handler::capture::Backtrace;
pub use handler::entry::{backtrail_backtrace, backtrail_backtrace_cbf, backtrail_backtrace_from_ucontext};
pub use handler::options::{CbfOptions, CrashOptions, InitOptions};
pub use handler::symbols::backtrail_backtrace_symbols_fd;
pub use types::{
    EachPart, EachType, Handle, TypeInfo, TypePart, TypesOptions, backtrail_type_get, backtrail_type_parts,
    backtrail_type_text, backtrail_types_close, backtrail_types_find, backtrail_types_open, backtrail_types_walk,
};

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::PathBuf;

use handler::options;

/// Makes the unwind tables of all modules that are loaded now; what [`backtrail_init`] does without options. Not in signal handlers. Where nothing was
/// loaded or unloaded since the last call, it is done in less than a microsecond.
///
/// # Errors
/// The system's error where memory or the loader fails.
pub fn init() -> std::io::Result<()> {
    init_with(0)
}

/// As [`init`], and starts a thread that does it again when a backtrace comes to a library that was opened later. Until its table is made,
/// backtraces end there.
///
/// # Errors
/// As [`init`], and where there can be no thread.
pub fn init_and_follow() -> std::io::Result<()> {
    init_with(1)
}

fn init_with(follow: c_int) -> std::io::Result<()> {
    let options = InitOptions {
        size: size_of::<InitOptions>(),
        cache_dir: std::ptr::null(),
        follow,
        reserved: 0,
    };
    // SAFETY: the options are ours.
    match unsafe { backtrail_init(&options) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}

/// A path, where there is one.
///
/// # Safety
/// It is null or a string.
unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: as our caller promises.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
}

/// Does what may panic, and says `-ENOTRECOVERABLE` where it did.
fn guarded(act: impl FnOnce() -> Result<(), c_int> + std::panic::UnwindSafe) -> c_int {
    match catch_unwind(act) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// Makes the tables of all modules that are loaded now, and forgets those of modules that have gone. Allocates and locks: not for handlers.
///
/// Returns 0, or a negative error number.
///
/// # Safety
/// `options` is null or points to a `struct backtrail_init_options` that tells its own size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_init(options: *const InitOptions) -> c_int {
    guarded(|| {
        // SAFETY: as our caller promises.
        let options = unsafe { options::read(options) }?;
        // SAFETY: as our caller promises.
        let cache = unsafe { path(options.cache_dir) };
        if options.reserved != 0 {
            return Err(libc::EINVAL);
        }
        register::modules(cache)?;
        match options.follow {
            0 => Ok(()),
            _ => follow::start(),
        }
    })
}

/// Makes known that there is code at `start`, made at run time, that keeps frame pointers.
///
/// Returns 0, or a negative error number: `-EINVAL` for an empty range, `-EEXIST` where some of it is known already.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_register_code(start: *const c_void, size: usize) -> c_int {
    let start = start.addr() as u64;
    guarded(|| register::add_code(start, size as u64))
}

/// Takes back what [`backtrail_register_code`] made known.
///
/// Returns 0, or a negative error number: `-ENOENT` where no code begins at `start`.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_withdraw_code(start: *const c_void) -> c_int {
    let start = start.addr() as u64;
    guarded(|| register::remove_code(start))
}
