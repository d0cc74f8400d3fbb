//! The kernel, as recordings describe it.

use backtrail_process::proc;
use backtrail_recording::Module;

/// The process number used for the kernel's code: no process has it.
pub(crate) const NO_PROCESS: u32 = u32::MAX;
/// The most that the kernel's own code and data can take on x86-64 (KERNEL_IMAGE_SIZE, with KASLR).
/// Kernel modules are loaded elsewhere.
const KERNEL_SIZE: u64 = 1 << 30;

/// The kernel, if we may know its address, which shows readers whether its addresses are those of
/// this boot.
pub(crate) fn kernel() -> Option<Module> {
    let notes = std::fs::read("/sys/kernel/notes").unwrap_or_default();
    let build_id = backtrail_elf::build_id_of_notes(&notes).unwrap_or_default();
    Some(kernel_at(proc::kernel_start()?, build_id.to_vec()))
}

/// The kernel whose first symbol is at an address.
pub(crate) fn kernel_at(start: u64, build_id: Vec<u8>) -> Module {
    Module {
        time: 0,
        pid: NO_PROCESS,
        base: start,
        size: KERNEL_SIZE,
        mapped: None,
        position_independent: true,
        path: "[kernel.kallsyms]".to_owned(),
        build_id,
        elsewhere: 0,
    }
}
