//! Folded stacks, of which none is left out.

use std::io::{self, Write};

use backtrail_profile::Tree;

use crate::call_tree::{CallTree, Function};
use crate::samples::Samples;

pub(crate) fn write(samples: &Samples, out: &mut dyn Write) -> io::Result<()> {
    let mut labels = Tree::default();
    // Functions of the same name are one here, whatever their modules.
    let tree = CallTree::of(samples, true, |function| {
        let label = labels.label(&function.name, function.kind);
        Function {
            name: labels.label_of(label).text.clone(),
            module: String::new(),
            kind: function.kind,
        }
    });
    let name = |node: u32| tree.functions[tree.nodes[node as usize].1 as usize].name.as_str();
    let mut counts = vec![0_u64; tree.nodes.len()];
    for (row, &node) in samples.rows.iter().zip(&tree.rows) {
        let count = &mut counts[node as usize];
        *count = count.saturating_add(row.weight);
    }
    // By the texts of the stack from its root: first children in order, then the walk.
    let mut children: Vec<u32> = (1..tree.nodes.len() as u32).collect();
    children.sort_by_key(|&node| {
        let (parent, function) = tree.nodes[node as usize];
        (parent, name(node), tree.functions[function as usize].kind)
    });
    let mut starts = vec![0_usize; tree.nodes.len() + 1];
    for &child in &children {
        starts[tree.nodes[child as usize].0 as usize + 1] += 1;
    }
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    let mut line = String::new();
    // A node, and the length of its caller's line.
    let mut pending = vec![(0_u32, 0_usize)];
    while let Some((node, length)) = pending.pop() {
        line.truncate(length);
        if node != 0 {
            if length > 0 {
                line.push(';');
            }
            line.push_str(name(node));
        }
        let count = counts[node as usize];
        if count > 0 && node != 0 {
            writeln!(out, "{line} {count}")?;
        }
        let range = starts[node as usize]..starts[node as usize + 1];
        pending.extend(children[range].iter().rev().map(|&child| (child, line.len())));
    }
    Ok(())
}
