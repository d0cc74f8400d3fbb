//! The tree of stacks: each frame of each distinct stack once.
//!
//! Stacks of one program share their outer frames. So a stack is stored as a node of a tree whose
//! roots are the outer ends of stacks, one for each way in which a walk can end. A definition adds
//! the frames by which a new stack differs from all earlier ones. Every added frame gets its own
//! number, the outermost the lowest, so each inner frame is itself a stack that later ones can
//! build upon, without another byte in the trace.

use rustc_hash::FxHashMap;

use crate::events::STACK_BITS;
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

/// Numbers of frames on top of stacks.
#[derive(Debug, Default)]
struct Edges {
    /// Nearly all frames: with half the memory, a look-up waits for it less often.
    callers: FxHashMap<u64, u32>,
    others: FxHashMap<(u32, Frame), u32>,
}

impl Edges {
    fn len(&self) -> usize {
        self.callers.len() + self.others.len()
    }

    fn find(&self, below: u32, frame: Frame) -> Option<u32> {
        match caller(below, frame) {
            Some(key) => self.callers.get(&key),
            None => self.others.get(&(below, frame)),
        }
        .copied()
    }

    fn insert(&mut self, below: u32, frame: Frame, number: u32) {
        match caller(below, frame) {
            Some(key) => self.callers.insert(key, number),
            None => self.others.insert((below, frame), number),
        };
    }

    fn clear(&mut self) {
        self.callers.clear();
        self.others.clear();
    }
}

/// The writer's side: assigns numbers to frames.
#[derive(Debug, Default)]
pub struct StackTree(Edges);

impl StackTree {
    /// The number that the next new frame gets.
    pub fn next_node(&self) -> u32 {
        self.0.len() as u32 + FIRST_NODE
    }

    /// The number of a frame on top of a stack, if known.
    pub fn find(&self, below: u32, frame: Frame) -> Option<u32> {
        self.0.find(below, frame)
    }

    /// Gives a new frame on top of this stack the next number.
    pub fn add(&mut self, below: u32, frame: Frame) -> u32 {
        let node = self.next_node();
        self.0.insert(below, frame, node);
        node
    }

    /// Forgets everything, for a checkpoint: from here on the trace can be understood without its
    /// earlier part.
    pub fn clear(&mut self) {
        self.0.clear();
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
///
/// After a checkpoint, the trace defines its stacks again, under other numbers. They keep their
/// first numbers here, so that whoever knows a stack knows it for the whole recording.
#[derive(Debug)]
pub struct StackNodes {
    runs: Vec<Run>,
    next: u32,
    /// Since the first checkpoint.
    renumbered: Option<Renumbered>,
}

/// The numbers since a checkpoint.
#[derive(Debug, Default)]
struct Renumbered {
    /// The first number of each frame, in the order of the definitions since then.
    first_numbers: Vec<u32>,
    /// The index of each run, by the stack below it.
    runs: Edges,
}

/// A place in a run.
#[derive(Clone, Copy, Debug)]
struct Copied {
    run: usize,
    node: u32,
}

/// More frames than any recorder defines between two checkpoints, and than a sample can name.
const MOST_RENUMBERED: u64 = 1 << STACK_BITS;
/// Runs from which on a checkpoint is a new start: 130 MB at most.
const MOST_KNOWN_RUNS: usize = 1 << 21;

impl Default for StackNodes {
    fn default() -> Self {
        StackNodes {
            runs: Vec::new(),
            next: FIRST_NODE,
            renumbered: None,
        }
    }
}

impl StackNodes {
    /// The number that the next defined frame gets.
    pub fn next_node(&self) -> u32 {
        match &self.renumbered {
            Some(renumbered) => renumbered.first_numbers.len() as u32 + FIRST_NODE,
            None => self.next,
        }
    }

    /// A checkpoint: definitions begin again. Returns `false` if earlier numbers lose their
    /// meaning.
    pub fn begin_anew(&mut self) -> bool {
        if self.runs.len() > MOST_KNOWN_RUNS {
            *self = StackNodes::default();
            return false;
        }
        let runs = &self.runs;
        let renumbered = self.renumbered.get_or_insert_with(|| {
            let mut renumbered = Renumbered::default();
            for (run, index) in runs.iter().zip(0..) {
                renumbered.runs.insert(run.parent, run.frame, index);
            }
            renumbered
        });
        renumbered.first_numbers.clear();
        true
    }

    /// The number by which a stack is known here. That of an unknown one is unknown too.
    pub fn first_number(&self, stack: u32) -> u32 {
        match &self.renumbered {
            Some(renumbered) if stack >= FIRST_NODE => {
                let index = (stack - FIRST_NODE) as usize;
                renumbered.first_numbers.get(index).copied().unwrap_or(u32::MAX)
            }
            _ => stack,
        }
    }

    /// Adds the frames of a definition, as runs of equal frames from the innermost outwards.
    /// Returns `false` if its parent is unknown or the numbers run out.
    pub fn define(&mut self, parent: u32, runs: &[(Frame, u64)]) -> bool {
        if parent >= self.next_node() {
            return false;
        }
        if self.renumbered.is_some() {
            return self.define_again(parent, runs);
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

    /// The same for frames that may have been defined before the checkpoint.
    fn define_again(&mut self, parent: u32, runs: &[(Frame, u64)]) -> bool {
        let copies = runs.iter().try_fold(0_u64, |sum, &(_, copies)| sum.checked_add(copies));
        let known = u64::from(self.next_node() - FIRST_NODE);
        let numbers = copies.and_then(|copies| copies.checked_add(known));
        if numbers.is_none_or(|numbers| numbers > MOST_RENUMBERED) {
            return false;
        }
        let mut at = self.place(self.first_number(parent));
        for &(frame, copies) in runs.iter().rev() {
            let mut left = copies as u32;
            while left > 0 {
                let Some((next, there)) = self.enter(at, frame, left) else {
                    return false;
                };
                if let Some(renumbered) = &mut self.renumbered {
                    renumbered.first_numbers.extend(next.node..next.node + there);
                }
                at = Copied {
                    node: next.node + there - 1,
                    ..next
                };
                left -= there;
            }
        }
        true
    }

    /// The first copy of a frame on top of a place, and how many of the wanted ones are there; a
    /// new frame is added.
    fn enter(&mut self, at: Copied, frame: Frame, wanted: u32) -> Option<(Copied, u32)> {
        if at.node >= FIRST_NODE && self.runs[at.run].frame == frame {
            let more = self.end_of(at.run) - at.node - 1;
            if more > 0 {
                let node = at.node + 1;
                return Some((Copied { node, ..at }, more.min(wanted)));
            }
        }
        let is_it = |run: &Run| run.parent == at.node && run.frame == frame;
        // Most frames are defined after each other again.
        let known = match self.runs.get(at.run + 1).is_some_and(is_it) {
            true => Some(at.run + 1),
            false => self
                .renumbered
                .as_ref()?
                .runs
                .find(at.node, frame)
                .map(|run| run as usize),
        };
        if let Some(run) = known {
            let node = self.runs[run].first;
            return Some((Copied { run, node }, wanted.min(self.end_of(run) - node)));
        }
        let (run, node) = (self.runs.len(), self.next);
        self.next = node.checked_add(wanted)?;
        self.renumbered.as_mut()?.runs.insert(at.node, frame, run as u32);
        self.runs.push(Run {
            first: node,
            parent: at.node,
            frame,
        });
        Some((Copied { run, node }, wanted))
    }

    /// The place of a known stack; that of a root is in no run.
    fn place(&self, node: u32) -> Copied {
        let run = self.runs.partition_point(|run| run.first <= node).saturating_sub(1);
        Copied { run, node }
    }

    /// The number after a run's last copy.
    fn end_of(&self, run: usize) -> u32 {
        self.runs.get(run + 1).map_or(self.next, |next| next.first)
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
            let mut node = define(&mut tree, &mut nodes, outside, frames);
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

    /// Defines a stack as the writer does, and returns its number.
    fn define(tree: &mut StackTree, nodes: &mut StackNodes, outside: u32, frames: &[Frame]) -> u32 {
        let (mut node, mut known) = (outside, 0);
        for &frame in frames.iter().rev() {
            let Some(next) = tree.find(node, frame) else { break };
            (node, known) = (next, known + 1);
        }
        let new = &frames[..frames.len() - known];
        assert!(nodes.define(node, &runs(new)));
        new.iter().rev().fold(node, |node, &frame| tree.add(node, frame))
    }

    #[test]
    fn stacks_keep_their_numbers_after_checkpoints() {
        let stacks: Vec<_> = [
            &[3, 2, 1][..],
            &[9, 9, 9, 9, 9, 2, 1],
            &[4, 2, 1],
            &[7, 9, 9, 9, 2, 1],
            &[9, 9, 9, 9, 9, 9, 9, 9, 2, 1],
            &[5],
            &[9, 2, 1],
            &[8, 9, 9, 9, 9, 9, 9, 2, 1],
        ]
        .map(stack)
        .into();
        let (mut tree, mut nodes) = (StackTree::default(), StackNodes::default());
        let mut numbers: FxHashMap<Vec<Frame>, u32> = FxHashMap::default();
        // Each round defines them in another order, and some for the first time.
        for (round, known) in [(1, 3), (3, 6), (5, 8), (7, 8)] {
            for index in 0..known {
                let frames = &stacks[index * round % known];
                let written = define(&mut tree, &mut nodes, 2, frames);
                let number = nodes.first_number(written);
                assert_eq!(*numbers.entry(frames.clone()).or_insert(number), number);
                let mut back = Vec::new();
                assert_eq!(nodes.expand(number, usize::MAX, &mut back), Some(2));
                assert_eq!(&back, frames);
                assert_eq!(tree.next_node(), nodes.next_node());
            }
            assert_eq!(nodes.first_number(5), 5, "a root");
            assert_eq!(nodes.innermost(nodes.first_number(nodes.next_node())), None, "unknown");
            tree.clear();
            assert!(nodes.begin_anew());
        }
        let frames: usize = nodes.next as usize - FIRST_NODE as usize;
        assert_eq!(frames, 3 + 5 + 1 + 1 + 3 + 1 + 1, "each distinct frame once");
    }

    #[test]
    fn a_bomb_after_a_checkpoint_is_refused() {
        let mut nodes = StackNodes::default();
        let frame = stack(&[1])[0];
        assert!(nodes.define(0, &[(frame, 1 << 31)]) && nodes.begin_anew());
        assert!(!nodes.define(0, &[(frame, 1 << 31)]) && !nodes.define(0, &[(frame, u64::MAX), (frame, 1)]));
        assert!(nodes.define(0, &[(frame, 100)]));
        assert_eq!(
            (nodes.first_number(FIRST_NODE + 99), nodes.runs.len()),
            (FIRST_NODE + 99, 1)
        );
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
