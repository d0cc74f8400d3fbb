//! The backtrace for Rust.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backtrail_local::Backtrace;

/// Return addresses from glibc and from Backtrail, at the same depth.
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
    backtrail_local::init().unwrap();
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

    // At most as many as fit, also in handlers.
    assert_eq!(descend(500).1.addresses().len(), Backtrace::MOST);
    // SAFETY: the handler takes a signal number.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
    assert!(IN_HANDLER.load(Ordering::SeqCst) > 5);
}

/// Captures twice at this depth, and checks that both differ only in the two calls.
#[inline(never)]
fn same_from(depth: u32) -> bool {
    if depth > 0 {
        return black_box(same_from(black_box(depth) - 1));
    }
    let (first, second) = (Backtrace::capture(), Backtrace::capture());
    let (first, second) = (first.addresses(), second.addresses());
    first.len() > 2 && first.get(1..) == second.get(1..)
}

/// Publishes snapshots while threads walk, end and begin. Also run under ThreadSanitizer (`cargo
/// xtask sanitize`).
#[test]
fn threads_walk_while_modules_are_published() {
    const WALKERS: u32 = 3;
    /// Needed if an assertion fails, too: otherwise the walkers would never end.
    struct Done<'d>(&'d AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    backtrail_local::init().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..WALKERS {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut rounds = 0;
                while !is_done.load(Ordering::Acquire) || rounds < 10 {
                    // Some walk in threads of their own, whose state the next thread takes over.
                    let depth = (rounds + number) % 50;
                    assert!(same_from(depth));
                    assert!(std::thread::spawn(move || same_from(depth)).join().unwrap());
                    rounds += 1;
                }
            });
        }
        let _done = Done(&is_done);
        let expected = descend(30).1.addresses().len();
        let code = 0x10_0000 as *const u8;
        for _ in 0..100 {
            backtrail_local::register_code(code, 4096).unwrap();
            assert_eq!(descend(30).1.addresses().len(), expected);
            backtrail_local::withdraw_code(code).unwrap();
            backtrail_local::init().unwrap();
        }
    });
}
