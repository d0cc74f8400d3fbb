//! Chains of frame pointers that others have followed.

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Location, Rule};

use crate::cache::TableRule;
use crate::step::{AddressKind, Found, Stop, find};
use crate::{Modules, RuleCache, Uncovered};

/// Whether the chain of frame pointers passes through a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Yes: its table row says that the next frame of the chain is its caller.
    Frame,
    /// No table row describes the frame; presumably it does.
    Uncovered,
    /// The chain ends there: the frame is the outermost one.
    Outermost,
    /// No, or not known.
    Unknown,
}

/// Whether the chain of frame pointers passes through the frame at `pc`.
pub fn link(arch: &Arch, pc: u64, kind: AddressKind, modules: &impl Modules, cache: &mut RuleCache<'_>) -> Link {
    let uncovered = |in_table| match modules.uncovered(pc, kind, in_table) {
        Uncovered::FramePointer | Uncovered::Linked(_) | Uncovered::Leaf(_) => Link::Uncovered,
        Uncovered::Rule(rule) if is_linked(arch, &rule) => Link::Uncovered,
        Uncovered::Rule(_)
        | Uncovered::Exact(_)
        | Uncovered::Tagged { .. }
        | Uncovered::Hosted { .. }
        | Uncovered::Unknown => Link::Unknown,
        Uncovered::Outermost => Link::Outermost,
    };
    let rule = match find(arch, pc, kind, modules, cache) {
        Found::Packed(packed) => packed.unpack(arch),
        Found::Rule(rule) => rule,
        Found::FramePointer => return uncovered(false),
        Found::NoModule => return Link::Unknown,
    };
    match rule {
        TableRule::Caller {
            rule,
            signal_frame: false,
        } if is_linked(arch, &rule) || modules.links_frames(pc, kind, &rule) => Link::Frame,
        TableRule::Caller { .. } | TableRule::Signal => Link::Unknown,
        TableRule::Outermost => Link::Outermost,
        TableRule::NotCovered => uncovered(true),
    }
}

/// What the outermost frame, whose return address is `ra`, shows about the end of its walk: a stack
/// is whole only if it ends in code that a table marks as the start of one, or in code that stacks
/// may begin with, because nothing returns from it or because this one does ([`is_at_start`]).
pub fn check_end(
    arch: &Arch,
    ra: u64,
    stop: Stop,
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
    may_begin: impl FnOnce(u64) -> bool,
) -> Stop {
    let is_start =
        |cache: &mut RuleCache<'_>| link(arch, ra, AddressKind::Ra, modules, cache) == Link::Outermost || may_begin(ra);
    match stop {
        Stop::EndOfStack if !is_start(cache) => Stop::NoStart,
        stop => stop,
    }
}

/// Whether the frame at `sp`, whose return address is 0, is the first one of the stack whose memory
/// ends at `end`. Fibres begin there; above a thread's first frame is the C library's description
/// of the thread, which is larger.
pub fn is_at_start(sp: u64, end: u64) -> bool {
    const MOST_ABOVE: u64 = 1 << 10;
    sp < end && end - sp <= MOST_ABOVE
}

/// Whether this is the rule of a frame that the frame pointer points to, with the caller's frame
/// pointer and the return address where chains have them.
fn is_linked(arch: &Arch, rule: &Rule) -> bool {
    let cfa = Location {
        base: Base::Register(arch.fp.0),
        offset: arch.cfa_from_fp as i32,
        deref: false,
    };
    let at = |location: Location, offset: i64| match location.base {
        Base::Cfa => location.deref && i64::from(location.offset) == offset,
        Base::Register(number) => {
            number == arch.fp.0 && location.deref && i64::from(location.offset) == offset + arch.cfa_from_fp
        }
    };
    arch.cfa_from_fp != 0
        && rule.cfa == cfa
        && at(rule.ra, arch.ra_from_fp - arch.cfa_from_fp)
        && rule.fp.is_some_and(|fp| at(fp, -arch.cfa_from_fp))
}
