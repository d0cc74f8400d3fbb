//! The machine that this program runs on.

use backtrail_arch::Arch;

/// The CPU, with the signatures of return addresses that its kernel has chosen: they are the same
/// in all processes.
pub fn this_machine() -> &'static Arch {
    let arch = Arch::native();
    #[cfg(target_arch = "aarch64")]
    if let Some(signing) = arch.signed_in(crate::sys::signed_bits()) {
        return signing;
    }
    arch
}
