//! What a signal handler was called with. A program that has replaced a handler may call it as a
//! function that gets only the signal's number.

use core::ffi::{c_int, c_void};

use backtrail_unwind::local::read_words;

/// Words of the kernel's `ucontext_t`, and where its frame of a signal has `siginfo_t`, relative to
/// that.
#[cfg(target_arch = "x86_64")]
const UCONTEXT: (usize, usize) = (38, 304);
#[cfg(target_arch = "aarch64")]
const UCONTEXT: (usize, usize) = (57, 128usize.wrapping_neg());

/// `siginfo_t` of a signal about which nothing is known.
struct Unknown([u64; 16]);

static UNKNOWN: Unknown = Unknown([0; 16]);

/// The handler's second and third argument; without them, an empty `siginfo_t` and null.
///
/// # Safety
/// If they are the kernel's, they are as it has passed them.
pub(crate) unsafe fn arguments(
    signal: c_int,
    info: *const libc::siginfo_t,
    ucontext: *mut c_void,
) -> (*const libc::siginfo_t, *mut c_void) {
    let (words, distance) = UCONTEXT;
    let is_kernels = ucontext.addr().wrapping_add(distance) == info.addr();
    // The kernel's own are not read here, because a filter of system calls may forbid it.
    if is_kernels || is_copy(signal, info, ucontext, words) {
        return (info, ucontext);
    }
    let unknown = &raw const UNKNOWN.0;
    (unknown.cast(), core::ptr::null_mut())
}

/// Whether both can be read, and the first describes the signal. Apart, since a small alternate
/// stack has no room for the copies, which the kernel's arguments do without.
#[cold]
#[inline(never)]
fn is_copy(signal: c_int, info: *const libc::siginfo_t, ucontext: *mut c_void, words: usize) -> bool {
    const MOST: usize = 64;
    let (mut begin, mut context) = ([0; size_of::<libc::siginfo_t>() / 8], [0; MOST]);
    let context = context.get_mut(..words).unwrap_or_default();
    read_words(info.expose_provenance() as u64, &mut begin) == begin.len()
        && begin[0] as c_int == signal
        && read_words(ucontext.expose_provenance() as u64, context) == words
}
