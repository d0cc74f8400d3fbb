//! The C functions for crash reports.

use std::ffi::{CStr, c_int};
use std::panic::AssertUnwindSafe;

use backtrail_local::crash;

use crate::handler::options::{self, CrashOptions};
use crate::{code_of, guarded};

/// Makes all fatal signals write a report before the process dies of them, and gives the calling
/// thread a stack for that. Also does what [`backtrail_init`](crate::backtrail_init) does. Not for
/// handlers.
///
/// Returns 0, or a negative error number.
///
/// # Safety
/// `given` is null or points to a `struct backtrail_crash_options` whose first member is its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_crash_install(given: *const CrashOptions) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let given = unsafe { options::read(given) }?;
        if given.fd < 0 || given.reserved != 0 {
            return Err(libc::EINVAL);
        }
        let mut options = crash::Options::default();
        options.fd = (given.fd != 0).then_some(given.fd);
        // SAFETY: a string, as our caller promises.
        options.helper = (!given.helper.is_null()).then(|| unsafe { CStr::from_ptr(given.helper) }.to_owned());
        crash::install(options).map_err(code_of)
    }))
}

/// Gives the calling thread a stack for reports, unless it has an alternate stack. A thread without
/// one dies of a stack overflow without a report. Not for handlers.
///
/// Returns 0, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_crash_thread() -> c_int {
    guarded(|| crash::prepare_thread().map_err(code_of))
}
