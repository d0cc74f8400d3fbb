//! Children that do with another's dict: what a unit has of its own, the other has too, and more that the unit gives no names to.
//!
//! The parent has types of every unit; a dict of a few units may have some of each as well. So a unit with `struct a` and one with `struct a`
//! and `struct b` share one dict, unless the first one means something else by `struct b`, or only declares it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::classes::{ClassId, Classes, NameId};
use super::emit::Child;

/// Dicts that are tried for a unit. Most units find theirs at once.
const TRIED: usize = 32;

/// For each child the one whose types do for it, itself in most cases. What `is_bound` says of is kept as it is.
pub(super) fn hosts(children: &[Child<'_>], classes: &Classes, is_bound: &dyn Fn(usize) -> bool) -> Vec<usize> {
    let mut hosts: Vec<usize> = (0..children.len()).collect();
    let mut order: Vec<usize> = hosts
        .iter()
        .copied()
        .filter(|&unit| !children[unit].is_empty())
        .collect();
    order.sort_by_key(|&unit| std::cmp::Reverse(children[unit].classes().len()));
    // Those that have a class and are their own hosts, the largest first.
    let mut having: FxHashMap<ClassId, Vec<usize>> = FxHashMap::default();
    for unit in order {
        let own = children[unit].classes();
        let rarest = own
            .iter()
            .map(|class| having.get(class).map_or(&[][..], Vec::as_slice))
            .min_by_key(|with| with.len());
        let mut names = None;
        let host = rarest.unwrap_or_default().iter().take(TRIED).copied().find(|&host| {
            let names = names.get_or_insert_with(|| names_of(unit, classes));
            does(children[host].classes(), own, classes, names)
        });
        match host.filter(|_| !is_bound(unit)) {
            Some(host) => hosts[unit] = host,
            None => own
                .iter()
                .for_each(|&class| having.entry(class).or_default().push(unit)),
        }
    }
    hosts
}

/// Whether all of `own` is among `host`'s, and nothing else there has one of these names.
fn does(host: &[ClassId], own: &[ClassId], classes: &Classes, names: &FxHashSet<NameId>) -> bool {
    own.iter().all(|class| host.binary_search(class).is_ok())
        && host.iter().all(|class| {
            let name = classes.all[*class as usize].name;
            name.is_none_or(|name| !names.contains(&name)) || own.binary_search(class).is_ok()
        })
}

/// All names that a unit gives to types, or declares.
fn names_of(unit: usize, classes: &Classes) -> FxHashSet<NameId> {
    let classes_of = classes.of[unit].iter();
    classes_of
        .filter_map(|&class| classes.all[class as usize].name)
        .collect()
}
