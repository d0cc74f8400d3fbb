//! The process's session: its file of rings.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

use crate::classes;
use crate::contexts::Contexts;
use crate::layout::head;
use crate::map::Map;
use crate::options::Destination;
use crate::ring::Ring;
use crate::room;
use crate::switch::OFF;

/// A process has one, for the rest of its life.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) map: Map,
    pub(crate) rings: Vec<Ring>,
    /// Threads that looked for a ring.
    pub(crate) seekers: AtomicUsize,
    pub(crate) contexts: Contexts,
    pub(crate) sample: u64,
    /// Whether stacks were prepared for.
    pub(crate) has_stacks: bool,
    /// The start of the file's name, up to the process id; `None` for rings in memory.
    pub(crate) name: Option<CString>,
    pub(crate) destination: Destination,
    pub(crate) flush: std::time::Duration,
}

static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

impl Session {
    /// The session, if one was started.
    #[inline]
    pub(crate) fn get() -> Option<&'static Session> {
        // SAFETY: null or a session, which is never freed.
        unsafe { SESSION.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn contexts() -> &'static Contexts {
        static NONE: Contexts = Contexts::none();
        Session::get().map_or(&NONE, |session| &session.contexts)
    }

    /// Where the next thread that needs a ring begins to look for one.
    pub(crate) fn next_ring(&self) -> usize {
        self.seekers.fetch_add(1, Ordering::Relaxed) % self.rings.len().max(1)
    }

    /// Whether an event at this time is one of those that get a stack.
    pub(crate) fn is_sampled(time: u64) -> bool {
        let sample = Session::get().map_or(1, |session| session.sample);
        // The low bits of a clock alone may repeat with the program's loop.
        (time.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(sample.max(1))
    }

    /// Makes this the process's session.
    pub(crate) fn publish(&'static self) {
        SESSION.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Says that nothing more is recorded.
    pub(crate) fn end(&self) {
        self.map.word(head::RULES).store(0, Ordering::Relaxed);
        classes::each_switch(&self.map, |switch| switch.store(OFF, Ordering::Relaxed));
        self.map.word(head::ENDED).store(1, Ordering::Release);
    }

    /// Removes the rings that no collector wants.
    pub(crate) fn leave_folder(&self) {
        let has_collector = self.map.word(head::COLLECTOR).load(Ordering::Acquire) != 0;
        // A collector that starts programs looks at them after their end, perhaps for the first
        // time.
        let was_started = crate::collect::folder_of_starter().is_some();
        if matches!(self.destination, Destination::Folder(_)) && !has_collector && !was_started {
            let _ = self.path().map(fs::remove_file);
        }
    }

    /// The file of the rings.
    pub(crate) fn file(&self) -> io::Result<File> {
        // SAFETY: the session's descriptor is open; the duplicate is the caller's.
        match unsafe { libc::fcntl(room::descriptor(), libc::F_DUPFD_CLOEXEC, 0) } {
            ..0 => Err(io::Error::last_os_error()),
            // SAFETY: a new descriptor that nobody else has.
            file => Ok(unsafe { File::from_raw_fd(file) }),
        }
    }

    /// The file's path, for a file that has a name.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &self.destination {
            Destination::Directory(folder) | Destination::Folder(folder) => {
                Some(folder.join(file_name(std::process::id())))
            }
            Destination::FlightRecorder(file) => file.clone(),
        }
    }
}

/// The name of a process's rings in a folder. Readers of traces ignore such files.
pub(crate) fn file_name(pid: u32) -> String {
    format!(".{pid}.rings")
}

/// Calls a function at the process's exit.
pub(crate) fn at_exit(act: extern "C" fn()) {
    // SAFETY: the function may run at any exit from now on.
    unsafe { libc::atexit(act) };
}
