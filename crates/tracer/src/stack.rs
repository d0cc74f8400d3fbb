//! The stack of an event: a compact backtrace of the calling thread.

/// The most bytes of a stack; outer frames beyond are left out.
pub(crate) const MOST: usize = 512;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod walk {
    use backtrail_local::handler::entry::{Captured, encode};

    backtrail_local::with_callers_registers! {
        /// Writes the caller's stack as a compact backtrace and returns its length.
        ///
        /// # Safety
        /// `buffer` has room for `bytes` bytes.
        own_stack(buffer: *mut u8, bytes: usize) -> usize, write_stack, "rdx", "x2"
    }

    /// # Safety
    /// `buffer` has room for `bytes` bytes; `caller` was saved by `own_stack`.
    unsafe extern "C" fn write_stack(buffer: *mut u8, bytes: usize, caller: *const Captured) -> usize {
        // SAFETY: as our caller promises.
        let (buffer, caller) = unsafe { (core::slice::from_raw_parts_mut(buffer, bytes), &*caller) };
        encode(&caller.position(), buffer).unwrap_or(0)
    }

    #[inline(never)]
    pub(crate) fn own(memory: &mut [u8]) -> &[u8] {
        // SAFETY: the buffer has this room.
        let used = unsafe { own_stack(memory.as_mut_ptr(), memory.len()) };
        memory.get(..used).unwrap_or_default()
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod walk {
    pub(crate) fn own(_: &mut [u8]) -> &[u8] {
        &[]
    }
}

pub(crate) use walk::own;
