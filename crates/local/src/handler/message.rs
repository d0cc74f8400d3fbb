//! What a program has said about its end: why it called `abort`.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use backtrail_unwind::local::read_words;

use super::line::Line;

/// The most bytes of a message.
const LONGEST: usize = 1024;

static MESSAGE: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Where the C library stores the message of a failed assertion; 0 if it does not.
static ABORT_MESSAGE: AtomicU64 = AtomicU64::new(0);

/// Sets the message of the report that follows.
pub(crate) fn set(message: &[u8]) {
    LENGTH.store(0, Ordering::Release);
    for (place, byte) in MESSAGE.iter().zip(message) {
        place.store(*byte, Ordering::Relaxed);
    }
    LENGTH.store(message.len().min(LONGEST), Ordering::Release);
}

/// Sets the address of the C library's `__abort_msg`.
pub(crate) fn read_from(address: u64) {
    ABORT_MESSAGE.store(address, Ordering::Release);
}

/// Whether there is a message that was set.
pub(crate) fn is_set() -> bool {
    LENGTH.load(Ordering::Acquire) != 0
}

/// Appends the message that was set, as one line.
pub(crate) fn push(line: &mut Line) {
    for byte in MESSAGE.iter().take(LENGTH.load(Ordering::Acquire)) {
        push_byte(line, byte.load(Ordering::Relaxed));
    }
}

/// Calls `show` with the C library's message, if it has one.
pub(crate) fn of_library(mut show: impl FnMut(&dyn Fn(&mut Line))) {
    let place = ABORT_MESSAGE.load(Ordering::Acquire);
    let mut pointer = [0];
    if place == 0 || read_words(place, &mut pointer) != 1 || pointer == [0] {
        return;
    }
    // struct abort_msg_s: a size of 32 bits, and text that ends with a 0.
    let mut words = [0u64; LONGEST / 8];
    let count = read_words(pointer[0], &mut words);
    show(&|line| {
        let read = words.iter().take(count).flat_map(|word| word.to_ne_bytes());
        for byte in read.skip(4).take_while(|byte| *byte != 0) {
            push_byte(line, byte);
        }
    });
}

fn push_byte(line: &mut Line, byte: u8) {
    line.push(&[if byte.is_ascii_control() { b' ' } else { byte }]);
}
