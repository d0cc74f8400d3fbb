//! The backtrace for Rust.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use backtrail::Backtrace;

/// Of the addresses by glibc, and by ours, from the same depth.
#[inline(never)]
fn descend(depth: u32) -> (Vec<u64>, Backtrace) {
    if depth > 0 {
        return black_box(descend(black_box(depth) - 1));
    }
    let mut theirs = vec![std::ptr::null_mut(); 200];
    // SAFETY: the buffer has this room.
    let count = unsafe { libc::backtrace(theirs.as_mut_ptr(), 200) };
    let ours = Backtrace::capture();
    let theirs = theirs[..count as usize]
        .iter()
        .map(|address| address.addr() as u64)
        .collect();
    (theirs, ours)
}

static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_signal: libc::c_int) {
    IN_HANDLER.store(Backtrace::capture().addresses().len(), Ordering::SeqCst);
}

#[test]
fn the_frames_are_glibcs() {
    backtrail::init().unwrap();
    let (theirs, ours) = descend(20);
    assert!(ours.addresses().len() > 25, "{ours}");
    // Both were taken from the innermost function, a few instructions from each other.
    assert_eq!(theirs[1..ours.addresses().len()], ours.addresses()[1..], "{ours}");
    let text = ours.to_string();
    assert_eq!(text.lines().count(), ours.addresses().len());
    let exe = std::env::current_exe().unwrap();
    let first = text.lines().next().unwrap();
    assert!(first.starts_with(&format!("{}(+0x", exe.display())), "{first}");
    assert!(first.ends_with(&format!("[{:#x}]", ours.addresses()[0])), "{first}");

    // No more than there is room for, and from handlers.
    assert_eq!(descend(500).1.addresses().len(), Backtrace::MOST);
    // SAFETY: the handler takes a signal number.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
    assert!(IN_HANDLER.load(Ordering::SeqCst) > 5);
}
