//! The ring through which the kernel hands over perf records.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// Bytes of `struct perf_event_header`.
const HEADER: usize = 8;

/// A mapped ring of an event. The kernel appends records at the head; moving the tail gives back
/// what was read.
#[derive(Debug)]
pub struct Ring {
    fd: OwnedFd,
    map: *mut u8,
    map_len: usize,
    page: usize,
    mask: u64,
    tail: u64,
    /// The kernel may have overwritten what is before this position.
    given_back: u64,
    /// Records up to here are known to be complete.
    head: u64,
}

// SAFETY: the mapping belongs to this value alone and stays valid until it is dropped; which thread
// uses it makes no difference to the kernel.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of `pages` (a power of two) data pages over `event`.
    ///
    /// # Errors
    /// `EPERM` if the pages are more than the process may lock (`perf_event_mlock_kb` plus
    /// `RLIMIT_MEMLOCK`).
    pub fn map(event: OwnedFd, pages: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let map_len = (pages + 1) * page;
        // SAFETY: a new shared mapping at an address that the kernel chooses touches no memory of
        // ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            fd: event,
            map: map.cast(),
            map_len,
            page,
            mask: (pages * page) as u64 - 1,
            tail: 0,
            given_back: 0,
            head: 0,
        })
    }

    /// The most bytes of records that the ring can hold.
    pub fn capacity(&self) -> usize {
        self.map_len - self.page
    }

    /// Asks the kernel how far it has written; [`Ring::record`] gives records up to there.
    pub fn refresh(&mut self) {
        self.head = self.position(DATA_HEAD).load(Ordering::Acquire);
    }

    /// The next record with its header, without consuming it. A record that wraps around the end of
    /// the ring is assembled in `scratch`.
    pub fn record<'r>(&'r self, scratch: &'r mut Vec<u8>) -> Option<&'r [u8]> {
        if self.head.wrapping_sub(self.tail) < HEADER as u64 {
            return None;
        }
        // Records and the ring are multiples of 8 bytes, so a header never wraps.
        let header = self.data(self.tail, HEADER);
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        if size < HEADER || size as u64 > self.head.wrapping_sub(self.tail) {
            return None;
        }
        let start = (self.tail & self.mask) as usize;
        let contiguous = self.capacity() - start;
        if size <= contiguous {
            return Some(self.data(self.tail, size));
        }
        scratch.clear();
        scratch.extend_from_slice(self.data(self.tail, contiguous));
        scratch.extend_from_slice(self.data(self.tail + contiguous as u64, size - contiguous));
        Some(scratch)
    }

    /// Moves past a record of `size` bytes. Its bytes stay ours until [`Ring::give_back`].
    pub fn consume(&mut self, size: usize) {
        self.tail += size as u64;
    }

    /// Lets the kernel overwrite what was consumed.
    pub fn give_back(&mut self) {
        self.position(DATA_TAIL).store(self.tail, Ordering::Release);
        self.given_back = self.tail;
    }

    /// The position of the next record.
    pub fn next_position(&self) -> u64 {
        self.tail
    }

    /// `len` bytes at a position, if they are still ours and do not wrap around the ring's end.
    pub fn held(&self, at: u64, len: usize) -> Option<&[u8]> {
        let (before, all) = (
            at.wrapping_sub(self.given_back),
            self.head.wrapping_sub(self.given_back),
        );
        let is_ours = before <= all && len as u64 <= all - before;
        let is_contiguous = len <= self.capacity() - (at & self.mask) as usize;
        (is_ours && is_contiguous).then(|| self.data(at, len))
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self` lives and the field is aligned to 8;
        // the kernel and we access it with atomic loads and stores only.
        unsafe { &*self.map.add(offset).cast::<AtomicU64>() }
    }

    /// `len` bytes at ring position `at`; they must not reach past the ring's end.
    fn data(&self, at: u64, len: usize) -> &[u8] {
        let start = (at & self.mask) as usize;
        assert!(start + len <= self.capacity());
        // SAFETY: within the mapping by the assertion. The kernel does not write between the tail
        // that we last gave back and the head that we loaded with acquire ordering, and every
        // caller stays in that range.
        unsafe { std::slice::from_raw_parts(self.map.add(self.page + start), len) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this address and length, and no reference into
        // it outlives `self`.
        unsafe {
            libc::munmap(self.map.cast(), self.map_len);
        }
    }
}
