//! Walks that start where a function was called. The function begins with a few instructions that
//! save its caller's registers.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use backtrail_cbf::{Encoder, End, Frame as CbfFrame, WordSize};
use backtrail_unwind::local::{position_of, return_addresses, walk};
use backtrail_unwind::{AddressKind, Position, Stop};

pub use backtrail_unwind::local::Captured;

/// Defines a function that passes on its arguments, followed by the registers that its caller will
/// have when it returns ([`Captured`]), in the argument registers named at the end.
#[macro_export]
macro_rules! with_callers_registers {
    ($(#[$attribute:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $inner:ident, $x86:literal, $arm:literal) => {
        $(#[$attribute])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 72",
                ".cfi_adjust_cfa_offset 72",
                "mov rax, [rsp + 72]",
                "mov [rsp], rax",
                "lea rax, [rsp + 80]",
                "mov [rsp + 8], rax",
                "mov [rsp + 16], rbp",
                "mov [rsp + 24], rbx",
                "mov [rsp + 32], r12",
                "mov [rsp + 40], r13",
                "mov [rsp + 48], r14",
                "mov [rsp + 56], r15",
                concat!("mov ", $x86, ", rsp"),
                "call {inner}",
                "add rsp, 72",
                ".cfi_adjust_cfa_offset -72",
                "ret",
                ".cfi_endproc",
                inner = sym $inner,
            )
        }

        $(#[$attribute])*
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-128]!",
                ".cfi_def_cfa_offset 128",
                ".cfi_offset x29, -128",
                ".cfi_offset x30, -120",
                "str x30, [sp, #16]",
                "add x9, sp, #128",
                "str x9, [sp, #24]",
                "str x29, [sp, #32]",
                "stp x19, x20, [sp, #40]",
                "stp x21, x22, [sp, #56]",
                "stp x23, x24, [sp, #72]",
                "stp x25, x26, [sp, #88]",
                "stp x27, x28, [sp, #104]",
                concat!("add ", $arm, ", sp, #16"),
                "bl {inner}",
                "ldp x29, x30, [sp], #128",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                inner = sym $inner,
            )
        }
    };
}

with_callers_registers! {
    /// As `backtrace(3)`.
    ///
    /// # Safety
    /// `buffer` has room for `size` pointers.
    own_return_addresses(buffer: *mut *mut c_void, size: c_int) -> c_int, write_return_addresses, "rdx", "x2"
}

/// Writes the return addresses of a caller's stack, and returns their number, at most `size`.
///
/// # Safety
/// `buffer` has room for `size` pointers; `caller` was saved by
/// [`with_callers_registers`].
pub unsafe extern "C" fn write_return_addresses(
    buffer: *mut *mut c_void,
    size: c_int,
    caller: *const Captured,
) -> c_int {
    // SAFETY: as our caller promises.
    let Some(places) = (unsafe { places(buffer, size) }) else {
        return 0;
    };
    // SAFETY: as our caller promises.
    let caller = unsafe { &*caller };
    // No more than an int has counted.
    return_addresses(caller, places).len() as c_int
}

/// The caller's buffer as room for addresses; `None` if it has none.
///
/// # Safety
/// `buffer` has room for `size` pointers, and nothing else uses it.
unsafe fn places<'b>(buffer: *mut *mut c_void, size: c_int) -> Option<&'b mut [MaybeUninit<u64>]> {
    const { assert!(size_of::<*mut c_void>() == size_of::<u64>()) };
    let room = usize::try_from(size)
        .ok()
        .filter(|&room| room > 0 && !buffer.is_null())?;
    // SAFETY: a pointer and an address have the same size and alignment, and what is written are
    // addresses.
    Some(unsafe { core::slice::from_raw_parts_mut(buffer.cast(), room) })
}

/// Writes the program counter of interrupted code and its return addresses, and returns their
/// number, at most `size`.
///
/// # Safety
/// `ucontext` is a signal handler's third argument; `buffer` has room for `size` pointers.
pub unsafe fn write_interrupted(ucontext: *const c_void, buffer: *mut *mut c_void, size: c_int) -> c_int {
    // SAFETY: as our caller promises.
    let Some(places) = (unsafe { places(buffer, size) }) else {
        return 0;
    };
    // SAFETY: as our caller promises.
    let position = unsafe { position_of(ucontext) };
    let mut used = 0;
    walk(&position, places.len(), |frame| {
        if let Some(place) = places.get_mut(used) {
            place.write(frame.address);
            used += 1;
        }
    });
    used as c_int
}

/// Where a walk starts.
///
/// # Safety
/// `ucontext` is null or a signal handler's third argument; `caller` was saved by
/// [`with_callers_registers`].
pub unsafe fn start(ucontext: *const c_void, caller: *const Captured) -> Position {
    match ucontext.is_null() {
        // SAFETY: as our caller promises.
        true => unsafe { &*caller }.position(),
        // SAFETY: as our caller promises.
        false => unsafe { position_of(ucontext) },
    }
}

/// Encodes the stack from a position outwards, without its first `own` frames, as a compact
/// backtrace and returns its length; `None` if `out` is too small for any. If not all frames fit,
/// the outermost are left out and the backtrace is marked as truncated.
pub fn encode(position: &Position, mut own: usize, out: &mut [u8]) -> Option<usize> {
    let mut encoder = Encoder::new(out, WordSize::Bits64).ok()?;
    let mut is_full = false;
    let stop = walk(position, usize::MAX, |frame| {
        if own > 0 {
            own -= 1;
            return;
        }
        let frame = match frame.kind {
            AddressKind::Pc => CbfFrame::Pc(frame.address),
            AddressKind::Ra => CbfFrame::Ra(frame.address),
        };
        is_full = is_full || encoder.push(frame).is_err();
    });
    let end = match stop {
        Stop::EndOfStack if !is_full => End::Complete,
        _ => End::Truncated,
    };
    Some(encoder.finish(end))
}
