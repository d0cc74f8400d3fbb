//! Functions that end in jumps to others. What a call passed is not what the innermost of them was called with, if it is reached by jumps.

use rustc_hash::{FxHashMap, FxHashSet};

use super::units::Function;
use crate::types::{Parts, Place};

/// The jumps between the functions of a file.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// Where each function jumps to; `None` is somewhere that is not known.
    to: FxHashMap<Place, Vec<Option<Place>>>,
}

impl Tails {
    pub(super) fn new<'f>(parts: &Parts<'_>, functions: impl Iterator<Item = &'f Function> + Clone) -> Tails {
        // Other units know a function by a declaration.
        let mut defined: FxHashMap<&[u8], Place> = FxHashMap::default();
        for function in functions.clone().filter(|function| parts.is_external(function.entry)) {
            defined.insert(parts.described(function.entry).0, parts.root(function.entry));
        }
        let definition = |target: Place| {
            let known = parts
                .is_external(target)
                .then(|| defined.get(parts.described(target).0))
                .flatten();
            known.copied().unwrap_or_else(|| parts.root(target))
        };
        let mut tails = Tails::default();
        for function in functions {
            let jumps = function.calls.iter().filter(|call| call.is_tail);
            let jumps = jumps.map(|call| call.target.map(definition));
            tails.to.entry(parts.root(function.entry)).or_default().extend(jumps);
        }
        tails
    }

    /// Whether a function that was called is not reached once more by jumps alone.
    pub(super) fn is_safe(&self, function: Place) -> bool {
        let mut seen = FxHashSet::default();
        let mut next = vec![function];
        while let Some(at) = next.pop() {
            for &to in self.to.get(&at).into_iter().flatten() {
                let Some(to) = to.filter(|&to| to != function) else {
                    return false;
                };
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        true
    }
}
