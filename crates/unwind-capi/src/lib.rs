//! `LD_PRELOAD=libbacktrail_unwind.so PROGRAM`: Backtrail walks the stack for programs that ask
//! libgcc, libunwind or `backtrace(3)` to do so.
//!
//! Only walks are taken over. Exceptions stay with the library that the program uses for them, so
//! functions that get a context or a cursor pass those of other libraries on to the next library
//! that has the function.
#![allow(unsafe_code)]

pub mod context;
#[cfg(target_arch = "x86_64")]
pub mod cursor;
#[cfg(target_arch = "x86_64")]
pub mod proc_info;
pub mod trace;

use std::ffi::{c_int, c_void};

use backtrail_local::handler::entry::write_return_addresses;
use backtrail_local::lookups;
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

with_callers_registers! {
    /// As libunwind's: `backtrace(3)` by another name.
    ///
    /// # Safety
    /// `buffer` has room for `size` pointers.
    #[unsafe(no_mangle)]
    unw_backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int, write_return_addresses, "rdx", "x2"
}

extern "C" fn begin() {
    // A program must not fail because its backtraces do, nor may a panic cross into the loader.
    let _ = std::panic::catch_unwind(|| {
        backtrail_local::prepare();
        lookups::quietly(|| {
            context::find_next();
            #[cfg(target_arch = "x86_64")]
            cursor::find_next();
        });
    });
}

// SAFETY: the loader calls what this section points to, once, without arguments that it looks at.
#[unsafe(link_section = ".init_array")]
#[used]
static BEGIN: extern "C" fn() = begin;
