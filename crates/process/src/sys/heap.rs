//! Memory that was freed.

/// Gives free memory of the heap back to the system, where the C library can: it keeps what was
/// freed below the heap's end, and building a large table frees much at once.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointers, locks the heap itself, and touches free memory only.
        unsafe { libc::malloc_trim(0) };
    }
}
