//! A copy of the rings at a crash.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::room;
use crate::session::Session;

const SIGNALS: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// What happened at these signals before.
struct Before {
    path: CString,
    actions: [libc::sigaction; SIGNALS.len()],
}

static BEFORE: AtomicPtr<Before> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn install(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut before = Box::new(Before {
        path,
        // SAFETY: an action of zeros is the default one.
        actions: unsafe { core::mem::zeroed() },
    });
    for (signal, place) in SIGNALS.into_iter().zip(&mut before.actions) {
        // SAFETY: the place is written with the current action.
        if unsafe { libc::sigaction(signal, core::ptr::null(), place) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let put = BEFORE.compare_exchange(
        core::ptr::null_mut(),
        Box::into_raw(before),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if put.is_err() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "snapshots at crashes are installed already",
        ));
    }
    for signal in SIGNALS {
        // SAFETY: an action is plain numbers and a handler, set before it is passed on.
        let done = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = crashed as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, core::ptr::null_mut())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Copies the rings, then lets happen what would have happened.
extern "C" fn crashed(signal: libc::c_int) {
    static ONCE: AtomicBool = AtomicBool::new(false);
    // SAFETY: set before the handler was installed, never freed.
    let Some(before) = (unsafe { BEFORE.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    if !ONCE.swap(true, Ordering::AcqRel) && Session::get().is_some() {
        copy(room::descriptor(), &before.path);
    }
    for (number, action) in SIGNALS.into_iter().zip(&before.actions) {
        if number == signal {
            // SAFETY: the action that was installed before. A fault happens again when this
            // returns; a signal that was sent is sent again.
            unsafe {
                libc::sigaction(number, action, core::ptr::null_mut());
                libc::raise(number);
            }
        }
    }
}

/// Copies a file with holes, with system calls alone.
fn copy(from: libc::c_int, path: &CString) {
    // SAFETY: the path is a string; the calls take descriptors and numbers.
    unsafe {
        let to = libc::open(
            path.as_ptr(),
            libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY | libc::O_CLOEXEC,
            0o600,
        );
        if to < 0 {
            return;
        }
        let end = libc::lseek(from, 0, libc::SEEK_END);
        libc::ftruncate(to, end);
        let mut data = libc::lseek(from, 0, libc::SEEK_DATA);
        while data >= 0 && data < end {
            let hole = libc::lseek(from, data, libc::SEEK_HOLE);
            libc::lseek(to, data, libc::SEEK_SET);
            // Alternate stacks have no room for a buffer.
            while data < hole && libc::sendfile(to, from, &raw mut data, (hole - data) as usize) > 0 {}
            if data < hole {
                break;
            }
            data = libc::lseek(from, data, libc::SEEK_DATA);
        }
        libc::close(to);
    }
}
