//! Registers of this thread: those of a caller, or those of code that a signal interrupted.

use core::ffi::c_void;

use backtrail_arch::{Register, Registers};

use super::ARCH;
use crate::{AddressKind, MemoStep, Position};

/// DWARF numbers of the callee-saved registers, in the order of [`Captured`].
#[cfg(target_arch = "x86_64")]
const PRESERVED: [u8; 6] = [6, 3, 12, 13, 14, 15];
#[cfg(target_arch = "aarch64")]
const PRESERVED: [u8; 11] = [29, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28];

/// The registers of a function as they will be when its current call returns. The callee's first
/// instructions write them in this order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Captured {
    /// The return address.
    pub pc: u64,
    /// The stack pointer after the return.
    pub sp: u64,
    /// The callee-saved registers, the frame pointer first: rbp, rbx, r12 to r15, or x29, x19 to
    /// x28.
    pub preserved: [u64; PRESERVED.len()],
}

impl Captured {
    /// The frame at which a walk begins.
    #[inline(always)]
    pub(super) fn frame(&self) -> MemoStep {
        // Loaded one by one: a load of two words has to wait if they were just stored one at a
        // time.
        // SAFETY: each is a field.
        let word = |field: &u64| unsafe { core::ptr::from_ref(field).read_volatile() };
        MemoStep::returning(ARCH.strip(word(&self.pc)), word(&self.sp), word(&self.preserved[0]))
    }

    /// The position at which a walk begins.
    pub fn position(&self) -> Position {
        let arch = ARCH;
        let mut registers = Registers::new(arch.strip(self.pc));
        registers.set(arch.sp, self.sp);
        for (number, value) in PRESERVED.into_iter().zip(self.preserved) {
            registers.set(Register(number), value);
        }
        Position {
            registers,
            kind: AddressKind::Ra,
        }
    }
}

/// The offset of the kernel's signal frame from its `ucontext`, for the offsets in
/// [`backtrail_arch::SignalFrame`].
#[cfg(target_arch = "x86_64")]
const BEFORE_UCONTEXT: i64 = 0;
#[cfg(target_arch = "aarch64")]
const BEFORE_UCONTEXT: i64 = 128;

/// Where the interrupted code's program counter is.
///
/// # Safety
/// `ucontext` must point to a `ucontext_t`.
pub(super) unsafe fn counter_of(ucontext: *mut c_void) -> *mut u64 {
    // SAFETY: the offset is that of a field in the `ucontext_t` that the caller promises.
    unsafe {
        ucontext
            .byte_offset((ARCH.signal_frame.pc_offset - BEFORE_UCONTEXT) as isize)
            .cast()
    }
}

/// Changes what the interrupted system call returns.
///
/// # Safety
/// `ucontext` must be a signal handler's third argument, and the signal must have come from a
/// system call.
pub unsafe fn set_result(ucontext: *mut c_void, result: u64) {
    /// rax, or x0: both have this DWARF number.
    const RESULT: Register = Register(0);
    let offsets = ARCH.signal_frame.registers;
    if let Some(&(_, offset)) = offsets.iter().find(|(register, _)| *register == RESULT) {
        // SAFETY: the offset is that of a field in the `ucontext_t` that the caller promises.
        unsafe {
            ucontext
                .byte_offset((offset - BEFORE_UCONTEXT) as isize)
                .cast::<u64>()
                .write_unaligned(result);
        }
    }
}

/// The interrupted code, from the third argument of a signal handler.
///
/// # Safety
/// `ucontext` must point to a `ucontext_t`.
pub unsafe fn position_of(ucontext: *const c_void) -> Position {
    let frame = &ARCH.signal_frame;
    let read = |offset: i64| {
        // SAFETY: the offsets are those of 8-byte fields in the `ucontext_t` that the caller
        // promises.
        unsafe {
            ucontext
                .byte_offset((offset - BEFORE_UCONTEXT) as isize)
                .cast::<u64>()
                .read_unaligned()
        }
    };
    let mut registers = Registers::new(read(frame.pc_offset));
    for &(register, offset) in frame.registers {
        registers.set(register, read(offset));
    }
    Position::interrupted(registers)
}
