//! Look-ups of the loader's names in any program.

use std::ffi::{CStr, c_void};

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
