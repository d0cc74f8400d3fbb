//! Look-ups of the loader's names in any program.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

fn first(name: &CStr) -> *mut c_void {
    // SAFETY: looks a name up, and nothing else.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // The loader looks at who calls, and crashes if a jump makes it that itself.
    std::hint::black_box(found)
}

/// Looks names up, and discards the message of a look-up that failed, which the program's first
/// `dlerror` would return. Discarding it calls `free`: a program's own may not work yet.
pub fn quietly<R>(look_up: impl FnOnce() -> R) -> R {
    let free = first(c"free");
    let is_librarys = !free.is_null() && free == first(c"__libc_free");
    let result = look_up();
    if is_librarys {
        first(c"free");
    }
    result
}

/// Stands for a function that no library has.
const NOBODY: *mut c_void = std::ptr::dangling_mut();

/// The function of a name in the next library that has one, looked up once.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    place: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name, not looked up yet.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            place: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address; null if no library has it.
    #[must_use]
    pub fn get(&self) -> *mut c_void {
        let known = self.place.load(Ordering::Acquire);
        let found = if known.is_null() { self.look_up() } else { known };
        if found == NOBODY { std::ptr::null_mut() } else { found }
    }

    /// Looks it up, as [`Next::find`] does; `None` if no library has it.
    pub fn find_any(&self) -> Option<*mut c_void> {
        Some(self.look_up()).filter(|&found| found != NOBODY)
    }

    /// Notes that no library has it.
    pub fn set_missing(&self) {
        self.place.store(NOBODY, Ordering::Release);
    }

    /// Looks it up; not for handlers.
    pub fn find(&self) {
        self.look_up();
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: looks a name up, and nothing else.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() { NOBODY } else { found };
        self.place.store(found, Ordering::Release);
        found
    }
}
