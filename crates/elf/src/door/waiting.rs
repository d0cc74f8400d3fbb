//! Waits for file systems that may never answer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// The longest wait for one answer.
const LONGEST: Duration = Duration::from_secs(2);
/// The longest wait for answers that never came, of all files together: one hostile program has
/// many files.
const LONGEST_IN_ALL: Duration = Duration::from_secs(10);
/// Enough for a system call.
const STACK: usize = 64 << 10;

/// Milliseconds that were waited for nothing.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);

/// Runs `ask` in a thread of its own, and leaves that thread alone if there is no answer in time:
/// the kernel lets nobody end a wait for a file system.
pub(super) fn within<T: Send + 'static>(ask: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let waited = Duration::from_millis(IN_VAIN.load(Ordering::Relaxed));
    let Some(left) = LONGEST_IN_ALL.checked_sub(waited).filter(|left| !left.is_zero()) else {
        return Err(io::ErrorKind::TimedOut.into());
    };
    let (answer, answered) = sync_channel(1);
    let ask = move || drop(answer.send(ask()));
    thread::Builder::new()
        .name("files".to_owned())
        .stack_size(STACK)
        .spawn(ask)?;
    let longest = LONGEST.min(left);
    match answered.recv_timeout(longest) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => {
            IN_VAIN.fetch_add(longest.as_millis() as u64, Ordering::Relaxed);
            Err(io::ErrorKind::TimedOut.into())
        }
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::Other.into()),
    }
}
