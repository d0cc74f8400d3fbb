//! Repeated steps.

use backtrail_arch::Arch;

use crate::memo::{Memo, MemoState};
use crate::{Frame, Memory, Modules, Position, RuleCache, Stop};

/// Walks from a frame outwards, passes every frame to `visit`, the innermost first, and returns why
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
