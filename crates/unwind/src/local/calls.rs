//! Checks whether a return address follows a call, and what that call can lead to.

use backtrail_arch::{Arch, Call};

use super::ARCH;
use super::loaded::Module;
use super::modules::Published;

/// Size limit of functions without a table.
const LARGEST_FUNCTION: u64 = 1 << 20;

/// The call before a return address, in code of a known module.
pub(super) fn before(published: &Published, return_address: u64) -> Option<Call> {
    let module = published.module(return_address.checked_sub(1)?)?;
    let start = return_address.checked_sub(Arch::LONGEST_CALL as u64)?;
    let words = module.words::<{ Arch::LONGEST_CALL / 8 }>(start)?;
    let bytes = words.map(u64::to_ne_bytes);
    // An instruction does not begin before its segment.
    let room = return_address
        .saturating_sub(module.start)
        .min(Arch::LONGEST_CALL as u64) as usize;
    let bytes = bytes.as_flattened();
    ARCH.call_before(return_address, bytes.get(bytes.len().checked_sub(room)?..)?)
}

/// Whether code at `pc`, which no table describes, may be the callee of a call to `target`: it
/// begins there, or the linker's stub there jumps to it.
pub(super) fn can_lead_to(published: &Published, target: u64, pc: u64) -> bool {
    let can_be = |start: u64| start <= pc && pc - start < LARGEST_FUNCTION && !published.has_row(start);
    can_be(target) || stub_target(published, target).is_some_and(can_be)
}

/// Whether the linker's stub at `stub` jumps to `start`.
pub(super) fn stub_leads_to(published: &Published, stub: u64, start: u64) -> bool {
    stub_target(published, stub) == Some(start)
}

/// The target of a stub in a procedure linkage table.
#[cfg(target_arch = "x86_64")]
fn stub_target(published: &Published, stub: u64) -> Option<u64> {
    let module = published.module(stub)?;
    let bytes = module.words::<2>(stub)?.map(u64::to_ne_bytes);
    let bytes = bytes.as_flattened();
    let mut at = if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        4
    } else {
        0
    };
    if bytes.get(at) == Some(&0xf2) {
        at += 1;
    }
    // jmp through a slot at this distance from the next instruction.
    let [0xff, 0x25, distance @ ..] = bytes.get(at..)? else {
        return None;
    };
    let next = stub.checked_add(at as u64 + 6)?;
    let place = next.wrapping_add_signed(i32::from_ne_bytes(*distance.first_chunk()?).into());
    module.words::<1>(place).map(|[target]| target)
}

#[cfg(target_arch = "aarch64")]
fn stub_target(_published: &Published, _stub: u64) -> Option<u64> {
    None
}

/// Whether the address is in a module's code that no table describes.
pub(super) fn is_silent(published: &Published, module: &Module, pc: u64) -> bool {
    (module.start..module.end).contains(&pc) && !published.has_row(pc)
}
