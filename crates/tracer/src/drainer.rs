//! The thread that writes the process's own trace.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::collect::Drain;
use crate::options::Destination;
use crate::session::Session;

/// What the thread and those who stop it share.
struct Shared {
    /// Whether the thread is to end, and whether it has.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

static SHARED: Mutex<Option<&'static Shared>> = Mutex::new(None);

/// The longest time between two looks at the rings.
const ROUND: Duration = Duration::from_millis(5);

/// Starts the thread if the session writes a trace of its own.
pub(crate) fn start(session: &'static Session) -> io::Result<()> {
    let Destination::Directory(directory) = &session.destination else {
        return Ok(());
    };
    let mut drain = Drain::new(session.map, session.file()?, directory, false, 0);
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        state: Mutex::new((false, false)),
        changed: Condvar::new(),
    }));
    let path = session.path();
    let run = move || {
        block_signals();
        let is_complete = run(&mut drain, shared, session.flush);
        if let Some(path) = path {
            // Else what is left stays there for `recover`.
            if is_complete {
                let _ = std::fs::remove_file(&path);
            }
            // What children have left that ended without their exit functions.
            let _ = path.parent().map(crate::collect::recover);
        }
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = true;
        shared.changed.notify_all();
    };
    std::thread::Builder::new().name("backtrail".to_owned()).spawn(run)?;
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    Ok(())
}

/// The program's handlers are for its own threads.
fn block_signals() {
    // SAFETY: a set of signals is plain numbers, which the first call fills.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
    }
}

/// Writes until the thread is to end; returns whether everything is in the trace then.
fn run(drain: &mut Drain, shared: &Shared, flush: Duration) -> bool {
    let mut flushed = Instant::now();
    let mut has_failed = false;
    loop {
        let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = |ends: &mut (bool, bool)| !ends.0;
        let waited = shared.changed.wait_timeout_while(state, ROUND.min(flush), wait);
        let ends = waited.unwrap_or_else(PoisonError::into_inner).0.0;
        let partial = ends || flushed.elapsed() >= flush;
        if partial {
            flushed = Instant::now();
        }
        let done = drain
            .round(partial)
            .and_then(|_| if ends { drain.finish() } else { Ok(()) });
        let is_complete = done.is_ok();
        if let Err(error) = done {
            // What could not be written stays in the rings.
            if !has_failed {
                eprintln!("backtrail: trace: {error}");
            }
            has_failed = true;
        }
        if ends {
            return is_complete;
        }
    }
}

/// Ends the thread after it has written everything.
pub(crate) fn stop() {
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(shared) = shared else { return };
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.0 = true;
    shared.changed.notify_all();
    // A disk that never answers must not keep the program.
    let wait = |state: &mut (bool, bool)| !state.1;
    drop(shared.changed.wait_timeout_while(state, Duration::from_secs(30), wait));
}

/// A forked child does not have its parent's thread.
pub(crate) fn after_fork(session: &'static Session) {
    if let Ok(mut shared) = SHARED.try_lock() {
        *shared = None;
    }
    if start(session).is_err() {
        // Its rings stay for `recover`.
        eprintln!("backtrail: trace: no thread for the child's events");
    }
}
