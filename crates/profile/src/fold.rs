//! Stacks folded into a tree of calls.

use std::collections::HashMap;

use crate::edges::Edges;

use crate::clean::is_active;

/// The kind of a frame of the tree, for drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LabelKind {
    /// A function of a program.
    Function,
    /// A function of the kernel.
    Kernel,
    /// Not a function: a process, a thread, a remark in brackets.
    Marker,
}

/// The text of a frame in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// The text: without semicolons, control characters, or spaces at either end, never empty, and
    /// without an ending that could be taken for a count. So folded stacks can be written without
    /// escaping.
    pub text: String,
    /// What it is.
    pub kind: LabelKind,
}

/// A [`Label`], by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(u32);

/// A tree of calls: the outermost at the root, with the samples that ended in each.
///
/// It takes memory per distinct path, not per sample. Deep recursion with many call sites has more
/// paths than fit into any memory, so there is a limit: frames that do not fit are counted where
/// their path leaves the tree, under [`LEFT_OUT`].
#[derive(Debug)]
pub struct Tree {
    labels: Vec<Label>,
    label_ids: HashMap<Label, LabelId>,
    nodes: Vec<Node>,
    edges: Edges,
    max_nodes: usize,
    left_out: LabelId,
    cut: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    label: LabelId,
    /// Samples that ended here.
    samples: u64,
}

/// The frame that represents the frames that did not fit into the tree.
pub const LEFT_OUT: &str = "[frames left out]";

/// About 100 MB of tree. A recording of an hour of usual programs has some 100,000 paths.
const MAX_NODES: usize = 4 << 20;

/// The root: it has no label of its own and is its own parent.
pub(crate) const ROOT: u32 = 0;

impl Default for Tree {
    fn default() -> Self {
        Tree::with_limit(MAX_NODES)
    }
}

impl Tree {
    pub(crate) fn with_limit(max_nodes: usize) -> Tree {
        let mut tree = Tree {
            labels: Vec::new(),
            label_ids: HashMap::new(),
            nodes: Vec::new(),
            edges: Edges::default(),
            max_nodes,
            left_out: LabelId(0),
            cut: 0,
        };
        tree.left_out = tree.label(LEFT_OUT, LabelKind::Marker);
        tree.nodes.push(Node {
            parent: ROOT,
            label: tree.left_out,
            samples: 0,
        });
        tree
    }

    /// The label with this text, after replacing everything that may not occur in a folded stack.
    pub fn label(&mut self, text: &str, kind: LabelKind) -> LabelId {
        let label = Label {
            text: escape(text),
            kind,
        };
        if let Some(&id) = self.label_ids.get(&label) {
            return id;
        }
        let id = LabelId(self.labels.len() as u32);
        self.labels.push(label.clone());
        self.label_ids.insert(label, id);
        id
    }

    /// The label with this number.
    pub fn label_of(&self, id: LabelId) -> &Label {
        &self.labels[id.0 as usize]
    }

    /// Counts a stack, outermost frame first.
    pub fn add(&mut self, path: impl IntoIterator<Item = LabelId>, samples: u64) {
        let mut at = ROOT;
        for label in path {
            at = match self.find(at, label) {
                Some(child) => child,
                None if self.nodes.len() < self.max_nodes => self.add_child(at, label),
                None => {
                    self.cut += samples;
                    at = match self.find(at, self.left_out) {
                        Some(child) => child,
                        None => self.add_child(at, self.left_out),
                    };
                    break;
                }
            };
        }
        self.count(at, samples);
    }

    /// The node of a call below a node.
    pub(crate) fn call(&mut self, caller: u32, label: LabelId) -> u32 {
        match self.find(caller, label) {
            Some(child) => child,
            None => self.add_child(caller, label),
        }
    }

    /// Counts samples that ended in a node.
    pub(crate) fn count(&mut self, node: u32, samples: u64) {
        self.nodes[node as usize].samples += samples;
    }

    fn find(&self, parent: u32, label: LabelId) -> Option<u32> {
        let is_it = |child: u32| {
            let child = &self.nodes[child as usize];
            child.parent == parent && child.label == label
        };
        self.edges.find(parent, label.0, is_it)
    }

    fn add_child(&mut self, parent: u32, label: LabelId) -> u32 {
        let child = self.nodes.len() as u32;
        self.nodes.push(Node {
            parent,
            label,
            samples: 0,
        });
        let nodes = &self.nodes;
        self.edges.insert(child, |child| {
            let child = &nodes[child as usize];
            (child.parent, child.label.0)
        });
        child
    }

    /// The number of samples with frames that did not fit.
    pub fn cut_samples(&self) -> u64 {
        self.cut
    }

    /// The number of frames in the tree.
    pub fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with every path on which at least one sample ended, outermost frame first, and
    /// the number of these samples. The paths are ordered by the texts of their labels, outermost
    /// first.
    ///
    /// A call of fewer than `min_total` samples is not entered: its samples count for its caller.
    /// With 0 every path is passed as it was counted.
    pub fn for_each_path<E>(
        &self,
        min_total: u64,
        mut visit: impl FnMut(&[LabelId], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let totals = self.totals();
        let mut samples: Vec<u64> = self.nodes.iter().map(|node| node.samples).collect();
        let is_kept = |index: usize| totals[index] >= min_total;
        for index in (1..self.nodes.len()).rev().filter(|&index| !is_kept(index)) {
            samples[self.nodes[index].parent as usize] += samples[index];
        }
        let children = Children::of(self);
        let mut path = Vec::new();
        // Node and its depth; an explicit stack, because recursion in a program may be deeper than
        // ours could be.
        let mut pending = vec![(ROOT, 0)];
        while let Some((node, depth)) = pending.pop() {
            if node != ROOT {
                path.truncate(depth - 1);
                path.push(self.nodes[node as usize].label);
            }
            if samples[node as usize] > 0 && node != ROOT {
                visit(&path, samples[node as usize])?;
            }
            let next = children.sorted(node).iter().rev();
            pending.extend(
                next.filter(|&&child| is_kept(child as usize))
                    .map(|&child| (child, depth + 1)),
            );
        }
        Ok(())
    }

    /// The smallest `min_total` with which [`Tree::for_each_path`] enters at most `frames` calls.
    pub(crate) fn min_total_for(&self, frames: usize) -> u64 {
        let mut totals = self.totals().split_off(1);
        if totals.len() <= frames {
            return 0;
        }
        let (_, first_left_out, _) = totals.select_nth_unstable_by(frames, |a, b| b.cmp(a));
        *first_left_out + 1
    }

    /// Samples that ended in each node or below it.
    fn totals(&self) -> Vec<u64> {
        let mut totals: Vec<u64> = self.nodes.iter().map(|node| node.samples).collect();
        // A child always comes after its parent.
        for index in (1..self.nodes.len()).rev() {
            totals[self.nodes[index].parent as usize] += totals[index];
        }
        totals
    }
}

/// The children of all nodes, in the order of their labels.
struct Children {
    /// The start of each node's children in `nodes`; one more entry at the end.
    starts: Vec<usize>,
    nodes: Vec<u32>,
}

impl Children {
    fn of(tree: &Tree) -> Children {
        let mut by_text: Vec<u32> = (0..tree.labels.len() as u32).collect();
        by_text.sort_by_key(|&label| {
            let label = &tree.labels[label as usize];
            (&label.text, label.kind)
        });
        let mut ranks = vec![0_u32; by_text.len()];
        for (rank, &label) in by_text.iter().enumerate() {
            ranks[label as usize] = rank as u32;
        }
        let mut nodes: Vec<u32> = (1..tree.nodes.len() as u32).collect();
        nodes.sort_unstable_by_key(|&node| {
            let node = &tree.nodes[node as usize];
            (node.parent, ranks[node.label.0 as usize])
        });
        let mut starts = vec![0; tree.nodes.len() + 1];
        for &node in &nodes {
            starts[tree.nodes[node as usize].parent as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Children { starts, nodes }
    }

    fn sorted(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.nodes[self.starts[node]..self.starts[node + 1]]
    }
}

/// Replaces characters that have a meaning in folded stacks, and those that XML cannot contain.
fn escape(text: &str) -> String {
    let mut escaped: String = text
        .trim()
        .chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => ' ',
            c if is_active(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect();
    // Control characters at the ends have become spaces.
    if escaped.trim().len() != escaped.len() {
        escaped = escaped.trim().to_string();
    }
    if escaped.is_empty() {
        return "[unnamed]".to_string();
    }
    // Readers of folded stacks take one or two last words of digits for counts, and `# ` for a
    // comment.
    if let Some((_, last)) = escaped.rsplit_once(' ')
        && last.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        let space = escaped.len() - last.len() - 1;
        escaped.replace_range(space..=space, "_");
    }
    if escaped.starts_with("# ") {
        escaped.replace_range(1..2, "_");
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(tree: &mut Tree, text: &str) -> Vec<LabelId> {
        text.split_ascii_whitespace()
            .map(|name| tree.label(name, LabelKind::Function))
            .collect()
    }

    fn add(tree: &mut Tree, text: &str, samples: u64) {
        let path = path(tree, text);
        tree.add(path, samples);
    }

    fn lines(tree: &Tree, min_total: u64) -> Vec<String> {
        let mut lines = Vec::new();
        tree.for_each_path(min_total, |path, samples| {
            let names: Vec<_> = path.iter().map(|&id| tree.label_of(id).text.as_str()).collect();
            lines.push(format!("{} {samples}", names.join(";")));
            Ok::<(), ()>(())
        })
        .unwrap();
        lines
    }

    #[test]
    fn equal_stacks_are_one_path_in_the_order_of_names() {
        let mut tree = Tree::default();
        add(&mut tree, "main b", 1);
        add(&mut tree, "main a x", 2);
        add(&mut tree, "main", 4);
        add(&mut tree, "main b", 8);
        add(&mut tree, "init", 1);
        assert_eq!(lines(&tree, 0), ["init 1", "main 4", "main;a;x 2", "main;b 9"]);
        assert_eq!(tree.len(), 5);
    }

    #[test]
    fn calls_below_the_minimum_count_for_their_caller() {
        let mut tree = Tree::default();
        add(&mut tree, "main a x", 1);
        add(&mut tree, "main a y", 2);
        add(&mut tree, "main b z", 10);
        assert_eq!(lines(&tree, 3), ["main;a 3", "main;b;z 10"]);
        assert_eq!(lines(&tree, 4), ["main 3", "main;b;z 10"]);
        assert_eq!(lines(&tree, 100), Vec::<String>::new());
    }

    #[test]
    fn the_minimum_keeps_as_many_calls_as_asked_for() {
        let mut tree = Tree::default();
        add(&mut tree, "main a x", 1);
        add(&mut tree, "main a y", 2);
        add(&mut tree, "main b z", 10);
        let kept = |frames| {
            let mut found = std::collections::BTreeSet::new();
            for line in lines(&tree, tree.min_total_for(frames)) {
                let path: Vec<&str> = line.split(' ').next().unwrap().split(';').collect();
                found.extend((1..=path.len()).map(|depth| path[..depth].join(";")));
            }
            found.len()
        };
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(kept), [0, 1, 1, 3, 4, 5, 6, 6]);
    }

    #[test]
    fn deep_recursion_takes_a_node_a_frame_once() {
        let mut tree = Tree::default();
        let frame = tree.label("f", LabelKind::Function);
        for depth in 4_000..5_000 {
            tree.add(std::iter::repeat_n(frame, depth), 1);
        }
        assert_eq!(tree.len(), 4_999);
        let mut counted = 0;
        tree.for_each_path(0, |path, samples| {
            assert!((4_000..5_000).contains(&path.len()));
            counted += samples;
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(counted, 1_000);
    }

    #[test]
    fn a_full_tree_still_counts_every_sample() {
        let mut tree = Tree::with_limit(50);
        let labels = [
            tree.label("a", LabelKind::Function),
            tree.label("b", LabelKind::Function),
        ];
        for sample in 0..4_096_usize {
            tree.add((0..12).map(|bit| labels[sample >> bit & 1]), 1);
        }
        assert!(tree.len() < 100, "{} nodes", tree.len());
        assert!(tree.cut_samples() > 0);
        let all = lines(&tree, 0);
        let counts: u64 = all
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(counts, 4_096);
        assert!(all.iter().any(|line| line.contains(LEFT_OUT)));
    }

    #[test]
    fn labels_can_stand_in_folded_stacks() {
        assert_eq!(escape("foo<[u8; 8]>"), "foo<[u8: 8]>");
        assert_eq!(escape(" a\nb\r\n"), "a b");
        assert_eq!(escape("\u{1}\u{7f}"), "[unnamed]");
        assert_eq!(escape(""), "[unnamed]");
        assert_eq!(escape("closure 12"), "closure_12");
        assert_eq!(escape("worker 1.5"), "worker_1.5");
        assert_eq!(escape("worker 12 "), "worker_12");
        assert_eq!(escape("operator new(unsigned long)"), "operator new(unsigned long)");
        assert_eq!(escape("# comment"), "#_comment");
        assert_eq!(escape("\u{ffff}é"), "\u{fffd}é");
        assert_eq!(escape("12"), "12");
    }
}
