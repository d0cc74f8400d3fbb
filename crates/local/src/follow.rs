//! A thread that makes tables of libraries that were opened after the last
//! [`backtrail_init`](crate::backtrail_init), once a walk reaches one. A walk cannot make a table,
//! and only the program's own code notices when a library is loaded.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backtrail_unwind::local::wait_for_unknown_module;

use crate::handler::crash::SIGNALS;
use crate::register;

/// Whether this process has the thread.
static IS_FOLLOWING: AtomicBool = AtomicBool::new(false);

/// Pause between two checks: walks meet a library that cannot have a table again and again.
const PAUSE: Duration = Duration::from_millis(10);

/// What is to be done whenever the thread has looked for modules.
static ACTS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Also does this whenever the thread has looked for modules.
pub(crate) fn act_then(act: fn()) {
    ACTS.lock().unwrap_or_else(PoisonError::into_inner).push(act);
}

/// Starts the thread, unless it is running.
pub(crate) fn start() -> Result<(), c_int> {
    static AT_FORK: std::sync::Once = std::sync::Once::new();
    AT_FORK.call_once(|| {
        // SAFETY: the functions may be called at any fork.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    if IS_FOLLOWING.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let named = std::thread::Builder::new().name("backtrail".into());
    // The program's handlers must not run in this thread, which inherits the signal mask it is
    // created with; a fault is reported like any other.
    let started = with_signals_blocked(|| named.spawn(follow));
    if let Err(error) = started {
        IS_FOLLOWING.store(false, Ordering::Release);
        return Err(error.raw_os_error().unwrap_or(libc::EAGAIN));
    }
    Ok(())
}

fn follow() {
    loop {
        wait_for_unknown_module();
        // If it panics, trying again would hardly help.
        let _ = std::panic::catch_unwind(|| {
            // Without memory for another table, modules are still those known before.
            let _ = register::modules(None);
            // A copy: acts are not called with the lock, which a fork would leave locked.
            let acts = ACTS.lock().unwrap_or_else(PoisonError::into_inner).clone();
            acts.iter().for_each(|act| act());
        });
        std::thread::sleep(PAUSE);
    }
}

fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets are ours; the first call writes all of one, and the third all of the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for (signal, _) in SIGNALS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let done = act();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    done
}

// A child must not find the registry half-changed by the thread, which does not exist in the child.
extern "C" fn before_fork() {
    register::hold();
}

extern "C" fn in_parent() {
    register::let_go();
}

extern "C" fn in_child() {
    register::let_go();
    IS_FOLLOWING.store(false, Ordering::Release);
}
