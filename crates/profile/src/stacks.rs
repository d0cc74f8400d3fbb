//! The distinct stacks of a recording as a tree of frames, with the samples that ended in each.

use std::collections::HashMap;

use crate::edges::Edges;
use crate::symbolize::LocationId;

/// A stack, by its number: its innermost frame is a node of the tree, its callers are the node's
/// parents. Parents have lower numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

impl StackId {
    /// The stack without frames.
    pub const EMPTY: StackId = StackId(0);

    /// Stacks are numbered from 0, the empty one, without gaps.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn of_index(index: u32) -> StackId {
        StackId(index)
    }
}

/// A frame of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackFrame {
    /// Code: one frame of the stack, with the calls inlined there.
    Location(LocationId),
    /// Not code: a process, a thread or a remark in brackets; a number for [`Stacks::marker`].
    Marker(u32),
}

/// Frames with this bit are markers.
const MARKER: u32 = 1 << 31;

impl StackFrame {
    fn number(self) -> u32 {
        match self {
            StackFrame::Location(location) => location.index() as u32,
            StackFrame::Marker(marker) => marker | MARKER,
        }
    }

    fn of_number(number: u32) -> StackFrame {
        match number & MARKER {
            0 => StackFrame::Location(LocationId::of_index(number)),
            _ => StackFrame::Marker(number & !MARKER),
        }
    }
}

/// All distinct stacks. They take memory per distinct frame of the tree, not per sample.
#[derive(Debug)]
pub struct Stacks {
    parents: Vec<u32>,
    frames: Vec<u32>,
    samples: Vec<u64>,
    edges: Edges,
    markers: Vec<String>,
    marker_numbers: HashMap<String, u32>,
    most: usize,
    is_cut: bool,
}

/// A step of [`Stacks::walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frames that follow until the matching [`Step::Leave`] are callees of this stack.
    Enter(StackId),
    /// All callees of this stack have been passed.
    Leave(StackId),
}

impl Stacks {
    /// At most this many frames are added.
    pub(crate) fn with_limit(most: usize) -> Stacks {
        Stacks {
            parents: vec![0],
            frames: vec![MARKER],
            samples: vec![0],
            edges: Edges::default(),
            markers: Vec::new(),
            marker_numbers: HashMap::new(),
            most: most.min(MARKER as usize),
            is_cut: false,
        }
    }

    /// The number of frames in the tree.
    pub fn len(&self) -> usize {
        self.parents.len() - 1
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether frames had no room.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// All stacks but the empty one; callers come before callees.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = StackId> + use<> {
        (1..self.parents.len() as u32).map(StackId)
    }

    /// The stack of the caller; the empty one for an outermost frame.
    pub fn parent(&self, stack: StackId) -> StackId {
        StackId(self.parents[stack.index()])
    }

    /// The innermost frame, which the empty stack does not have.
    pub fn frame(&self, stack: StackId) -> StackFrame {
        StackFrame::of_number(self.frames[stack.index()])
    }

    /// Samples with exactly this stack.
    pub fn samples(&self, stack: StackId) -> u64 {
        self.samples[stack.index()]
    }

    /// The text of a marker.
    pub fn marker(&self, number: u32) -> &str {
        &self.markers[number as usize]
    }

    /// Samples of each stack and of all that it called, by [`StackId::index`].
    pub fn totals(&self) -> Vec<u64> {
        let mut totals = self.samples.clone();
        for stack in self.ids().rev() {
            totals[self.parents[stack.index()] as usize] += totals[stack.index()];
        }
        totals
    }

    /// Enters and leaves every frame of the tree, callers around callees.
    pub fn walk(&self, mut visit: impl FnMut(Step)) {
        // Later siblings first, so that the first comes out on top.
        let mut first_child = vec![0_u32; self.parents.len()];
        let mut next_sibling = vec![0_u32; self.parents.len()];
        for stack in self.ids().rev() {
            let parent = self.parents[stack.index()] as usize;
            next_sibling[stack.index()] = first_child[parent];
            first_child[parent] = stack.0;
        }
        let mut at = first_child[0];
        while at != 0 {
            visit(Step::Enter(StackId(at)));
            if first_child[at as usize] != 0 {
                at = first_child[at as usize];
                continue;
            }
            loop {
                visit(Step::Leave(StackId(at)));
                if next_sibling[at as usize] != 0 {
                    at = next_sibling[at as usize];
                    break;
                }
                at = self.parents[at as usize];
                if at == 0 {
                    break;
                }
            }
        }
    }

    /// The number of a marker with this text.
    pub(crate) fn marker_of(&mut self, text: &str) -> StackFrame {
        if let Some(&number) = self.marker_numbers.get(text) {
            return StackFrame::Marker(number);
        }
        let number = self.markers.len() as u32;
        self.markers.push(text.to_owned());
        self.marker_numbers.insert(text.to_owned(), number);
        StackFrame::Marker(number)
    }

    /// The stack of a frame called by another stack; `None` if it is new and there is no room.
    pub(crate) fn call(&mut self, caller: StackId, frame: StackFrame) -> Option<StackId> {
        match self.find(caller, frame) {
            Some(found) => Some(found),
            None if self.len() < self.most => Some(self.add(caller, frame)),
            None => {
                self.is_cut = true;
                None
            }
        }
    }

    /// The same for a frame that needs no room: there are few of its kind.
    pub(crate) fn call_marker(&mut self, caller: StackId, marker: StackFrame) -> StackId {
        match self.find(caller, marker) {
            Some(found) => found,
            None => self.add(caller, marker),
        }
    }

    fn find(&self, caller: StackId, frame: StackFrame) -> Option<StackId> {
        let number = frame.number();
        let is_it = |child: u32| {
            let child = child as usize;
            self.parents[child] == caller.0 && self.frames[child] == number
        };
        // A chain of calls is mostly added at once: the next frame in memory costs nearly nothing.
        let next = caller.0.wrapping_add(1);
        if (next as usize) < self.parents.len() && is_it(next) {
            return Some(StackId(next));
        }
        self.edges.find(caller.0, number, is_it).map(StackId)
    }

    fn add(&mut self, caller: StackId, frame: StackFrame) -> StackId {
        let number = self.parents.len() as u32;
        self.parents.push(caller.0);
        self.frames.push(frame.number());
        self.samples.push(0);
        let (parents, frames) = (&self.parents, &self.frames);
        self.edges
            .insert(number, |child| (parents[child as usize], frames[child as usize]));
        StackId(number)
    }

    /// Counts samples of a stack.
    pub(crate) fn count(&mut self, stack: StackId, samples: u64) {
        let count = &mut self.samples[stack.index()];
        *count = count.saturating_add(samples);
    }

    /// Frees what only adding needs.
    pub(crate) fn close(&mut self) {
        self.edges = Edges::default();
        self.marker_numbers = HashMap::new();
        self.parents.shrink_to_fit();
        self.frames.shrink_to_fit();
        self.samples.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(stacks: &mut Stacks, frames: &[u32]) -> Option<StackId> {
        let mut frames = frames.iter();
        frames.try_fold(StackId::EMPTY, |at, &frame| {
            stacks.call(at, StackFrame::Location(LocationId::of_index(frame)))
        })
    }

    #[test]
    fn shared_callers_are_stored_once_and_totals_include_callees() {
        let mut stacks = Stacks::with_limit(5);
        for (frames, times) in [(&[1, 2, 3][..], 4), (&[1, 2, 4], 2), (&[1, 2], 1), (&[2], 8)] {
            let id = stack(&mut stacks, frames).unwrap();
            (0..times).for_each(|_| stacks.count(id, 1));
        }
        assert_eq!(stacks.len(), 5);
        assert_eq!(stack(&mut stacks, &[1, 2, 5]), None, "no room");
        assert_eq!(stack(&mut stacks, &[1, 2, 4]).map(|id| stacks.samples(id)), Some(2));
        assert_eq!(stacks.totals(), [15, 7, 7, 4, 2, 8]);
        let late = stacks.marker_of("[late]");
        let marked = stacks.call_marker(StackId::EMPTY, late);
        assert_eq!(stacks.frame(marked), late);
        assert_eq!(stacks.marker_of("[late]"), late);
    }

    #[test]
    fn a_walk_leaves_what_it_enters_in_between_its_callers() {
        let mut stacks = Stacks::with_limit(100);
        for frames in [&[1, 2, 3][..], &[2], &[1, 4], &[1, 2, 5, 6]] {
            stack(&mut stacks, frames);
        }
        let mut open = Vec::new();
        let mut entered = 0;
        stacks.walk(|step| match step {
            Step::Enter(id) => {
                assert_eq!(open.last().copied().unwrap_or(StackId::EMPTY), stacks.parent(id));
                open.push(id);
                entered += 1;
            }
            Step::Leave(id) => assert_eq!(open.pop(), Some(id)),
        });
        assert!(open.is_empty());
        assert_eq!(entered, stacks.len());
        Stacks::with_limit(1).walk(|step| panic!("{step:?} of an empty tree"));
    }
}
