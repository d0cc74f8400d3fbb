//! Functions that end in jumps to others. If a function can be reached by jumps, the arguments at a
//! call site may not be those of the innermost function.
//!
//! Functions are identified by their start: all copies that compilers make of one function share a
//! name and a description.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::units::{Call, Function};
use crate::types::{Parts, Place};

/// Maximum number of functions that jumps are followed through, to say which one leads to them.
const MOST_BEYOND: usize = 1000;

/// The functions of a file, and the jumps between them.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// The targets of each function's jumps; `None` is an unknown target.
    to: FxHashMap<u64, Vec<Option<u64>>>,
    starts: FxHashSet<u64>,
    /// The functions that were compiled from each described entry.
    described: FxHashMap<Place, Vec<u64>>,
    /// The entries that other units know by name.
    named: FxHashMap<Vec<u8>, Place>,
    /// The entries of each function's parameters.
    parameters: FxHashMap<u64, Vec<Place>>,
}

impl Tails {
    pub(super) fn new<'f>(parts: &Parts<'_>, functions: impl Iterator<Item = &'f Function> + Clone) -> Tails {
        let mut tails = Tails::default();
        for function in functions.clone() {
            let root = parts.root(function.entry);
            tails.starts.insert(function.start());
            tails.described.entry(root).or_default().push(function.start());
            // In other languages, arguments or scopes distinguish functions of the same name.
            if parts.is_c(function.entry.0) && parts.is_external(function.entry) {
                tails.named.insert(parts.described(function.entry).0.to_vec(), root);
            }
            let parameters = function.parameters.iter().map(|one| parts.root(one.entry));
            tails.parameters.insert(function.start(), parameters.collect());
        }
        for function in functions {
            let jumps = tails.found(parts, function);
            tails
                .to
                .entry(function.start())
                .or_default()
                .extend(jumps.into_values().flatten());
        }
        tails
    }

    /// The possible targets of each jump that leaves a function, by the address after the jump.
    fn found(&self, parts: &Parts<'_>, function: &Function) -> BTreeMap<u64, Vec<Option<u64>>> {
        let mut found = BTreeMap::new();
        for call in function.calls.iter().filter(|call| call.is_tail) {
            let direct = function.leads(call).filter(|to| self.starts.contains(to));
            let to = match (direct, call.target) {
                (Some(to), _) => vec![Some(to)],
                (None, Some(target)) => match self.made_of(parts, target) {
                    [] if !parts.is_c(target.0) => vec![None],
                    made => made.iter().copied().map(Some).collect(),
                },
                (None, None) => vec![None],
            };
            found.insert(call.return_address, to);
        }
        // Jumps that debug information does not describe. Jumps to the function's own start are
        // loops.
        for jump in function.transfers.iter().filter(|one| !one.is_call) {
            if let Some(to) = jump
                .to
                .filter(|&to| to != function.start() && self.starts.contains(&to))
            {
                found.entry(jump.behind).or_insert_with(|| vec![Some(to)]);
            }
        }
        found
    }

    /// The functions that were compiled from an entry, or from the entry that it declares.
    fn made_of(&self, parts: &Parts<'_>, target: Place) -> &[u64] {
        let by_name = (parts.is_c(target.0) && parts.is_external(target))
            .then(|| self.named.get(parts.described(target).0))
            .flatten();
        let root = by_name.copied().unwrap_or_else(|| parts.root(target));
        self.described.get(&root).map_or(&[], |made| made)
    }

    /// The start of the function that a call or jump leads to, if the file contains it.
    pub(super) fn called(&self, parts: &Parts<'_>, function: &Function, call: &Call) -> Option<u64> {
        let direct = function.leads(call).filter(|to| self.starts.contains(to));
        direct.or_else(|| match call.target.map(|target| self.made_of(parts, target)) {
            Some(&[only]) => Some(only),
            _ => None,
        })
    }

    /// The index of a parameter among those of a function.
    pub(super) fn parameter(&self, function: u64, parameter: Place) -> Option<usize> {
        let mut parameters = self.parameters.get(&function)?.iter();
        parameters.position(|&one| one == parameter)
    }

    /// Whether jumps alone never lead from a function back to itself.
    pub(super) fn is_safe(&self, function: u64) -> bool {
        self.is_never_reached(function, self.jumps(function).collect())
    }

    /// Whether one jump, and no other path of jumps alone, leads from one function to another.
    pub(super) fn is_only_way(&self, from: u64, to: u64) -> bool {
        let (to_it, others): (Vec<_>, Vec<_>) = self.jumps(from).partition(|&jump| jump == Some(to));
        to_it.len() == 1 && self.is_never_reached(to, others)
    }

    /// Whether no other path of jumps from the first function leads to any function that the second
    /// one leads to by jumps.
    pub(super) fn is_only_way_beyond(&self, from: u64, to: u64) -> bool {
        let others: Vec<_> = self.jumps(from).filter(|&jump| jump != Some(to)).collect();
        let mut beyond = FxHashSet::default();
        let is_too_far = self.leads(vec![Some(to)], |one| {
            beyond.extend(one);
            beyond.len() > MOST_BEYOND
        });
        !is_too_far && !self.leads(others, |one| one.is_none_or(|one| beyond.contains(&one)))
    }

    /// Whether a function jumps to known functions.
    pub(super) fn leads_on(&self, function: u64) -> bool {
        self.jumps(function).any(|to| to.is_some())
    }

    fn jumps(&self, function: u64) -> impl Iterator<Item = Option<u64>> {
        self.to.get(&function).into_iter().flatten().copied()
    }

    /// Whether none of these jumps leads to a function, directly or through others.
    fn is_never_reached(&self, function: u64, next: Vec<Option<u64>>) -> bool {
        !self.leads(next, |to| to.is_none_or(|to| to == function))
    }

    /// Whether one of these jumps leads to such a function, directly or through others.
    fn leads(&self, mut next: Vec<Option<u64>>, mut is_it: impl FnMut(Option<u64>) -> bool) -> bool {
        let mut seen = FxHashSet::default();
        while let Some(to) = next.pop() {
            if is_it(to) {
                return true;
            }
            if let Some(to) = to.filter(|&to| seen.insert(to)) {
                next.extend(self.jumps(to));
            }
        }
        false
    }
}
