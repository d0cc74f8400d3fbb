//! Stacks for reports: a thread's own alternate stack may be as small as the kernel's frame.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use super::system;

/// Stack space that a report needs, with those of the kernel's frames that interrupt it.
pub(crate) const BYTES: usize = 128 << 10;

/// Where a stack begins and ends; 0 before it is set.
pub(crate) struct Stack {
    start: AtomicU64,
    end: AtomicU64,
}

/// For the thread that crashed.
pub(crate) static REPORTER: Stack = Stack::none();
/// For the thread whose turn it is to write its stack.
pub(crate) static OTHER: Stack = Stack::none();

impl Stack {
    const fn none() -> Stack {
        Stack {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    /// Whether there is memory for it already.
    pub(crate) fn is_set(&self) -> bool {
        self.end.load(Ordering::Acquire) != 0
    }

    /// Sets the memory, which lives for ever.
    pub(crate) fn set(&self, start: u64, end: u64) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end & !15, Ordering::Release);
    }

    /// Calls `act` on this stack, or on the current one if the kernel does not let a thread change
    /// its alternate stack: then its next frame would be where the last one is. Only for signal
    /// handlers, whose end undoes the change.
    ///
    /// # Safety
    /// No other thread is using the stack.
    pub(crate) unsafe fn run<F: FnMut()>(&self, act: &mut F) {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Acquire));
        let mut call = Call {
            act: core::ptr::from_mut(act),
            range: (start, end),
            before: None,
        };
        if end != 0 {
            // SAFETY: the stack is ours, as our caller promises; `step` gets what is made for it.
            unsafe { on_stack((&raw mut call).cast(), step::<F>, end) };
        }
        match call.before {
            Some(before) => drop(system::set_signal_stack(before)),
            None => act(),
        }
    }
}

struct Call<F> {
    act: *mut F,
    range: (u64, u64),
    /// The thread's own alternate stack, if this one has taken its place.
    before: Option<[u64; 3]>,
}

extern "C" fn step<F: FnMut()>(call: *mut c_void) {
    // SAFETY: from `Stack::run`, which waits.
    let call = unsafe { &mut *call.cast::<Call<F>>() };
    let (start, end) = call.range;
    call.before = system::set_signal_stack([start, 0, end.saturating_sub(start)]);
    if call.before.is_some() {
        // SAFETY: as above.
        unsafe { (*call.act)() };
    }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn on_stack(argument: *mut c_void, function: extern "C" fn(*mut c_void), end: u64) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "call rsi",
        "mov rsp, rbp",
        ".cfi_def_cfa_register rsp",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn on_stack(argument: *mut c_void, function: extern "C" fn(*mut c_void), end: u64) {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov sp, x2",
        "blr x1",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    )
}
