//! Step after step.

use backtrail_arch::{Arch, Registers};

use crate::memo::{Memo, MemoState};
use crate::{AddressKind, MemoStep, Memory, Modules, RuleCache, Stop};

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

/// Where the frames of a walk go.
pub(crate) trait Sink {
    fn push(&mut self, frame: Frame);

    /// The walk has ended.
    #[cfg(feature = "local")]
    fn end(&mut self, _stop: Stop) {}

    /// Takes frames of the last walk, the outermost first.
    #[inline(always)]
    fn push_kept(&mut self, steps: &[MemoStep]) {
        steps.iter().rev().for_each(|step| self.push(step.frame()));
    }
}

/// To a function, each on its own.
pub(crate) struct Each<F> {
    pub(crate) visit: F,
    #[cfg(feature = "local")]
    pub(crate) stop: Stop,
}

impl<F: FnMut(Frame)> Each<F> {
    pub(crate) fn new(visit: F) -> Each<F> {
        Each {
            visit,
            #[cfg(feature = "local")]
            stop: Stop::Limit,
        }
    }
}

impl<F: FnMut(Frame)> Sink for Each<F> {
    #[inline(always)]
    fn push(&mut self, frame: Frame) {
        (self.visit)(frame);
    }

    #[cfg(feature = "local")]
    fn end(&mut self, stop: Stop) {
        self.stop = stop;
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
