//! Step after step.

use backtrail_arch::{Arch, Registers};

use crate::memo::{Memo, MemoState};
use crate::{AddressKind, Memory, Modules, RuleCache, Stop};

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Which of the two.
    pub kind: AddressKind,
}

/// Where a walk is: a frame's registers, and what its program counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The registers.
    pub registers: Registers,
    /// [`AddressKind::Pc`] in code that was interrupted; [`AddressKind::Ra`] where the registers are those after a call has returned.
    pub kind: AddressKind,
}

impl Position {
    /// Code that was interrupted with these registers.
    pub const fn interrupted(registers: Registers) -> Position {
        Position {
            registers,
            kind: AddressKind::Pc,
        }
    }
}

/// Walks from a frame outwards, gives every frame to `visit`, the innermost first, and says why
/// the walk ended. At most `limit` frames are visited.
pub fn walk(
    arch: &Arch,
    from: &Position,
    modules: &impl Modules,
    memory: &mut impl Memory,
    cache: &mut RuleCache<'_>,
    limit: usize,
    visit: impl FnMut(Frame),
) -> Stop {
    let mut nothing = MemoState::EMPTY;
    Memo::new(&mut nothing, &mut [], &mut []).walk(arch, from, modules, memory, cache, limit, visit)
}
