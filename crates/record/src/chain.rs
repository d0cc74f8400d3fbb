//! Frames beyond the copy of a stack, from the chain of frame pointers that the kernel followed at
//! the moment of the sample.

use backtrail_arch::Arch;
use backtrail_recording::{Frame, FrameKind};
use backtrail_unwind::{AddressKind, Link, Modules, RuleCache, Stop, link};

/// Adds the frames of `chain` beyond `frames`, which ended where the copy did. `None` if nothing
/// shows where in the chain the frames end.
pub(crate) fn go_on(
    arch: &Arch,
    frames: &mut Vec<Frame>,
    chain: &[u64],
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
) -> Option<Stop> {
    let mut links = |frame: Frame| {
        let kind = match frame.kind {
            FrameKind::Ra => AddressKind::Ra,
            FrameKind::Pc | FrameKind::Omitted => AddressKind::Pc,
        };
        link(arch, frame.address, kind, modules, cache)
    };
    let mut here = *frames.last()?;
    let mut rest = following(frames, chain, &mut links)?;
    loop {
        let found = links(here);
        match found {
            Link::Outermost => return Some(Stop::EndOfStack),
            Link::Unknown => return None,
            Link::Frame | Link::Uncovered => {}
        }
        let (&next, others) = rest.split_first()?;
        if next == 0 {
            return None;
        }
        let callee = here.address;
        here = Frame {
            kind: FrameKind::Ra,
            address: next,
        };
        // On stacks made by hand, no call has led to the callee of the outermost function.
        if !modules.is_called(next, callee) && links(here) != Link::Outermost {
            return Some(Stop::NoCall);
        }
        rest = others;
        frames.push(here);
    }
}

/// The part of the chain that follows the last of these frames. The frame is in the chain if its
/// callee is linked into it, and it is the same in both if its address is unique in each, or if
/// both are equal from the innermost frame on.
fn following<'c>(frames: &[Frame], chain: &'c [u64], links: &mut impl FnMut(Frame) -> Link) -> Option<&'c [u64]> {
    let count = frames.len();
    let are_same = chain.len() >= count
        && frames
            .iter()
            .zip(chain)
            .all(|(frame, &address)| frame.address == address);
    if are_same {
        return chain.get(count..);
    }
    let last = frames.last()?;
    let callee = *frames.get(count.checked_sub(2)?)?;
    if !matches!(links(callee), Link::Frame | Link::Uncovered) {
        return None;
    }
    let is_once = frames.iter().filter(|frame| frame.address == last.address).count() == 1;
    let mut places = (0..chain.len()).filter(|&place| chain[place] == last.address);
    let (place, other) = (places.next()?, places.next());
    (is_once && other.is_none()).then(|| &chain[place + 1..])
}
