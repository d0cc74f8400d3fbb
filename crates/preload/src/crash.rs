//! Crash reports of programs that do not ask for them, if the environment does. Each thread gets a
//! stack for its report before it starts, so that an overflow of its own is reported, too.

use std::ffi::{CString, OsString, c_int, c_void};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use backtrail_local::crash;

use crate::actions;

/// Whether crashes are reported.
static REPORTS: AtomicBool = AtomicBool::new(false);

/// Reports crashes as the environment asks: `BACKTRAIL_CRASH` is `-` for standard error, or a file
/// that reports are appended to; `BACKTRAIL_CRASH_HELPER` is a program that adds names.
pub(crate) fn install() {
    let Some(place) = std::env::var_os("BACKTRAIL_CRASH").filter(|place| !place.is_empty()) else {
        return;
    };
    let mut options = crash::Options::default();
    // All children inherit the preloading: they must start as fast as without.
    options.without_tables = true;
    options.helper = std::env::var_os("BACKTRAIL_CRASH_HELPER").and_then(string);
    if place != "-" {
        let Ok(file) = File::options().append(true).create(true).open(&place) else {
            eprintln!("backtrail: {}: crashes cannot be reported there", place.display());
            return;
        };
        options.fd = Some(beyond(file));
        // Programs change their folder.
        options.path = std::path::absolute(&place).ok().and_then(|path| string(path.into()));
    }
    match crash::install(options) {
        Ok(()) => {
            REPORTS.store(true, Ordering::Release);
            actions::unblock_faults();
        }
        Err(error) => eprintln!("backtrail: crashes cannot be reported: {error}"),
    }
}

fn string(path: OsString) -> Option<CString> {
    CString::new(path.into_vec()).ok().filter(|path| !path.is_empty())
}

/// A descriptor of the file beyond those that programs choose themselves.
fn beyond(file: File) -> c_int {
    const FIRST: c_int = 100;
    let fd = file.into_raw_fd();
    // SAFETY: it makes another descriptor of our own file, and then closes the first.
    unsafe {
        match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST) {
            copy @ 0.. => {
                libc::close(fd);
                copy
            }
            _ => fd,
        }
    }
}

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// What a thread was created for.
struct Thread {
    start: Start,
    argument: *mut c_void,
}

/// `pthread_create(3)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static NEXT: OnceLock<Option<Create>> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        // SAFETY: the next definition of this function has its type.
        unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
            (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Create>(found))
        }
    });
    let Some(next) = next else { return libc::ENOSYS };
    if !REPORTS.load(Ordering::Acquire) {
        // SAFETY: as our caller promises.
        return unsafe { next(thread, attributes, start, argument) };
    }
    let given = Box::into_raw(Box::new(Thread { start, argument }));
    // SAFETY: as our caller promises; `begin` takes over what it is given.
    let error = unsafe { next(thread, attributes, begin, given.cast()) };
    if error != 0 {
        // SAFETY: no thread has got it.
        drop(unsafe { Box::from_raw(given) });
    }
    error
}

// `pthread_exit` unwinds through it.
extern "C-unwind" fn begin(given: *mut c_void) -> *mut c_void {
    // SAFETY: from `pthread_create`, for this thread only.
    let Thread { start, argument } = *unsafe { Box::from_raw(given.cast::<Thread>()) };
    // Without it, the thread's stack overflows are not reported.
    let _ = std::panic::catch_unwind(crash::prepare_thread);
    start(argument)
}
