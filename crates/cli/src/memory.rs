//! Running out of memory: one line and an exit status, instead of an abort.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, whose failure ends the program.
///
/// No caller could continue: collections abort, and what tries to reserve memory first does so for
/// files that need it. What was written before stays; nothing is flushed, since that takes memory.
struct EndingAllocator;

#[global_allocator]
static ALLOCATOR: EndingAllocator = EndingAllocator;

// SAFETY: every call goes to the system's allocator with the caller's arguments; a null result is
// never passed on.
unsafe impl GlobalAlloc for EndingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as our caller promises.
        checked(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// Ends the program in the same way if Rust's run-time system lacks memory for a thread that has
/// started: it panics then, before the thread does anything.
pub(crate) fn end_without_threads() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if panic.location().is_some_and(|at| starts_threads(at.file())) {
            end();
        }
        report(panic);
    }));
}

/// Whether this source file is the one that makes alternate stacks for new threads.
fn starts_threads(file: &str) -> bool {
    file.ends_with("std/src/sys/pal/unix/stack_overflow.rs")
}

#[inline]
fn checked(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        end();
    }
    memory
}

#[cold]
fn end() -> ! {
    const LINE: &[u8] =
        b"backtrail: out of memory\nhelp: raise the limit of memory (ulimit -v), or end other programs\n";
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let is_first = !IS_SAID.swap(true, Ordering::Relaxed);
    // SAFETY: it writes a constant, or waits, and ends the process without running anything else of
    // it.
    unsafe {
        match is_first {
            true => drop(libc::write(2, LINE.as_ptr().cast(), LINE.len())),
            // Another thread says it and ends the process, unless this one is a child without it.
            false => drop(libc::sleep(1)),
        }
        libc::_exit(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_starting_threads_are_lack_of_memory() {
        let of_std = |file: &str| format!("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/{file}");
        assert!(starts_threads(&of_std("sys/pal/unix/stack_overflow.rs")));
        assert!(!starts_threads(&of_std("thread/mod.rs")) && !starts_threads(file!()));
    }
}
