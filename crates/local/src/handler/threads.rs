//! The stacks of the other threads in a crash report: each thread is asked by a signal to write its
//! own, one after the other, while the thread that crashed waits for it, but not for long.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{stack, system};

/// The signal that asks: one whose handler is ours anyway. What else sends it carries no such
/// value.
pub(crate) const SIGNAL: c_int = libc::SIGSYS;
const VALUE: usize = 0x6261_636b;
/// How long a thread may take to begin, in milliseconds: it may have blocked the signal, or wait in
/// the kernel for a disk.
const BEGIN: u64 = 50;
/// The most threads that are asked.
const MOST: usize = 512;

const ASKED: u64 = 1;
const WRITES: u64 = 2;
const DONE: u64 = 3;

/// The thread that is asked, and how far it is.
static TURN: AtomicU64 = AtomicU64::new(0);
/// Whether threads that have answered may go on.
static RELEASED: AtomicBool = AtomicBool::new(false);

fn turn(thread: u32, state: u64) -> u64 {
    u64::from(thread) << 2 | state
}

/// Asks each other thread of this process, at most until `end`. `begin` gets each thread before,
/// and `missing` those that have not answered. Returns whether all threads were asked.
pub(crate) fn ask_all(own: u32, end: u64, mut begin: impl FnMut(u32), mut missing: impl FnMut(u32)) -> bool {
    let mut count = 0;
    let listed = system::each_thread(own, |thread| {
        if thread == own {
            return true;
        }
        count += 1;
        if count > MOST || system::now() >= end {
            return false;
        }
        begin(thread);
        if !ask(thread, end) {
            missing(thread);
        }
        true
    });
    listed && count <= MOST
}

/// Whether a thread has written its stack.
fn ask(thread: u32, end: u64) -> bool {
    TURN.store(turn(thread, ASKED), Ordering::Release);
    if !system::send_value(thread, SIGNAL, VALUE) {
        return false;
    }
    let begin = system::now().saturating_add(BEGIN).min(end);
    while TURN.load(Ordering::Acquire) != turn(thread, DONE) {
        let now = system::now();
        if now >= begin {
            let (asked, nobody) = (turn(thread, ASKED), 0);
            let unasked = TURN.compare_exchange(asked, nobody, Ordering::AcqRel, Ordering::Acquire);
            // A thread that writes is waited for; it can write no longer than the reporter.
            if unasked.is_ok() || now >= end {
                return false;
            }
        }
        system::sleep(1);
    }
    true
}

/// Whether a signal asks its thread for its stack.
///
/// # Safety
/// `info` is what the kernel gave the handler.
pub(crate) unsafe fn is_request(signal: c_int, info: *const libc::siginfo_t) -> bool {
    if signal != SIGNAL {
        return false;
    }
    // SAFETY: as our caller promises; a signal that was queued has a value.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr.addr()) };
    code == libc::SI_QUEUE && value == VALUE
}

/// Lets the current thread write its stack if it is its turn, and then keeps it from going on until
/// the process is dead: what it waited for has ended early because of the signal.
pub(crate) fn answer(thread: u32, longest: u64, mut write: impl FnMut()) {
    let (asked, writes) = (turn(thread, ASKED), turn(thread, WRITES));
    let claimed = TURN.compare_exchange(asked, writes, Ordering::AcqRel, Ordering::Acquire);
    if claimed.is_ok() {
        // SAFETY: a thread uses it only in its turn.
        unsafe { stack::OTHER.run(&mut write) };
        finish(thread);
    }
    wait(longest);
}

/// Whether this thread is writing its stack. If so, it has finished.
pub(crate) fn finish(thread: u32) -> bool {
    let (writes, done) = (turn(thread, WRITES), turn(thread, DONE));
    TURN.compare_exchange(writes, done, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Waits until the process is dead or may survive.
pub(crate) fn wait(longest: u64) {
    let end = system::now().saturating_add(longest);
    while !RELEASED.load(Ordering::Acquire) && system::now() < end {
        system::sleep(10);
    }
}

/// Lets the threads go on: the process may survive.
pub(crate) fn release() {
    RELEASED.store(true, Ordering::Release);
}
