//! Pointer authentication, which AArch64 has.

/// The bits of a return address in which this CPU and its kernel sign it; 0 if they do not.
pub(crate) fn signed_bits() -> u64 {
    /// All bits of an address of user space up to its tag.
    const ADDRESS: u64 = u64::MAX >> 9;
    let mut address = ADDRESS;
    // SAFETY: XPACLRI removes the signature from x30, and changes nothing else. As a hint, it does
    // nothing on CPUs that don't know it.
    unsafe {
        core::arch::asm!("hint #7", inout("x30") address, options(nomem, nostack, preserves_flags));
    }
    ADDRESS ^ address
}
