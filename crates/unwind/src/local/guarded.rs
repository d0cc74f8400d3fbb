//! Loads from memory that may be unmapped, for a thread whose handler of SIGSEGV and SIGBUS calls
//! [`recover`]: no system call reads the memory, so a filter of system calls cannot refuse it.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};

use super::{registers, syscall};

/// Threads that load so: the one that reports a crash, and one that writes its own stack for it.
static GUARDED: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

/// Makes this thread load memory directly that it would have asked the kernel for. Does nothing if
/// two threads do so already.
///
/// # Safety
/// Until [`end`], SIGSEGV and SIGBUS are not blocked in this thread, and their handler calls
/// [`recover`] first.
pub unsafe fn begin() {
    let thread = syscall::gettid();
    let _ = GUARDED.iter().find(|place| {
        place
            .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    });
}

/// Undoes [`begin`].
pub fn end() {
    let thread = syscall::gettid();
    for place in &GUARDED {
        let _ = place.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this thread loads memory directly.
pub(super) fn is_on() -> bool {
    let mut threads = GUARDED.iter().map(|place| place.load(Ordering::Relaxed));
    let any = threads.clone().any(|thread| thread != 0);
    any && {
        let own = syscall::gettid();
        threads.any(|thread| thread == own)
    }
}

/// If the signal came from a guarded load, changes the interrupted code's registers so that the
/// copy ends there, and returns true.
///
/// # Safety
/// `ucontext` is a signal handler's third argument.
pub unsafe fn recover(ucontext: *mut c_void) -> bool {
    // SAFETY: as our caller promises.
    unsafe {
        let pc = registers::counter_of(ucontext);
        let (load, after) = (&raw const backtrail_guarded_load, &raw const backtrail_guarded_end);
        let is_ours = pc.read_unaligned() == load.addr() as u64;
        if is_ours {
            pc.write_unaligned(after.addr() as u64);
        }
        is_ours
    }
}

/// Copies words, and returns how many precede the first unreadable one.
pub(super) fn copy(address: u64, words: &mut [u64]) -> usize {
    let from = core::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the words are ours to write; what cannot be read ends the copy.
    unsafe { copy_words(words.as_mut_ptr(), from, words.len()) }
}

unsafe extern "C" {
    /// The load, and the instruction at which a copy ends.
    static backtrail_guarded_load: u8;
    static backtrail_guarded_end: u8;
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn copy_words(to: *mut u64, from: *const u64, count: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "xor eax, eax",
        "2:",
        "cmp rax, rdx",
        "jae backtrail_guarded_end",
        ".hidden backtrail_guarded_load",
        ".globl backtrail_guarded_load",
        "backtrail_guarded_load:",
        "mov rcx, qword ptr [rsi + 8 * rax]",
        "mov qword ptr [rdi + 8 * rax], rcx",
        "inc rax",
        "jmp 2b",
        ".hidden backtrail_guarded_end",
        ".globl backtrail_guarded_end",
        "backtrail_guarded_end:",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn copy_words(to: *mut u64, from: *const u64, count: usize) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "mov x3, x0",
        "mov x0, #0",
        "2:",
        "cmp x0, x2",
        "b.hs backtrail_guarded_end",
        ".hidden backtrail_guarded_load",
        ".globl backtrail_guarded_load",
        "backtrail_guarded_load:",
        "ldr x4, [x1, x0, lsl #3]",
        "str x4, [x3, x0, lsl #3]",
        "add x0, x0, #1",
        "b 2b",
        ".hidden backtrail_guarded_end",
        ".globl backtrail_guarded_end",
        "backtrail_guarded_end:",
        "ret",
        ".cfi_endproc",
    )
}
