//! The C library: `include/backtrail.h` has its interface, `docs/c-library.md` how to use it.
//!
//! Conversions only. What runs in a signal handler is in `backtrail_unwind::local`; what may allocate is [`register`], which
//! gives every module its table beforehand.
#![allow(unsafe_code)]

mod capture;
mod crash;
mod entry;
mod options;
mod register;
mod symbols;
mod types;

pub use capture::{Backtrace, init};
pub use crash::{CrashOptions, backtrail_crash_install, backtrail_crash_thread};
pub use entry::{backtrail_backtrace, backtrail_backtrace_cbf, backtrail_backtrace_from_ucontext};
pub use options::{CbfOptions, InitOptions};
pub use symbols::backtrail_backtrace_symbols_fd;
pub use types::{
    EachPart, EachType, Handle, TypeInfo, TypePart, TypesOptions, backtrail_type_get, backtrail_type_parts,
    backtrail_type_text, backtrail_types_close, backtrail_types_find, backtrail_types_open, backtrail_types_walk,
};

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;

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
        let cache = unsafe { options.cache_dir() };
        register::modules(cache)
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
