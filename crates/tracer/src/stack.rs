//! The stack of an event: a compact backtrace of the calling thread.

/// The most bytes of a stack; outer frames beyond are left out.
pub(crate) const MOST: usize = 512;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod walk {
    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

    use backtrail_cbf::{Encoder, End, Frame, WordSize};
    use backtrail_local::handler::entry::{Captured, encode};
    use backtrail_unwind::local::KeptStack;

    use super::MOST;

    /// Frames of a stack that is kept.
    const FRAMES: usize = 64;

    /// The last stack of a ring's thread: most events of a place have the stack of the one before,
    /// and noticing that takes less time than encoding it.
    pub(crate) struct Cache {
        is_busy: AtomicBool,
        kept: UnsafeCell<Kept>,
    }

    impl core::fmt::Debug for Cache {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("Cache")
        }
    }

    // SAFETY: only the ring's owner and its handlers use it, and `is_busy` keeps these apart.
    unsafe impl Sync for Cache {}

    type Stack = KeptStack<FRAMES>;

    struct Kept {
        stack: Stack,
        own: usize,
        used: usize,
        bytes: [u8; MOST],
    }

    impl Cache {
        pub(crate) const fn new() -> Cache {
            Cache {
                is_busy: AtomicBool::new(false),
                kept: UnsafeCell::new(Kept {
                    stack: Stack::EMPTY,
                    own: 0,
                    used: 0,
                    bytes: [0; MOST],
                }),
            }
        }

        /// Calls `act` with the calling thread's stack, without its first `own` frames, the
        /// caller's among them.
        #[inline(always)]
        pub(crate) fn with(&self, own: usize, act: impl Fn(&[u8])) {
            // Owner and handlers only: whoever sees it free is the only one until it is set.
            if self.is_busy.load(Ordering::Relaxed) {
                return without_cache(own, &act);
            }
            self.is_busy.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // SAFETY: the pointer is to what this alone uses until `is_busy` is reset.
            unsafe { update_stack(self.kept.get(), own) };
            // SAFETY: as above.
            let kept = unsafe { &*self.kept.get() };
            act(kept.bytes.get(..kept.used).unwrap_or_default());
            compiler_fence(Ordering::SeqCst);
            self.is_busy.store(false, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn without_cache(own: usize, act: &dyn Fn(&[u8])) {
        let mut memory = [0; MOST];
        // This function is on the stack, too.
        // SAFETY: the pointer is to a buffer that nothing else uses.
        let used = unsafe { own_stack(&raw mut memory, own + 1) };
        act(memory.get(..used).unwrap_or_default());
    }

    backtrail_local::with_callers_registers! {
        /// Writes the caller's stack as a compact backtrace, without its first `own` frames, and
        /// returns its length.
        ///
        /// # Safety
        /// Nothing else uses `buffer`.
        own_stack(buffer: *mut [u8; MOST], own: usize) -> usize, write_stack, "rdx", "x2"
    }

    backtrail_local::with_callers_registers! {
        /// Brings what is kept up to date with the caller's stack, without its first `own` frames.
        ///
        /// # Safety
        /// Nothing else uses `kept`.
        update_stack(kept: *mut Kept, own: usize) -> usize, update, "rdx", "x2"
    }

    /// # Safety
    /// Nothing else uses `buffer`; `caller` was saved by `own_stack`.
    unsafe extern "C" fn write_stack(buffer: *mut [u8; MOST], own: usize, caller: *const Captured) -> usize {
        // SAFETY: as our caller promises.
        let (buffer, caller) = unsafe { (&mut *buffer, &*caller) };
        encode(&caller.position(), own, buffer).unwrap_or(0)
    }

    /// # Safety
    /// Nothing else uses `kept`; `caller` was saved by `update_stack`.
    unsafe extern "C" fn update(kept: *mut Kept, own: usize, caller: *const Captured) -> usize {
        // SAFETY: as our caller promises.
        let (kept, caller) = unsafe { (&mut *kept, &*caller) };
        if kept.stack.update(caller) || own != kept.own {
            kept.own = own;
            kept.used = match kept.stack.addresses().len() {
                FRAMES => encode(&caller.position(), own, &mut kept.bytes).unwrap_or(0),
                _ => kept.encode(),
            };
        }
        0
    }

    impl Kept {
        /// Encodes the stack and returns its length.
        fn encode(&mut self) -> usize {
            let Ok(mut encoder) = Encoder::new(&mut self.bytes, WordSize::Bits64) else {
                return 0;
            };
            let addresses = self.stack.addresses().get(self.own..).unwrap_or_default();
            let all = addresses.iter().all(|&address| {
                let frame = match address & Stack::IS_PC {
                    0 => Frame::Ra(address),
                    _ => Frame::Pc(address & !Stack::IS_PC),
                };
                encoder.push(frame).is_ok()
            });
            encoder.finish(if all && self.stack.is_complete() {
                End::Complete
            } else {
                End::Truncated
            })
        }
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod walk {
    /// No stacks here.
    #[derive(Debug)]
    pub(crate) struct Cache;

    impl Cache {
        pub(crate) const fn new() -> Cache {
            Cache
        }

        pub(crate) fn with(&self, _own: usize, act: impl Fn(&[u8])) {
            act(&[]);
        }
    }
}

pub(crate) use walk::Cache;
