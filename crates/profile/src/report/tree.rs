//! The tree of functions, from the tree of places in code.

use crate::fold::{LabelId, LabelKind, ROOT, Tree};
use crate::stacks::{StackFrame, Stacks};
use crate::symbolize::{Location, Names, Origin};

/// Folds the stacks that have samples.
pub(super) fn of_functions(stacks: &Stacks, names: &Names) -> Tree {
    // The stacks are limited already.
    let mut tree = Tree::with_limit(usize::MAX);
    let mut labels: Vec<Option<Vec<LabelId>>> = vec![None; names.locations().len()];
    let totals = stacks.totals();
    let mut nodes = vec![ROOT; stacks.len() + 1];
    for stack in stacks.ids().filter(|stack| totals[stack.index()] > 0) {
        let caller = nodes[stacks.parent(stack).index()];
        let node = match stacks.frame(stack) {
            StackFrame::Marker(marker) => {
                let label = tree.label(stacks.marker(marker), LabelKind::Marker);
                tree.call(caller, label)
            }
            StackFrame::Location(id) => {
                let slot = &mut labels[id.index()];
                let calls = slot.get_or_insert_with(|| labels_of(&mut tree, &names.locations()[id.index()]));
                calls.iter().fold(caller, |caller, &label| tree.call(caller, label))
            }
        };
        nodes[stack.index()] = node;
        tree.count(node, stacks.samples(stack));
    }
    tree
}

/// The labels of a location's calls, the outermost first.
fn labels_of(tree: &mut Tree, location: &Location) -> Vec<LabelId> {
    let kind = match location.origin {
        Origin::Kernel => LabelKind::Kernel,
        Origin::File | Origin::Generated => LabelKind::Function,
    };
    let calls = location.calls.iter().rev();
    calls.map(|call| tree.label(&call.function, kind)).collect()
}
