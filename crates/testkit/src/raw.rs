//! Helpers that need unsafe code: a file mapped as memory that stays when its process is killed,
//! and the processor's clock.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Makes a file of `bytes` zero bytes, mapped so that changes in memory are changes in the file.
pub fn shared_file(path: &Path, bytes: u64) -> io::Result<memmap2::MmapMut> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    file.set_len(bytes)?;
    // SAFETY: the file was made here, so nobody else has it mapped or shortens it: tests only read
    // it, with system calls, while it is mapped.
    unsafe { memmap2::MmapMut::map_mut(&file) }
}

/// The processor's time stamp counter; `None` where this is not known to read it.
#[inline]
pub fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a register and touches no memory; every x86-64 processor has
    // it.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}
