//! The tree of stacks: each frame of each distinct stack once.
//!
//! Stacks of one program share their outer frames. So a stack is kept as a node of a tree whose root is the outside
//! of every stack, and a definition adds the frames by which a new stack differs from all before. Every frame so
//! added gets a number of its own, the outermost the lowest, which makes each inner frame a stack that later ones can
//! build upon, without a word more in the trace.

use rustc_hash::FxHashMap;

use crate::Frame;

/// The stack without frames: what every stack's outermost frame stands on.
pub const EMPTY_STACK: u32 = 0;

/// A node number and the frame on top of it.
type Edge = (u32, Frame);

/// The writer's side: gives numbers to stacks and says what has to be defined.
#[derive(Debug, Default)]
pub struct StackTree {
    nodes: FxHashMap<Edge, u32>,
    /// The last stack, from its outermost frame inwards, each with its number: the next one shares most of it.
    last: Vec<(Frame, u32)>,
}

/// Numbers of frames lie below: a sample's stack is a 24-bit number.
const NODE_LIMIT: usize = 1 << 24;

/// What [`StackTree::insert`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// The stack's number.
    pub stack: u32,
    /// The stack below the new frames.
    pub parent: u32,
    /// How many of the innermost frames are new; 0 where the stack is known. They get the numbers that end with `stack`.
    pub new_frames: usize,
}

impl StackTree {
    /// The number that the next new frame gets.
    pub fn next_node(&self) -> u32 {
        self.nodes.len() as u32 + 1
    }

    /// Finds or adds a stack, given from the innermost frame outwards. `None` where all numbers are used up: begin anew.
    pub fn insert(&mut self, frames: &[Frame]) -> Option<Inserted> {
        let outermost_first = frames.iter().rev();
        let shared = outermost_first
            .zip(&self.last)
            .take_while(|&(frame, (last, _))| frame == last)
            .count();
        self.last.truncate(shared);
        let mut node = self.last.last().map_or(EMPTY_STACK, |&(_, node)| node);
        let mut unknown = frames.len() - shared;
        while unknown > 0 {
            let frame = frames[unknown - 1];
            match self.nodes.get(&(node, frame)) {
                Some(&child) => node = child,
                None => break,
            }
            self.last.push((frame, node));
            unknown -= 1;
        }
        let parent = node;
        if self.nodes.len() + unknown >= NODE_LIMIT - 1 {
            return None;
        }
        for &frame in frames[..unknown].iter().rev() {
            let child = self.next_node();
            self.nodes.insert((node, frame), child);
            node = child;
            self.last.push((frame, node));
        }
        Some(Inserted {
            stack: node,
            parent,
            new_frames: unknown,
        })
    }

    /// Forgets everything: a checkpoint, from which on the trace can be understood without what came before.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.last.clear();
    }
}

/// Copies of one frame, each on top of the one before.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the outermost copy.
    first: u32,
    /// What the outermost copy stands on.
    parent: u32,
    frame: Frame,
}

/// The reader's side: from numbers back to frames. Its memory is bounded by the bytes of the definitions, however
/// often they say that a frame repeats.
#[derive(Debug)]
pub struct StackNodes {
    runs: Vec<Run>,
    next: u32,
}

impl Default for StackNodes {
    fn default() -> Self {
        StackNodes {
            runs: Vec::new(),
            next: EMPTY_STACK + 1,
        }
    }
}

impl StackNodes {
    /// The number that the next defined frame gets.
    pub fn next_node(&self) -> u32 {
        self.next
    }

    /// Adds the frames of a definition, as runs of equal frames from the innermost outwards. Returns `false`, and adds
    /// nothing, where its parent is unknown or the numbers run out.
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

    /// Appends the frames of a stack to `frames`, from the innermost outwards, at most `limit` of them. Returns `false`,
    /// and appends nothing, where the stack is unknown.
    pub fn expand(&self, stack: u32, limit: usize, frames: &mut Vec<Frame>) -> bool {
        if stack >= self.next {
            return false;
        }
        let enough = frames.len().saturating_add(limit);
        let mut node = stack;
        while node != EMPTY_STACK && frames.len() < enough {
            // `first` rises from run to run, and the first run begins at 1.
            let index = self.runs.partition_point(|run| run.first <= node) - 1;
            let run = self.runs[index];
            let copies = ((node - run.first) as usize + 1).min(enough - frames.len());
            frames.extend(std::iter::repeat_n(run.frame, copies));
            node = run.parent;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameKind;

    fn stack(addresses: &[u64]) -> Vec<Frame> {
        addresses
            .iter()
            .map(|&address| Frame {
                kind: FrameKind::Ra,
                address,
            })
            .collect()
    }

    /// What a definition holds: runs of equal frames.
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
        let mut defined = 0;
        for frames in &stacks {
            let inserted = tree.insert(frames).unwrap();
            if inserted.new_frames > 0 {
                defined += inserted.new_frames;
                assert!(nodes.define(inserted.parent, &runs(&frames[..inserted.new_frames])));
            }
            assert_eq!(tree.next_node(), nodes.next_node());
            let mut back = Vec::new();
            assert!(nodes.expand(inserted.stack, usize::MAX, &mut back));
            assert_eq!(&back, frames);
        }
        assert_eq!(defined, 3 + 1 + 5 + 1 + 1);
    }

    #[test]
    fn a_bomb_of_repeats_costs_what_its_bytes_do() {
        let mut nodes = StackNodes::default();
        let frame = stack(&[1])[0];
        assert!(nodes.define(EMPTY_STACK, &[(frame, 1 << 31)]));
        assert_eq!(nodes.runs.len(), 1);
        assert!(!nodes.define(EMPTY_STACK, &[(frame, 1 << 31)]), "the numbers run out");
        assert!(!nodes.define(EMPTY_STACK, &[(frame, u64::MAX), (frame, u64::MAX)]));
        assert!(!nodes.define(u32::MAX, &[(frame, 1)]), "an unknown parent");
        let mut back = Vec::new();
        assert!(nodes.expand(1 << 31, 1000, &mut back));
        assert_eq!(back.len(), 1000);
        assert!(!nodes.expand(u32::MAX, 1000, &mut back));
    }
}
