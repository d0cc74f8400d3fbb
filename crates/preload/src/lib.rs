//! `LD_PRELOAD=libbacktrail_preload.so PROGRAM`: the program's calls of `backtrace(3)` are answered by Backtrail. What lies in
//! libraries that are loaded later is not known until the program calls `backtrail_init` itself.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use backtrail::{backtrail_backtrace, backtrail_init};

/// `backtrace(3)`.
///
/// # Safety
/// As there: `buffer` has room for `size` pointers.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int {
    // The caller's registers and stack are as they were, so it is the caller's own call.
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(".cfi_startproc", "jmp {}", ".cfi_endproc", sym backtrail_backtrace);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(".cfi_startproc", "b {}", ".cfi_endproc", sym backtrail_backtrace);
}

extern "C" fn begin() {
    // SAFETY: without options. A program must not fail because its backtraces do.
    let _ = unsafe { backtrail_init(std::ptr::null()) };
}

// SAFETY: the loader calls what this section points to, once, without arguments that it looks at.
#[unsafe(link_section = ".init_array")]
#[used]
static BEGIN: extern "C" fn() = begin;
