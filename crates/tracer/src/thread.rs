//! The ring of the calling thread.
//!
//! A thread finds it by a pointer in initial-exec thread-local storage, which exists from the thread's
//! start, also in a handler and in a library that was loaded later. The first event of a thread takes
//! a ring that nobody owns, or that of a thread that has ended.

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
            // SAFETY: the global offset table has the variable's offset from the thread pointer, and
            // the variable is this thread's.
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
        // SAFETY: the variable is this thread's, one word, which an interrupting handler sees whole.
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

/// The calling thread's ring; `None` if no session was started or all rings have living owners.
#[inline]
pub(crate) fn ring() -> Option<&'static Ring> {
    // SAFETY: null or a ring of the session, which is never freed.
    match unsafe { storage::get().as_ref() } {
        Some(ring) => Some(ring),
        None => claim(),
    }
}

/// Takes a ring for the calling thread.
#[cold]
#[inline(never)]
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
    // A handler that interrupts this may take a ring too; then this takes the same one again.
    let is_mine = |owner: u64| owner == u64::from(tid);
    let mut passes: [fn(u64) -> bool; 2] = [|owner| owner == 0, |owner| owner != 0 && has_ended(owner)];
    let mine = session
        .rings
        .iter()
        .find(|ring| is_mine(ring.owner.load(Ordering::Acquire)));
    let found = mine.or_else(|| {
        passes.iter_mut().find_map(|may_take| {
            session.rings.iter().find(|ring| {
                let owner = ring.owner.load(Ordering::Acquire);
                may_take(owner)
                    && ring
                        .owner
                        .compare_exchange(owner, tid.into(), Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            })
        })
    });
    let Some(ring) = found else {
        // No ring is this thread's, so another one's count has it.
        session.rings.first()?.discard_event();
        return None;
    };
    if !begin(ring, tid) {
        // Its last packet is another thread's, and there is no room for the next one.
        ring.discard_event();
        ring.owner.store(0, Ordering::Release);
        return None;
    }
    storage::set(ring);
    Some(ring)
}

/// Prepares a ring for its new owner; false if it is full.
fn begin(ring: &Ring, tid: u32) -> bool {
    ring.tid.store(tid, Ordering::Relaxed);
    let mut comm = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, comm.as_mut_ptr()) };
    for (place, chunk) in ring.comm.iter().zip(comm.as_chunks().0) {
        place.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    ring.start_packet()
}

/// After a fork: the only thread of the child keeps its ring, in the child's own file.
pub(crate) fn after_fork() {
    // SAFETY: as in `ring`.
    if let Some(ring) = unsafe { storage::get().as_ref() } {
        let tid = gettid();
        ring.owner.store(tid.into(), Ordering::Relaxed);
        begin(ring, tid);
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
