//! What a handler may call. Each function begins with a few instructions that write its caller's registers down and hand them on.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use backtrail_cbf::{Encoder, End, Frame as CbfFrame, WordSize};
use backtrail_unwind::local::{Captured, position_of, return_addresses, walk};
use backtrail_unwind::{AddressKind, Stop};

use super::options::{self, CbfOptions};

/// A function that hands its arguments on, and the registers that its caller has when it returns ([`Captured`]) as one argument more, for
/// which the register is named.
macro_rules! with_callers_registers {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $inner:ident, $x86:literal, $arm:literal) => {
        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
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

        $(#[$doc])*
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
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
    /// `backtrace(3)`: the return addresses of the active calls, the caller's own first. Returns how many there are, at most `size`.
    ///
    /// # Safety
    /// `buffer` has room for `size` pointers.
    backtrail_backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int, backtrace, "rdx", "x2"
}

with_callers_registers! {
    /// Writes the stack as a compact backtrace into `out`, and returns how many bytes that are, or a negative error number. What has no room is
    /// left out at the outer end, and the backtrace then says that it is truncated.
    ///
    /// # Safety
    /// `out` has room for `size` bytes; `options` is null or points to a `struct backtrail_cbf_options` that tells its own size.
    backtrail_backtrace_cbf(out: *mut u8, size: usize, options: *const CbfOptions) -> isize, backtrace_cbf, "rcx", "x3"
}

unsafe extern "C" fn backtrace(buffer: *mut *mut c_void, size: c_int, caller: *const Captured) -> c_int {
    // SAFETY: as our caller promises.
    let Some(places) = (unsafe { places(buffer, size) }) else {
        return 0;
    };
    // SAFETY: the instructions above have written it.
    let caller = unsafe { &*caller };
    // As many as an int has counted.
    return_addresses(caller, places).len() as c_int
}

/// The caller's buffer as room for addresses; `None` where there is none.
///
/// # Safety
/// `buffer` has room for `size` pointers, and nothing else uses it.
unsafe fn places<'b>(buffer: *mut *mut c_void, size: c_int) -> Option<&'b mut [MaybeUninit<u64>]> {
    const { assert!(size_of::<*mut c_void>() == size_of::<u64>()) };
    let room = usize::try_from(size)
        .ok()
        .filter(|&room| room > 0 && !buffer.is_null())?;
    // SAFETY: a pointer and an address have the same size and alignment, and what is written are addresses.
    Some(unsafe { core::slice::from_raw_parts_mut(buffer.cast(), room) })
}

/// The stack of interrupted code: its program counter, and the return addresses behind it. Returns how many there are, at most `size`.
///
/// # Safety
/// `ucontext` is a signal handler's third argument; `buffer` has room for `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_backtrace_from_ucontext(
    ucontext: *const c_void,
    buffer: *mut *mut c_void,
    size: c_int,
) -> c_int {
    if ucontext.is_null() {
        return -libc::EINVAL;
    }
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

unsafe extern "C" fn backtrace_cbf(
    out: *mut u8,
    size: usize,
    given: *const CbfOptions,
    caller: *const Captured,
) -> isize {
    // SAFETY: as our caller promises.
    let options = match unsafe { options::read(given) } {
        Ok(options) => options,
        Err(error) => return -(error as isize),
    };
    if out.is_null() || isize::try_from(size).is_err() {
        return -(libc::EINVAL as isize);
    }
    let position = match options.ucontext.is_null() {
        // SAFETY: the instructions above have written it.
        true => unsafe { &*caller }.position(),
        // SAFETY: as our caller promises.
        false => unsafe { position_of(options.ucontext) },
    };
    // SAFETY: the caller gives us these bytes; the encoder only writes to what it has not written yet.
    let out = unsafe { core::slice::from_raw_parts_mut(out, size) };
    let Ok(mut encoder) = Encoder::new(out, WordSize::Bits64) else {
        return -(libc::ENOSPC as isize);
    };
    let mut is_full = false;
    let stop = walk(&position, usize::MAX, |frame| {
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
    encoder.finish(end) as isize
}
