//! The ring of the calling thread.
//!
//! A thread finds it by a pointer in initial-exec thread-local storage, which exists from the
//! thread's start, also in a handler and in a library that was loaded later. The first event of a
//! thread takes a ring that nobody owns, or that of a thread that has ended.

use core::sync::atomic::Ordering;

use crate::ring::Ring;
use crate::session::Session;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri),
    not(feature = "portable")
))]
mod storage {
    use core::arch::{asm, global_asm};

    use crate::ring::Ring;

    // Stable Rust cannot select a model of thread-local storage.
    global_asm!(
        ".pushsection .tbss.backtrail_tracer_ring,\"awT\",@nobits",
        ".p2align 3",
        ".hidden backtrail_tracer_ring",
        ".globl backtrail_tracer_ring",
        ".type backtrail_tracer_ring, @object",
        ".size backtrail_tracer_ring, 8",
        "backtrail_tracer_ring:",
        ".zero 8",
        ".popsection",
    );

    #[inline]
    pub(super) fn get() -> *const Ring {
        #[cfg(target_arch = "x86_64")]
        {
            let ring: *const Ring;
            // SAFETY: the global offset table has the variable's offset from the thread pointer,
            // and the variable is this thread's.
            unsafe {
                asm!("mov {0}, qword ptr [rip + backtrail_tracer_ring@GOTTPOFF]", "mov {0}, qword ptr fs:[{0}]",
                     out(reg) ring, options(nostack, readonly, preserves_flags));
            }
            ring
        }
        #[cfg(target_arch = "aarch64")]
        {
            let ring: *const Ring;
            // SAFETY: as above.
            unsafe {
                asm!("adrp {0}, :gottprel:backtrail_tracer_ring", "ldr {0}, [{0}, :gottprel_lo12:backtrail_tracer_ring]",
                     "mrs {1}, tpidr_el0", "ldr {0}, [{0}, {1}]",
                     out(reg) ring, out(reg) _, options(nostack, readonly, preserves_flags));
            }
            ring
        }
    }

    pub(super) fn set(ring: *const Ring) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the variable is this thread's, one word, which an interrupting handler sees
        // whole.
        unsafe {
            asm!("mov {0}, qword ptr [rip + backtrail_tracer_ring@GOTTPOFF]", "mov qword ptr fs:[{0}], {1}",
                 out(reg) _, in(reg) ring, options(nostack, preserves_flags));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!("adrp {0}, :gottprel:backtrail_tracer_ring", "ldr {0}, [{0}, :gottprel_lo12:backtrail_tracer_ring]",
                 "mrs {1}, tpidr_el0", "str {2}, [{0}, {1}]",
                 out(reg) _, out(reg) _, in(reg) ring, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri),
    not(feature = "portable")
)))]
mod storage {
    use core::cell::Cell;

    use crate::ring::Ring;

    thread_local!(static RING: Cell<*const Ring> = const { Cell::new(core::ptr::null()) });

    #[inline]
    pub(super) fn get() -> *const Ring {
        RING.get()
    }

    pub(super) fn set(ring: *const Ring) {
        RING.set(ring);
    }
}

/// A ring of the calling thread that is not busy; `None` if no session was started or all rings
/// have living owners.
#[inline]
pub(crate) fn ring() -> Option<&'static Ring> {
    // SAFETY: null or a ring of the session, which is never freed.
    match unsafe { storage::get().as_ref() } {
        Some(ring) if !ring.is_busy() => Some(ring),
        first => other(first),
    }
}

/// The first event of a thread, or of a handler that has interrupted the recording of one.
#[cold]
#[inline(never)]
fn other(first: Option<&'static Ring>) -> Option<&'static Ring> {
    let Some(mut ring) = first else {
        let ring = claim()?;
        storage::set(ring);
        return Some(ring);
    };
    while ring.is_busy() {
        // SAFETY: null or a ring of the session, which is never freed.
        ring = match unsafe { ring.next.load(Ordering::Relaxed).as_ref() } {
            Some(next) => next,
            None => {
                let next = claim()?;
                ring.next.store(core::ptr::from_ref(next).cast_mut(), Ordering::Relaxed);
                next
            }
        };
    }
    Some(ring)
}

/// Takes a ring for the calling thread.
fn claim() -> Option<&'static Ring> {
    // SAFETY: the address of this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let ring = claim_ring();
    // SAFETY: as above.
    unsafe { *errno = before };
    ring
}

fn claim_ring() -> Option<&'static Ring> {
    let session = Session::get()?;
    let tid = gettid();
    let passes: [fn(u64) -> bool; 2] = [|owner| owner == 0, |owner| owner != 0 && has_ended(owner)];
    // Each time from another one on: threads that come and go must not fill one ring while the
    // others are empty, nor overwrite its newest events while the others keep old ones.
    let (before, after) = session.rings.split_at_checked(session.next_ring())?;
    let rings = || after.iter().chain(before);
    let found = passes.iter().find_map(|may_take| {
        rings().find(|ring| {
            let owner = ring.owner.load(Ordering::Acquire);
            // One of an ended thread with this number is like one without an owner.
            may_take(owner) && take(ring, owner, tid)
        })
    });
    if found.is_none() {
        // No ring is this thread's, so another one's count has it.
        session.rings.first()?.discard_event();
    }
    found
}

/// Takes this ring, unless another thread has, or its last packet is another thread's and there is
/// no room for the next one.
fn take(ring: &Ring, owner: u64, tid: u32) -> bool {
    let taken = ring
        .owner
        .compare_exchange(owner, tid.into(), Ordering::AcqRel, Ordering::Relaxed);
    if taken.is_err() {
        return false;
    }
    let has_room = ring.begin(|| describe(ring, tid));
    if !has_room {
        ring.owner.store(0, Ordering::Release);
    }
    has_room
}

/// Stores what contexts say of the thread.
fn describe(ring: &Ring, tid: u32) {
    ring.tid.store(tid, Ordering::Relaxed);
    let mut comm = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, comm.as_mut_ptr()) };
    for (place, chunk) in ring.comm.iter().zip(comm.as_chunks().0) {
        place.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
}

/// After a fork: the only thread of the child keeps its rings, in the child's own file.
pub(crate) fn after_fork() {
    let tid = gettid();
    // SAFETY: null or a ring of the session, which is never freed.
    let mut ring = unsafe { storage::get().as_ref() };
    while let Some(of_thread) = ring {
        of_thread.owner.store(tid.into(), Ordering::Relaxed);
        // A busy one's writer, which the handler that forks has interrupted, starts again.
        describe(of_thread, tid);
        // SAFETY: as above.
        ring = unsafe { of_thread.next.load(Ordering::Relaxed).as_ref() };
    }
}

fn gettid() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

fn has_ended(tid: u64) -> bool {
    // SAFETY: signal 0 is not sent; the call only looks for the thread.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid as libc::c_long, 0) };
    // SAFETY: the address of this thread's errno.
    sent != 0 && unsafe { *libc::__errno_location() } == libc::ESRCH
}
