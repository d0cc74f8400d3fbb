//! Threads for what samples need not wait for.

use std::io;
use std::thread::{self, JoinHandle};

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Does this in a thread of this name, with the priority that programs have: the recorder itself
/// has a higher one.
///
/// # Errors
/// If there can be no thread.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(|| {
        let _ = setpriority_process(Some(gettid()), 0);
        work()
    })
}
