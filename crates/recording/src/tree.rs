//! The tree of stacks: each frame of each distinct stack once.
//!
//! Stacks of one program share their outer frames. So a stack is stored as a node of a tree whose
//! roots are the outer ends of stacks, one for each way in which a walk can end. A definition adds
//! the frames by which a new stack differs from all earlier ones. Every added frame gets its own
//! number, the outermost the lowest, so each inner frame is itself a stack that later ones can
//! build upon, without another byte in the trace.

use rustc_hash::FxHashMap;

use crate::{Frame, FrameKind, Stop};

/// Numbers below are roots: the callers of outermost frames.
pub const FIRST_NODE: u32 = 64;

/// The number of the root for an end reason, and for whether outer frames were read from the
/// running process.
pub fn root(stop: Stop, live: bool) -> u32 {
    u32::from(stop as u8) << 1 | u32::from(live)
}

/// Set in the numbers of roots of stacks that the kernel walked, at the moment of the sample.
pub const IN_KERNEL: u32 = 32;

/// Whether a root is of stacks that the kernel walked.
pub fn walked_in_kernel(root: u32) -> bool {
    root < FIRST_NODE && root & IN_KERNEL != 0
}

/// The meaning of a root; `None` if the number is not that of a root.
pub fn ending(root: u32) -> Option<(Stop, bool)> {
    let root = if root < FIRST_NODE { root & !IN_KERNEL } else { root };
    let stop = Stop::from_number(u8::try_from(root >> 1).ok()?)?;
    Some((stop, root & 1 != 0))
}

/// The writer's side: assigns numbers to frames.
#[derive(Debug, Default)]
pub struct StackTree {
    /// Nearly all frames: with half the memory, a look-up waits for it less often.
    callers: FxHashMap<u64, u32>,
    others: FxHashMap<(u32, Frame), u32>,
}

impl StackTree {
    /// The number that the next new frame gets.
    pub fn next_node(&self) -> u32 {
        (self.callers.len() + self.others.len()) as u32 + FIRST_NODE
    }

    /// The number of a frame on top of a stack, if known.
    pub fn find(&self, below: u32, frame: Frame) -> Option<u32> {
        match caller(below, frame) {
            Some(key) => self.callers.get(&key),
            None => self.others.get(&(below, frame)),
        }
        .copied()
    }

    /// Gives a new frame on top of this stack the next number.
    pub fn add(&mut self, below: u32, frame: Frame) -> u32 {
        let node = self.next_node();
        match caller(below, frame) {
            Some(key) => self.callers.insert(key, node),
            None => self.others.insert((below, frame), node),
        };
        node
    }

    /// Forgets everything, for a checkpoint: from here on the trace can be understood without its
    /// earlier part.
    pub fn clear(&mut self) {
        self.callers.clear();
        self.others.clear();
    }
}

/// A return address in a module, and its caller's node, in one number.
fn caller(below: u32, frame: Frame) -> Option<u64> {
    let fits = frame.kind == FrameKind::Ra && frame.address < 1 << 40 && below < 1 << 24;
    fits.then_some(u64::from(below) << 40 | frame.address)
}

/// Copies of one frame, each on top of the previous one.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the outermost copy.
    first: u32,
    /// The node below the outermost copy.
    parent: u32,
    frame: Frame,
}

/// The reader's side: from numbers back to frames. Its memory is bounded by the bytes of the
/// definitions, however often they repeat a frame.
#[derive(Debug)]
pub struct StackNodes {
    runs: Vec<Run>,
    next: u32,
}

impl Default for StackNodes {
    fn default() -> Self {
        StackNodes {
            runs: Vec::new(),
            next: FIRST_NODE,
        }
    }
}

impl StackNodes {
    /// The number that the next defined frame gets.
    pub fn next_node(&self) -> u32 {
        self.next
    }

    /// Adds the frames of a definition, as runs of equal frames from the innermost outwards.
    /// Returns `false`, and adds nothing, if its parent is unknown or the numbers run out.
    pub fn define(&mut self, parent: u32, runs: &[(Frame, u64)]) -> bool {
        if parent >= self.next {
            return false;
        }
        let Some(end) = runs
            .iter()
            .try_fold(u64::from(self.next), |end, &(_, copies)| end.checked_add(copies))
            .and_then(|end| u32::try_from(end).ok())
        else {
            return false;
        };
        let mut parent = parent;
        let mut next = self.next;
        for &(frame, copies) in runs.iter().rev() {
            if copies == 0 {
                continue;
            }
            self.runs.push(Run {
                first: next,
                parent,
                frame,
            });
            next += copies as u32;
            parent = next - 1;
        }
        self.next = end;
        true
    }

    /// The innermost frame of a stack, and the number of the stack without it. `None` for a root or
    /// an unknown stack.
    pub fn innermost(&self, stack: u32) -> Option<(Frame, u32)> {
        if !(FIRST_NODE..self.next).contains(&stack) {
            return None;
        }
        let index = self.runs.partition_point(|run| run.first <= stack) - 1;
        let run = self.runs[index];
        let below = if stack == run.first { run.parent } else { stack - 1 };
        Some((run.frame, below))
    }

    /// Appends the frames of a stack to `frames`, from the innermost outwards, at most `limit` of
    /// them, and returns their root. Appends nothing and returns `None` if the stack is unknown or
    /// has more frames.
    pub fn expand(&self, stack: u32, limit: usize, frames: &mut Vec<Frame>) -> Option<u32> {
        if stack >= self.next {
            return None;
        }
        let enough = frames.len().saturating_add(limit);
        let mut node = stack;
        while node >= FIRST_NODE {
            // `first` ascends from run to run, and the first run begins at the first number.
            let index = self.runs.partition_point(|run| run.first <= node) - 1;
            let run = self.runs[index];
            let copies = (node - run.first) as usize + 1;
            let room = enough - frames.len();
            frames.extend(std::iter::repeat_n(run.frame, copies.min(room)));
            if copies > room {
                return None;
            }
            node = run.parent;
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(addresses: &[u64]) -> Vec<Frame> {
        addresses
            .iter()
            .map(|&address| Frame {
                kind: FrameKind::Ra,
                address,
            })
            .collect()
    }

    /// The contents of a definition: runs of equal frames.
    fn runs(frames: &[Frame]) -> Vec<(Frame, u64)> {
        frames
            .chunk_by(|a, b| a == b)
            .map(|run| (run[0], run.len() as u64))
            .collect()
    }

    #[test]
    fn what_is_inserted_comes_back() {
        let stacks = [
            stack(&[3, 2, 1]),
            stack(&[3, 2, 1]),
            stack(&[4, 2, 1]),
            stack(&[2, 1]),
            stack(&[9, 9, 9, 9, 9, 2, 1]),
            stack(&[7, 9, 9, 9, 2, 1]),
            stack(&[]),
            stack(&[1]),
            stack(&[5]),
        ];
        let mut tree = StackTree::default();
        let mut nodes = StackNodes::default();
        let outside = root(Stop::Unreadable, true);
        for frames in &stacks {
            let (mut node, mut known) = (outside, 0);
            for &frame in frames.iter().rev() {
                let Some(next) = tree.find(node, frame) else { break };
                (node, known) = (next, known + 1);
            }
            let new = &frames[..frames.len() - known];
            assert!(nodes.define(node, &runs(new)));
            node = new.iter().rev().fold(node, |node, &frame| tree.add(node, frame));
            assert_eq!(tree.next_node(), nodes.next_node());
            let mut back = Vec::new();
            assert_eq!(nodes.expand(node, usize::MAX, &mut back), Some(outside));
            assert_eq!(&back, frames);
            for frame in frames {
                let (innermost, below) = nodes.innermost(node).unwrap();
                assert_eq!(innermost, *frame);
                node = below;
            }
            assert_eq!((node, nodes.innermost(node)), (outside, None));
        }
        assert_eq!(tree.next_node() - FIRST_NODE, 3 + 1 + 5 + 1 + 1);
    }

    #[test]
    fn roots_say_how_a_stack_ends() {
        for stop in Stop::ALL {
            for live in [false, true] {
                assert!(root(stop, live) < FIRST_NODE);
                assert_eq!(ending(root(stop, live)), Some((stop, live)));
                let in_kernel = root(stop, live) | IN_KERNEL;
                assert!(in_kernel < FIRST_NODE && walked_in_kernel(in_kernel) && !walked_in_kernel(root(stop, live)));
                assert_eq!(ending(in_kernel), Some((stop, live)));
            }
        }
        assert_eq!(ending(FIRST_NODE), None);
    }

    #[test]
    fn a_bomb_of_repeats_costs_what_its_bytes_do() {
        let mut nodes = StackNodes::default();
        let frame = stack(&[1])[0];
        assert!(nodes.define(0, &[(frame, 1 << 31)]));
        assert_eq!(nodes.runs.len(), 1);
        assert!(!nodes.define(0, &[(frame, 1 << 31)]), "the numbers run out");
        assert!(!nodes.define(0, &[(frame, u64::MAX), (frame, u64::MAX)]));
        assert!(!nodes.define(u32::MAX, &[(frame, 1)]), "an unknown parent");
        let mut back = Vec::new();
        assert_eq!(nodes.expand(1 << 31, 1000, &mut back), None, "more than wanted");
        assert_eq!(back.len(), 1000);
        assert_eq!(nodes.expand(u32::MAX, 1000, &mut back), None, "unknown");
        assert_eq!(back.len(), 1000);
    }
}
