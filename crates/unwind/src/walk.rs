//! Step after step.

use backtrail_arch::{Arch, Registers};

use crate::{AddressKind, Memory, Modules, RuleCache, Stop, step};

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Which of the two.
    pub kind: AddressKind,
}

/// Walks from the frame with `registers` outwards, gives every frame to `visit`, the innermost first, and says why
/// the walk ended. At most `limit` frames are visited.
pub fn walk(
    arch: &Arch,
    registers: &Registers,
    modules: &impl Modules,
    memory: &mut impl Memory,
    cache: &mut RuleCache<'_>,
    limit: usize,
    mut visit: impl FnMut(Frame),
) -> Stop {
    let mut registers = *registers;
    let mut kind = AddressKind::Pc;
    for _ in 0..limit {
        visit(Frame {
            address: registers.pc,
            kind,
        });
        match step(arch, &mut registers, kind, modules, memory, cache) {
            Ok(caller) => kind = caller,
            Err(stop) => return stop,
        }
    }
    Stop::Limit
}
