//! Finding children that can use another child's dict: one with all types of the unit, in which
//! every further type has a name that the unit does not use.
//!
//! As the parent holds types of every unit, a dict may hold types of a few units. So a unit with
//! `struct a` and one with `struct a` and `struct b` share one dict, unless the first unit has
//! another `struct b`, or only declares it.

use rustc_hash::FxHashMap;

use super::classes::{ClassId, Classes};
use super::emit::Child;

/// The most dicts to try for a unit. Most units find theirs at once.
const TRIED: usize = 32;

/// For each child, the child whose dict it can use, which is usually itself. Children for which
/// `is_bound` is true keep their own.
pub(super) fn hosts(children: &[Child<'_>], classes: &Classes, is_bound: &dyn Fn(usize) -> bool) -> Vec<usize> {
    let mut hosts: Vec<usize> = (0..children.len()).collect();
    let mut order: Vec<usize> = hosts
        .iter()
        .copied()
        .filter(|&unit| !children[unit].is_empty())
        .collect();
    order.sort_by_key(|&unit| std::cmp::Reverse(children[unit].classes().len()));
    // For each class, the children that have it and host themselves, the largest first.
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

/// Whether `host` contains all of `own`, and no further class with a name that the unit defines or
/// declares.
fn does(host: &[ClassId], own: &[ClassId], names: &mut NamesOf<'_>, unit: usize) -> bool {
    own.iter().all(|class| host.binary_search(class).is_ok())
        && host
            .iter()
            .all(|class| own.binary_search(class).is_ok() || !names.has(unit, *class))
}

/// The names that a unit defines or declares, for one unit at a time.
struct NamesOf<'c> {
    classes: &'c Classes,
    /// For each name, the last unit that was seen to have it.
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

    /// Whether a unit uses the name of a class.
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
