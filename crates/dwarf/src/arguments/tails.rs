//! Functions that end in jumps to others. What a call passed is not what the innermost of them was called with, if it is reached by jumps.

use rustc_hash::{FxHashMap, FxHashSet};

use super::units::Function;
use crate::types::{Parts, Place};

/// The jumps between the functions of a file.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// Where each function jumps to; `None` is somewhere that is not known.
    to: FxHashMap<Place, Vec<Option<Place>>>,
    /// The functions that have code: those that others know by name, and all.
    named: FxHashMap<Vec<u8>, Place>,
    defined: FxHashSet<Place>,
}

impl Tails {
    pub(super) fn new<'f>(parts: &Parts<'_>, functions: impl Iterator<Item = &'f Function> + Clone) -> Tails {
        let mut tails = Tails::default();
        for function in functions.clone() {
            let root = parts.root(function.entry);
            tails.defined.insert(root);
            if parts.is_external(function.entry) {
                tails.named.insert(parts.described(function.entry).0.to_vec(), root);
            }
        }
        for function in functions {
            let jumps = function.calls.iter().filter(|call| call.is_tail);
            let known = |target| tails.definition(parts, target).unwrap_or_else(|| parts.root(target));
            let jumps: Vec<Option<Place>> = jumps.map(|call| call.target.map(known)).collect();
            tails.to.entry(parts.root(function.entry)).or_default().extend(jumps);
        }
        tails
    }

    /// The function with code that a call means, which other units know by a declaration; `None` where the file does not have it.
    pub(super) fn definition(&self, parts: &Parts<'_>, target: Place) -> Option<Place> {
        let by_name = parts
            .is_external(target)
            .then(|| self.named.get(parts.described(target).0))
            .flatten();
        let root = parts.root(target);
        by_name
            .copied()
            .or_else(|| self.defined.contains(&root).then_some(root))
    }

    /// Whether a function that was called is not reached once more by jumps alone.
    pub(super) fn is_safe(&self, function: Place) -> bool {
        self.is_never_reached(function, self.jumps(function).collect())
    }

    /// Whether there is one jump from a function to another, and no other way by jumps alone.
    pub(super) fn is_only_way(&self, from: Place, to: Place) -> bool {
        let (to_it, others): (Vec<_>, Vec<_>) = self.jumps(from).partition(|&jump| jump == Some(to));
        to_it.len() == 1 && self.is_never_reached(to, others)
    }

    fn jumps(&self, function: Place) -> impl Iterator<Item = Option<Place>> {
        self.to.get(&function).into_iter().flatten().copied()
    }

    /// Whether none of these jumps leads to a function, be it by others.
    fn is_never_reached(&self, function: Place, mut next: Vec<Option<Place>>) -> bool {
        let mut seen = FxHashSet::default();
        while let Some(to) = next.pop() {
            let Some(to) = to.filter(|&to| to != function) else {
                return false;
            };
            if seen.insert(to) {
                next.extend(self.jumps(to));
            }
        }
        true
    }
}
