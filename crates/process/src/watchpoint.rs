//! Words of a thread's stack that are watched by a debug register of the CPU.
//!
//! On every write to the word, the kernel copies the stack from the stack pointer on, at that
//! moment: after a call has pushed its return address to the watched word, the copy contains every
//! frame outside it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use backtrail_arch::Arch;
use backtrail_wire::{Bytes, Endian};

use crate::perf::monotonic_ns;
use crate::sys::{self, Ring};

/// Bytes of a watchpoint's ring. If it may not be locked into memory, nothing is known after the
/// first write.
const RING_BYTES: usize = 512 << 10;
/// Writes that the thread stops for before it must be asked again, so that a thread that writes
/// there all the time is not slowed down.
const WRITES: u64 = 32;
/// Whether a thread stops after the write. On AArch64 it stops before, so that a copy of its stack
/// has the old word: there nothing is known after the first write.
const COPIES_WRITES: bool = cfg!(target_arch = "x86_64");
/// The shortest time between two requests for [`WRITES`] more, in nanoseconds.
const PAUSE: u64 = 8_000_000;

/// Reports when a thread has written to a word, and what its stack was at that moment.
#[derive(Debug)]
pub struct Watchpoint {
    event: File,
    ring: Option<Ring>,
    scratch: Vec<u8>,
    /// Writes reported so far, and the count after which the event ends.
    seen: u64,
    granted: u64,
    granted_at: u64,
}

/// A write to the watched word.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// When it was, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The stack from there on.
    pub stack: &'a [u8],
}

impl Watchpoint {
    /// Watches the word at `address` of thread `tid` from now on. Each write brings up to
    /// `stack_bytes` bytes of the stack, a multiple of 8 below 64 KiB; with 0, only the fact of a
    /// write is known.
    ///
    /// # Errors
    /// If `address` is not that of a word, the CPU has no debug register left, or the thread may
    /// not be watched.
    pub fn new(tid: u32, address: u64, stack_bytes: u32) -> io::Result<Watchpoint> {
        let open = |bytes| sys::open_watchpoint(tid as i32, address, stack_pointer_mask(), bytes);
        let mut event = open(stack_bytes)?;
        let ring = match stack_bytes {
            0 => None,
            _ if !COPIES_WRITES => None,
            _ => event.try_clone().and_then(map_ring).ok(),
        };
        if ring.is_none() && stack_bytes != 0 {
            drop(event);
            event = open(0)?;
        }
        let granted = if ring.is_some() { WRITES } else { 1 };
        sys::enable_for(&event, granted)?;
        Ok(Watchpoint {
            event: event.into(),
            ring,
            scratch: Vec::new(),
            seen: 0,
            granted,
            granted_at: monotonic_ns(),
        })
    }

    /// Passes the writes up to `time` that were not reported yet to `visit`. Returns the time until
    /// which there was no other write; `None` if that can no longer be known.
    pub fn follow(&mut self, time: u64, mut visit: impl FnMut(Write<'_>)) -> Option<u64> {
        let now = monotonic_ns();
        // Counted first: later writes are additional.
        let count = self.count()?;
        if count == self.seen {
            return Some(now);
        }
        if count >= self.granted {
            return None;
        }
        let ring = self.ring.as_mut()?;
        ring.refresh();
        while let Some(record) = ring.record(&mut self.scratch) {
            let size = record.len();
            let write = decode(record)?;
            if write.time > time {
                return Some(write.time.min(now));
            }
            visit(write);
            self.seen += 1;
            ring.consume(size);
            ring.give_back();
        }
        (self.seen >= count).then_some(now)
    }

    /// Lets the thread stop for more writes, if they are wanted and most of the earlier ones are
    /// used up. Returns whether all writes are still seen.
    pub fn go_on(&mut self) -> bool {
        let now = monotonic_ns();
        if self.ring.is_none() || self.seen + WRITES / 2 < self.granted || now < self.granted_at.saturating_add(PAUSE) {
            return true;
        }
        let before = self.granted;
        self.granted_at = now;
        self.granted = self.seen + WRITES;
        let asked = sys::enable_for(&self.event, self.granted - before);
        // If the event had ended before the request, writes may be missing.
        asked.is_ok() && self.count().is_some_and(|count| count < before)
    }

    fn count(&self) -> Option<u64> {
        let mut count = [0; 8];
        (&self.event).read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}

fn stack_pointer_mask() -> u64 {
    let arch = Arch::native();
    let mut general = arch.perf.general.iter();
    general
        .find(|(_, register)| *register == arch.sp)
        .map_or(0, |(bit, _)| 1 << bit)
}

fn map_ring(event: OwnedFd) -> io::Result<Ring> {
    Ring::map(event, RING_BYTES / rustix::param::page_size())
}

/// Decodes a record of the kernel: its header, the time, the stack pointer, and the copy. `None`
/// for other kinds of records, such as one that says that records were lost.
fn decode(record: &[u8]) -> Option<Write<'_>> {
    const SAMPLE: u32 = 9;
    const HEADER: usize = 8;
    const REGS_ABI_64: u64 = 2;
    let bytes = Bytes::new(record, Endian::NATIVE);
    if bytes.u32(0).ok()? != SAMPLE {
        return None;
    }
    let mut cursor = bytes.cursor(HEADER);
    let time = cursor.u64().ok()?;
    if cursor.u64().ok()? != REGS_ABI_64 {
        return None;
    }
    let sp = cursor.u64().ok()?;
    let size = cursor.u64().ok()? as usize;
    let stack = cursor.slice(size).ok()?;
    let valid = if size == 0 { 0 } else { cursor.u64().ok()? as usize };
    let stack = stack.get(..valid)?;
    Some(Write { time, sp, stack })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn own(word: &AtomicU64, bytes: u32) -> Option<Watchpoint> {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let watch = Watchpoint::new(tid, word.as_ptr().addr() as u64, bytes);
        // Some machines have no debug registers available, and some containers no events.
        if watch.is_err() {
            println!("SKIPPED: no hardware watchpoint is to be had here");
        }
        watch.ok()
    }

    #[test]
    fn each_write_brings_the_stack_of_its_moment() {
        let words = [const { AtomicU64::new(0) }; 4];
        let Some(mut watch) = own(&words[2], 4096) else { return };
        if watch.ring.is_none() {
            println!("SKIPPED: no ring may be mapped");
            return;
        }
        let none = watch.follow(monotonic_ns(), |_| panic!("nobody has written"));
        assert!(none.is_some());
        words[1].store(7, Ordering::SeqCst);
        words[2].store(8, Ordering::SeqCst);
        let between = monotonic_ns();
        words[2].store(9, Ordering::SeqCst);
        let address = words[2].as_ptr().addr() as u64;
        let word_in = |write: &Write<'_>| {
            let offset = (address - write.sp) as usize;
            u64::from_ne_bytes(write.stack[offset..offset + 8].try_into().unwrap())
        };
        let mut seen = Vec::new();
        let until = watch.follow(between, |write| seen.push(word_in(&write)));
        assert_eq!(seen, [8], "the second one is of a later time");
        assert!(until.is_some_and(|until| until >= between));
        assert!(
            watch
                .follow(monotonic_ns(), |write| seen.push(word_in(&write)))
                .is_some()
        );
        assert_eq!(seen, [8, 9]);
        assert!(watch.go_on());
        for value in 0..10 * WRITES {
            words[2].store(value, Ordering::SeqCst);
        }
        assert_eq!(watch.follow(monotonic_ns(), |_| ()), None, "more than were granted");
    }

    #[test]
    fn without_copies_the_first_write_ends_it() {
        let word = AtomicU64::new(0);
        let Some(mut watch) = own(&word, 0) else { return };
        assert!(watch.follow(monotonic_ns(), |_| ()).is_some() && watch.go_on());
        word.store(1, Ordering::SeqCst);
        assert_eq!(watch.follow(monotonic_ns(), |_| ()), None);
    }

    #[test]
    fn other_records_are_none() {
        for record in [&[][..], &[0; 7], &[9, 0, 0, 0], &[2; 64], &[9, 0, 0, 0, 0, 0, 0, 0, 1]] {
            assert!(decode(record).is_none());
        }
    }
}
