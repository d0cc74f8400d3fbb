//! The function of the same name in the next library that has one.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Stands for a function that no library has.
const NOBODY: *mut c_void = std::ptr::dangling_mut();

/// A function of the next library, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    place: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            place: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address; null if no library has it.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.place.load(Ordering::Acquire);
        let found = if known.is_null() { self.find() } else { known };
        if found == NOBODY { std::ptr::null_mut() } else { found }
    }

    /// Looks it up, as [`find`](Next::find); `None` if no library has it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn find_any(&self) -> Option<*mut c_void> {
        Some(self.find()).filter(|&found| found != NOBODY)
    }

    /// Notes that no library has it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn set_missing(&self) {
        self.place.store(NOBODY, Ordering::Release);
    }

    /// Looks it up; not for handlers.
    #[cold]
    pub(crate) fn find(&self) -> *mut c_void {
        // SAFETY: looks a name up, and nothing else.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() { NOBODY } else { found };
        self.place.store(found, Ordering::Release);
        found
    }
}
