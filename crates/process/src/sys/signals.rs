//! Signals that end a recording, read from a descriptor instead of caught in a handler.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether a process sent it, and not the terminal. The terminal sends its signals to every
    /// process in the foreground.
    pub sent: bool,
}

/// SIGINT, SIGTERM, SIGHUP, SIGCHLD and others that are asked for, blocked and collected.
#[derive(Debug)]
pub struct SignalSource {
    fd: OwnedFd,
    before: libc::sigset_t,
    blocked: libc::sigset_t,
}

impl SignalSource {
    /// Blocks the signals for the calling thread and collects them from now on.
    pub fn new() -> io::Result<SignalSource> {
        SignalSource::with(&[])
    }

    /// The same for more signals.
    pub fn with(others: &[i32]) -> io::Result<SignalSource> {
        const USUAL: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD];
        // SAFETY: the sets are plain memory of the right type, initialised by sigemptyset before
        // use, and live on the stack during the calls; signalfd returns a new descriptor that
        // nobody else owns.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for &number in USUAL.iter().chain(others) {
                libc::sigaddset(&mut set, number);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(SignalSource {
                fd: OwnedFd::from_raw_fd(fd),
                before,
                blocked: set,
            })
        }
    }

    /// Runs `act` with the signal mask that the thread had before: a program that it starts
    /// inherits the mask.
    pub fn unblocked<T>(&self, act: impl FnOnce() -> T) -> T {
        set_mask(&self.before);
        let result = act();
        set_mask(&self.blocked);
        result
    }

    /// The next signal that has arrived, if any.
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: the kernel writes one whole `signalfd_siginfo` into memory of that size, or
        // nothing.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let read = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            (read == size as isize).then_some(Signal {
                number: info.ssi_signo as i32,
                sent: info.ssi_code <= 0,
            })
        }
    }
}

impl AsFd for SignalSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalSource {
    fn drop(&mut self) {
        set_mask(&self.before);
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: `mask` is an initialised set that is only read.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
    }
}
