//! The tree of calls: stacks as functions with inlined calls, without addresses.

use backtrail_profile::{LabelKind, Origin};
use rustc_hash::FxHashMap;

use crate::samples::{Frame, Samples};
use crate::strings::Table;

/// What a node of the tree calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Empty for remarks and processes.
    pub(crate) module: String,
    pub(crate) kind: LabelKind,
}

/// The calls of all samples.
#[derive(Debug)]
pub(crate) struct CallTree {
    pub(crate) functions: Vec<Function>,
    /// The caller's node and the function; the first is the root, and callers come first.
    pub(crate) nodes: Vec<(u32, u32)>,
    /// The innermost node of each row of the samples.
    pub(crate) rows: Vec<u32>,
}

impl CallTree {
    /// The calls; with `by_process`, below a node with the process's name. Functions that `change`
    /// makes equal are one.
    pub(crate) fn of(samples: &Samples, by_process: bool, change: impl FnMut(Function) -> Function) -> CallTree {
        let mut builder = Builder::new(samples, change);
        let rows = samples.rows.iter();
        let rows = rows.map(|row| {
            let process = by_process.then(|| samples.process_of(row.thread).name.as_str());
            let root = process.map_or(0, |name| builder.process(name));
            builder.node(root, row.node)
        });
        let rows = rows.collect();
        CallTree {
            rows,
            functions: builder.functions.values().to_vec(),
            nodes: builder.nodes,
        }
    }

    /// The functions of a stack from the innermost outwards.
    pub(crate) fn path(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let (parent, function) = self.nodes[at as usize];
            (at != 0).then(|| {
                at = parent;
                function
            })
        })
    }
}

struct Builder<'s, C> {
    change: C,
    samples: &'s Samples,
    functions: Table<Function>,
    /// The functions of each frame, outermost first.
    of_frame: Vec<Vec<u32>>,
    nodes: Vec<(u32, u32)>,
    children: FxHashMap<(u32, u32), u32>,
    processes: FxHashMap<String, u32>,
    /// The node of a stack below a root.
    known: FxHashMap<(u32, u32), u32>,
}

impl<'s, C: FnMut(Function) -> Function> Builder<'s, C> {
    fn new(samples: &'s Samples, mut change: C) -> Builder<'s, C> {
        let mut functions = Table::default();
        let of_frame = samples.frames.iter().map(|frame| match frame {
            Frame::Marker(text) => vec![functions.of(change(Function {
                name: text.clone(),
                module: String::new(),
                kind: LabelKind::Marker,
            }))],
            Frame::Code { location, .. } => {
                let location = &samples.locations[*location as usize];
                let kind = match location.origin {
                    Origin::Kernel => LabelKind::Kernel,
                    Origin::File | Origin::Generated => LabelKind::Function,
                };
                let calls = location.calls.iter().rev();
                let calls = calls.map(|call| {
                    functions.of(change(Function {
                        name: call.function.clone(),
                        module: location.module.clone(),
                        kind,
                    }))
                });
                calls.collect()
            }
        });
        Builder {
            samples,
            of_frame: of_frame.collect(),
            change,
            functions,
            nodes: vec![(0, 0)],
            children: FxHashMap::default(),
            processes: FxHashMap::default(),
            known: FxHashMap::default(),
        }
    }

    fn process(&mut self, name: &str) -> u32 {
        if let Some(&node) = self.processes.get(name) {
            return node;
        }
        let function = self.functions.of((self.change)(Function {
            name: name.to_owned(),
            module: String::new(),
            kind: LabelKind::Marker,
        }));
        let node = self.child(0, function);
        self.processes.insert(name.to_owned(), node);
        node
    }

    /// The node of a stack below a root. Stacks may be deeper than recursion could be.
    fn node(&mut self, root: u32, stack: u32) -> u32 {
        let mut new = Vec::new();
        let mut at = stack;
        let mut node = loop {
            if at == 0 {
                break root;
            }
            if let Some(&node) = self.known.get(&(root, at)) {
                break node;
            }
            new.push(at);
            at = self.samples.nodes[at as usize].parent;
        };
        while let Some(at) = new.pop() {
            let frame = self.samples.nodes[at as usize].frame as usize;
            for index in 0..self.of_frame[frame].len() {
                node = self.child(node, self.of_frame[frame][index]);
            }
            self.known.insert((root, at), node);
        }
        node
    }

    fn child(&mut self, parent: u32, function: u32) -> u32 {
        let nodes = &mut self.nodes;
        *self.children.entry((parent, function)).or_insert_with(|| {
            nodes.push((parent, function));
            nodes.len() as u32 - 1
        })
    }
}
