//! `LD_PRELOAD=libbacktrail_preload.so PROGRAM`: Backtrail answers the program's calls of
//! `backtrace(3)`. With `BACKTRAIL_CRASH` in the environment, it also reports crashes.
#![allow(unsafe_code)]

mod actions;
mod crash;

use std::ffi::{c_int, c_void};

use backtrail_local::handler::entry::write_return_addresses;
use backtrail_local::memory::OwnMemory;
use backtrail_local::with_callers_registers;

#[global_allocator]
static MEMORY: OwnMemory = OwnMemory::new();

with_callers_registers! {
    /// `backtrace(3)`.
    ///
    /// # Safety
    /// As there: `buffer` has room for `size` pointers.
    #[unsafe(no_mangle)]
    backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int, write_return_addresses, "rdx", "x2"
}

extern "C" fn begin() {
    // A program must not fail because its backtraces do, nor may a panic cross into the loader.
    let _ = std::panic::catch_unwind(backtrail_local::prepare);
    actions::find_next();
    let _ = std::panic::catch_unwind(crash::install);
}

// SAFETY: the loader calls what this section points to, once, without arguments that it looks at.
#[unsafe(link_section = ".init_array")]
#[used]
static BEGIN: extern "C" fn() = begin;
