//! The C library: `include/backtrail.h` is its interface, `docs/c-library.md` explains its use.
//!
//! This crate only converts; `backtrail_local` does the work. Rust programs use that crate instead.
#![allow(unsafe_code)]

mod crash;
mod handler;
mod types;

pub use crash::{backtrail_crash_install, backtrail_crash_thread};
pub use handler::entry::{backtrail_backtrace, backtrail_backtrace_cbf, backtrail_backtrace_from_ucontext};
pub use handler::options::{CbfOptions, CrashOptions, InitOptions};
pub use handler::symbols::backtrail_backtrace_symbols_fd;
pub use types::{
    EachPart, EachType, Handle, TypeInfo, TypePart, TypesOptions, backtrail_type_get, backtrail_type_parts,
    backtrail_type_text, backtrail_types_close, backtrail_types_find, backtrail_types_open, backtrail_types_walk,
};

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::PathBuf;

use handler::options;

/// Converts a C string to a path; `None` for null.
///
/// # Safety
/// `text` is null or a string.
unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: as our caller promises.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
}

/// Runs `act`; returns `-ENOTRECOVERABLE` if it panicked.
fn guarded(act: impl FnOnce() -> Result<(), c_int> + std::panic::UnwindSafe) -> c_int {
    match catch_unwind(act) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// The error number of an I/O error.
fn code_of(error: io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Makes the tables of all loaded modules. Not for handlers: it allocates and locks.
///
/// Returns 0, or a negative error number.
///
/// # Safety
/// `options` is null or points to a `struct backtrail_init_options` whose first member is its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_init(options: *const InitOptions) -> c_int {
    guarded(|| {
        // SAFETY: as our caller promises.
        let given = unsafe { options::read(options) }?;
        if given.reserved != 0 {
            return Err(libc::EINVAL);
        }
        let mut options = backtrail_local::InitOptions::default();
        // SAFETY: as our caller promises.
        options.cache = unsafe { path(given.cache_dir) };
        options.follow = given.follow != 0;
        backtrail_local::init_with(options).map_err(code_of)
    })
}

/// Registers code made at run time, at `start`, that keeps frame pointers.
///
/// Returns 0, or a negative error number: `-EINVAL` for an empty range, `-EEXIST` if a part of it
/// is registered already.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_register_code(start: *const c_void, size: usize) -> c_int {
    guarded(|| backtrail_local::register_code(start.cast(), size).map_err(code_of))
}

/// Undoes [`backtrail_register_code`].
///
/// Returns 0, or a negative error number: `-ENOENT` if no registered code begins at `start`.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_withdraw_code(start: *const c_void) -> c_int {
    guarded(|| backtrail_local::withdraw_code(start.cast()).map_err(code_of))
}

extern "C" fn begin() {
    // A program must not fail because its backtraces do, nor may a panic cross into the loader.
    let _ = std::panic::catch_unwind(backtrail_local::prepare);
}

// Without it, the first walks ask the loader for each module.
// SAFETY: the loader calls what this section points to, once, without arguments that it looks at.
#[unsafe(link_section = ".init_array")]
#[used]
static BEGIN: extern "C" fn() = begin;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use backtrail_testkit::{available, command, scratch};

    use super::*;

    #[test]
    fn structs_of_options_are_laid_out_as_the_header_says() {
        let folder = scratch();
        let source = folder.path().join("layout.c");
        let options = [
            (
                "init_options",
                size_of::<InitOptions>(),
                "cache_dir",
                std::mem::offset_of!(InitOptions, cache_dir),
            ),
            (
                "init_options",
                size_of::<InitOptions>(),
                "follow",
                std::mem::offset_of!(InitOptions, follow),
            ),
            (
                "crash_options",
                size_of::<CrashOptions>(),
                "fd",
                std::mem::offset_of!(CrashOptions, fd),
            ),
            (
                "cbf_options",
                size_of::<CbfOptions>(),
                "ucontext",
                std::mem::offset_of!(CbfOptions, ucontext),
            ),
        ];
        let checks = options.map(|(name, size, field, offset)| {
            format!(
                "_Static_assert(sizeof(struct backtrail_{name}) == {size}, \"size\");\n\
                 _Static_assert(offsetof(struct backtrail_{name}, {field}) == {offset}, \"place\");\n"
            )
        });
        fs::write(&source, format!("#include <backtrail.h>\n{}", checks.concat())).unwrap();
        let mut check = Command::new("cc");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        check.arg("-fsyntax-only").arg("-I").arg(include).arg(&source);
        if let Some(checked) = available(command::run(&mut check, Duration::from_secs(60))) {
            assert!(checked.status.success(), "{}", checked.describe());
        }
    }
}
