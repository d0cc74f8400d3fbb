//! Memory for libraries that are preloaded into any program. The program's `malloc` may not work
//! before `main` (that of GCL, in which Maxima is written, crashes in `realloc`), and heap
//! profilers count what it gives out.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks have powers of two as sizes, from this one on.
const SMALLEST: usize = 16;
/// The number of sizes. Larger blocks are mapped one by one.
const SIZES: usize = 12;
const LARGEST: usize = SMALLEST << (SIZES - 1);
/// Bytes mapped at once for smaller blocks.
const CHUNK: usize = 2 * LARGEST;
const PAGE: usize = 4096;
/// How often a lock that is taken is tried.
const TRIES: usize = 100;

/// An allocator that takes its memory from the kernel.
///
/// It never waits: whoever holds the lock may be a thread that `fork` has left behind, or the code
/// that a signal handler has interrupted. Then memory is mapped, and freed blocks are given up.
#[derive(Debug)]
pub struct OwnMemory {
    is_locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

#[derive(Debug)]
struct Blocks {
    /// Freed blocks by size: each begins with a pointer to the next.
    free: [*mut u8; SIZES],
    /// What is left of a chunk.
    rest: *mut u8,
    rest_bytes: usize,
}

// SAFETY: the lock guards the blocks.
unsafe impl Sync for OwnMemory {}

impl OwnMemory {
    /// An allocator without memory.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> OwnMemory {
        OwnMemory {
            is_locked: AtomicBool::new(false),
            blocks: UnsafeCell::new(Blocks {
                free: [std::ptr::null_mut(); SIZES],
                rest: std::ptr::null_mut(),
                rest_bytes: 0,
            }),
        }
    }

    /// Uses the blocks; `None` if somebody else does.
    fn with<R>(&self, act: impl FnOnce(&mut Blocks) -> R) -> Option<R> {
        let taken = (0..TRIES).any(|_| {
            std::hint::spin_loop();
            let before = self
                .is_locked
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            before.is_ok()
        });
        taken.then(|| {
            // SAFETY: the lock is ours.
            let result = act(unsafe { &mut *self.blocks.get() });
            self.is_locked.store(false, Ordering::Release);
            result
        })
    }
}

impl Blocks {
    fn take(&mut self, size: usize) -> *mut u8 {
        let bytes = SMALLEST << size;
        let first = self.free[size];
        if !first.is_null() {
            // SAFETY: a freed block, which begins with a pointer.
            self.free[size] = unsafe { first.cast::<*mut u8>().read() };
            return first;
        }
        // Blocks have the alignment of their size, up to that of a chunk.
        let padding = self.rest.align_offset(bytes.min(PAGE));
        if self.rest.is_null() || self.rest_bytes < padding.saturating_add(bytes) {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            (self.rest, self.rest_bytes) = (chunk, CHUNK);
            return self.cut(0, bytes);
        }
        self.cut(padding, bytes)
    }

    fn cut(&mut self, padding: usize, bytes: usize) -> *mut u8 {
        let block = self.rest.wrapping_add(padding);
        self.rest = block.wrapping_add(bytes);
        self.rest_bytes -= padding + bytes;
        block
    }
}

/// The number of a block's size; `None` for blocks that are mapped.
fn size_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST);
    let bytes = bytes.checked_next_power_of_two().filter(|&bytes| bytes <= LARGEST)?;
    Some((bytes / SMALLEST).trailing_zeros() as usize)
}

/// New pages, or null.
fn map(bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    mapped.cast()
}

// SAFETY: blocks are as large and aligned as asked for, and nobody else's until they are freed.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return std::ptr::null_mut();
        }
        match size_of(layout) {
            Some(size) => self
                .with(|blocks| blocks.take(size))
                .unwrap_or_else(|| map(SMALLEST << size)),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match size_of(layout) {
            Some(size) => {
                let free = |blocks: &mut Blocks| {
                    // SAFETY: the block is ours again, and has room for a pointer.
                    unsafe { memory.cast::<*mut u8>().write(blocks.free[size]) };
                    blocks.free[size] = memory;
                };
                let _ = self.with(free);
            }
            // SAFETY: mapped with this size for this block.
            None => unsafe {
                libc::munmap(memory.cast(), layout.size());
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_apart_and_used_again() {
        let memory = OwnMemory::new();
        let layouts = [1, 16, 17, 100, 5_000, LARGEST, LARGEST + 1, 1 << 20]
            .into_iter()
            .flat_map(|size| [1, 8, 64, PAGE].map(|align| Layout::from_size_align(size, align).unwrap()));
        let layouts: Vec<Layout> = layouts.cycle().take(500).collect();
        let mut seen = Vec::new();
        for round in 0..3 {
            let mut blocks = Vec::new();
            for layout in &layouts {
                // SAFETY: of a size, and written only within it.
                let block = unsafe { memory.alloc(*layout) };
                assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
                // SAFETY: as above.
                unsafe { block.write_bytes(1, layout.size()) };
                blocks.push((block, *layout));
            }
            let mut ranges: Vec<_> = blocks
                .iter()
                .map(|(block, layout)| (block.addr(), block.addr() + layout.size()))
                .collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            let small = blocks.iter().filter(|(_, layout)| size_of(*layout).is_some());
            let mut small: Vec<usize> = small.map(|(block, _)| block.addr()).collect();
            small.sort_unstable();
            assert!(round == 0 || small == seen, "not used again");
            seen = small;
            for (block, layout) in blocks {
                // SAFETY: from the same allocator, with the same layout.
                unsafe { memory.dealloc(block, layout) };
            }
        }
    }

    #[test]
    fn a_lock_that_is_taken_is_no_obstacle() {
        let memory = OwnMemory::new();
        memory.is_locked.store(true, Ordering::Relaxed);
        let layout = Layout::new::<[u64; 4]>();
        // SAFETY: of a size, and freed once.
        unsafe {
            let block = memory.alloc(layout);
            block.write_bytes(1, layout.size());
            memory.dealloc(block, layout);
        }
    }

    #[test]
    fn threads_share_it() {
        static MEMORY: OwnMemory = OwnMemory::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    for size in (1..2_000).cycle().take(20_000) {
                        let layout = Layout::from_size_align(size, 8).unwrap();
                        // SAFETY: of a size, written and read only within it, and freed once.
                        unsafe {
                            let block = MEMORY.alloc(layout);
                            block.write_bytes(thread, size);
                            assert_eq!(block.add(size - 1).read(), thread);
                            MEMORY.dealloc(block, layout);
                        }
                    }
                });
            }
        });
    }
}
