//! Outermost frames that call frame information does not mark as such. The conversion to tables
//! finds them in the code; what is made of a loaded module has no code to look at, and in-place
//! reading has no table.

use backtrail_arch::Arch;

use super::loaded::Module;
use super::{ARCH, frames};
use crate::{AddressKind, Uncovered};

const BEFORE: usize = Arch::OUTERMOST_BYTES.0;
const AROUND: usize = (BEFORE + Arch::OUTERMOST_BYTES.1) / 8;

/// Whether a stack begins at a return address; nothing describes the byte before it.
pub(super) fn is_beside(module: &Module, return_address: u64) -> bool {
    if frames::is_start_context(module, return_address) {
        // A function of any other kind would be described there.
        return frames::function_at(module, return_address).is_some_and(|found| found.start == return_address);
    }
    let around = return_address
        .checked_sub(BEFORE as u64)
        .and_then(|start| module.words::<AROUND>(start));
    around.is_some_and(|words| {
        let bytes = words.map(u64::to_ne_bytes);
        let (before, after) = bytes.as_flattened().split_at(BEFORE);
        ARCH.is_outermost(before, after)
    })
}

/// How to leave code that no table row describes; see [`Modules`](crate::Modules::uncovered).
pub(super) fn uncovered<'m>(
    pc: u64,
    kind: AddressKind,
    in_table: bool,
    module: impl FnOnce() -> Option<&'m Module>,
) -> Uncovered {
    match in_table {
        true if kind == AddressKind::Ra && module().is_some_and(|module| is_beside(module, pc)) => Uncovered::Outermost,
        true => Uncovered::Unknown,
        false => Uncovered::FramePointer,
    }
}
