//! A mapped file of rings, and what is read and written in it by several at once.
//!
//! Everything but events is 64-bit or 32-bit atomics. Offsets are checked against the mapping, so
//! nothing in the file, whoever wrote it, leads out of it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::layout::{Geometry, MAGIC, PAGE, head};

/// The mapped memory. It stays mapped: classes and threads point into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    base: *mut u8,
    bytes: usize,
    pub(crate) geometry: Geometry,
}

// SAFETY: the memory stays mapped, and everything shared in it is reached as atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file that has these sizes.
    pub(crate) fn new(file: &File, geometry: Geometry) -> io::Result<Map> {
        let bytes = geometry.total();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map {
            base: base.cast(),
            bytes,
            geometry,
        })
    }

    /// Maps the file of another process, after its first page has been checked.
    pub(crate) fn open(file: &File) -> io::Result<Map> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a file of rings");
        let mut page = [0; PAGE];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut page, 0)?;
        let number = |at: usize| {
            page.get(at..)
                .and_then(|rest| rest.first_chunk())
                .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let geometry = Geometry::new(
            number(head::RINGS),
            number(head::PACKET_BYTES),
            number(head::PACKETS),
            number(head::CLASS_BYTES),
        );
        let geometry = geometry.filter(|_| number(head::MAGIC) == MAGIC).ok_or_else(broken)?;
        // Memory beyond the file's end would kill whoever reads it.
        match file.metadata()?.len() == geometry.total() as u64 {
            true => Map::new(file, geometry),
            false => Err(broken()),
        }
    }

    /// Puts another file in the place of this one, at the same addresses.
    pub(crate) fn replace(&self, file: libc::c_int) -> bool {
        // SAFETY: the range is a mapping of ours, and stays one of the same size.
        let base = unsafe {
            libc::mmap(
                self.base.cast(),
                self.bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file,
                0,
            )
        };
        base == self.base.cast()
    }

    /// Unmaps the file. Nothing may point into it.
    pub(crate) fn unmap(self) {
        // SAFETY: only a collector does this; it keeps no reference into the mapping, since those
        // have the lifetime of the borrowed map that owned this one.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }

    /// A 64-bit number. An offset beyond the mapping gives a number that nobody else sees.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &'static AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        if at.is_multiple_of(8) && at < self.bytes && self.bytes - at >= 8 {
            // SAFETY: within the mapping, which stays; aligned, since the mapping is; everyone
            // reaches it as this atomic.
            unsafe { &*self.base.add(at).cast() }
        } else {
            &NOWHERE
        }
    }

    /// A 32-bit number, likewise.
    #[inline]
    pub(crate) fn half(&self, at: usize) -> &'static AtomicU32 {
        static NOWHERE: AtomicU32 = AtomicU32::new(0);
        if at.is_multiple_of(4) && at < self.bytes && self.bytes - at >= 4 {
            // SAFETY: as in `word`.
            unsafe { &*self.base.add(at).cast() }
        } else {
            &NOWHERE
        }
    }

    /// Reads bytes word by word, from an offset that is a multiple of 8.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        for (index, chunk) in out.chunks_mut(8).enumerate() {
            let bytes = self.word(at + index * 8).load(Ordering::Relaxed).to_ne_bytes();
            chunk.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        }
    }

    /// Writes bytes word by word, zeros after the last.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(place, &byte)| *place = byte);
            self.word(at + index * 8)
                .store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// The packets of a ring, for its writers.
    pub(crate) fn data(&self, ring: usize) -> *mut u8 {
        self.address(self.geometry.data(ring.min(self.geometry.rings - 1)))
    }

    /// The address of an offset, at most that of the mapping's end.
    pub(crate) fn address(&self, at: usize) -> *mut u8 {
        // SAFETY: within the mapping, or at its end.
        unsafe { self.base.add(at.min(self.bytes)) }
    }
}

/// Whether the process runs with more rights than its caller.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: it only reads what the kernel passed to the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The user as whom the process makes files.
pub(crate) fn user() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
impl Map {
    /// Memory that is no file, for tests that run where files cannot be mapped.
    pub(crate) fn in_heap(geometry: Geometry) -> Map {
        let bytes = geometry.total();
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).expect("a layout");
        // SAFETY: the size is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!base.is_null());
        Map { base, bytes, geometry }
    }

    /// Frees it.
    pub(crate) fn free(self) {
        let layout = std::alloc::Layout::from_size_align(self.bytes, PAGE).expect("a layout");
        // SAFETY: allocated so above; the tests have dropped everything that points into it.
        unsafe { std::alloc::dealloc(self.base, layout) };
    }
}
