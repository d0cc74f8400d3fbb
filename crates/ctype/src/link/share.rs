//! Children that do with another's dict: what a unit has of its own, the other has too, and more
//! that the unit gives no names to.
//!
//! The parent has types of every unit; a dict of a few units may have some of each as well. So a
//! unit with `struct a` and one with `struct a` and `struct b` share one dict, unless the first one
//! means something else by `struct b`, or only declares it.

use rustc_hash::FxHashMap;

use super::classes::{ClassId, Classes};
use super::emit::Child;

/// Dicts that are tried for a unit. Most units find theirs at once.
const TRIED: usize = 32;

/// For each child the one whose types do for it, itself in most cases. What `is_bound` says of is
/// kept as it is.
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
    let mut names = NamesOf::new(classes);
    for unit in order {
        let own = children[unit].classes();
        let rarest = own
            .iter()
            .map(|class| having.get(class).map_or(&[][..], Vec::as_slice))
            .min_by_key(|with| with.len());
        let tried = if is_bound(unit) { 0 } else { TRIED };
        let mut possible = rarest.unwrap_or_default().iter().take(tried).copied();
        match possible.find(|&host| does(children[host].classes(), own, &mut names, unit)) {
            Some(host) => hosts[unit] = host,
            None => own
                .iter()
                .for_each(|&class| having.entry(class).or_default().push(unit)),
        }
    }
    hosts
}

/// Whether all of `own` is among `host`'s, and nothing else there has a name that the unit gives to
/// types, or declares.
fn does(host: &[ClassId], own: &[ClassId], names: &mut NamesOf<'_>, unit: usize) -> bool {
    own.iter().all(|class| host.binary_search(class).is_ok())
        && host
            .iter()
            .all(|class| own.binary_search(class).is_ok() || !names.has(unit, *class))
}

/// The names that a unit gives to types, or declares: of one unit at a time.
struct NamesOf<'c> {
    classes: &'c Classes,
    /// The last unit that was seen to have each name.
    seen: Vec<usize>,
    unit: usize,
}

impl<'c> NamesOf<'c> {
    fn new(classes: &'c Classes) -> NamesOf<'c> {
        NamesOf {
            classes,
            seen: vec![usize::MAX; classes.names()],
            unit: usize::MAX,
        }
    }

    /// Whether a unit has the name of a class.
    fn has(&mut self, unit: usize, class: ClassId) -> bool {
        if self.unit != unit {
            self.unit = unit;
            for &class in &self.classes.of[unit] {
                if let Some(name) = self.classes.all[class as usize].name {
                    self.seen[name as usize] = unit;
                }
            }
        }
        let name = self.classes.all[class as usize].name;
        name.is_some_and(|name| self.seen[name as usize] == unit)
    }
}
