//! Which items of a crate are public, and by which paths.

use std::collections::BTreeMap;

use super::names::{Target, is_public_item, name_of};
use super::source::{Crate, attributes, is_hidden, joined};

/// A path by which users reach something, and the conditions on the way there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Names from the crate's own on.
    pub(super) path: Vec<String>,
    pub(super) gates: Vec<String>,
}

#[derive(Default)]
pub(super) struct Exports {
    /// The items, by module and index there, with all their paths, the shortest first.
    pub(super) items: BTreeMap<(usize, usize), Vec<Place>>,
    /// The modules.
    pub(super) modules: Vec<Place>,
    /// What comes from other crates, with its path there.
    pub(super) others: Vec<(Place, String)>,
}

impl Exports {
    pub(super) fn of(from: &Crate) -> Exports {
        let mut exports = Exports::default();
        let root = Place {
            path: vec![from.name.clone()],
            gates: Vec::new(),
        };
        exports.contents(from, 0, &root, &mut Vec::new());
        for places in exports.items.values_mut() {
            places.sort_by(|one, other| (one.path.len(), one).cmp(&(other.path.len(), other)));
            places.dedup_by(|one, other| one.path == other.path);
        }
        exports
    }

    /// Adds what a module makes public, as seen from this place. `around` has the modules that are
    /// being added: a module may re-export one around it.
    fn contents(&mut self, from: &Crate, module: usize, place: &Place, around: &mut Vec<usize>) {
        if around.contains(&module) {
            return;
        }
        around.push(module);
        let own = &from.modules[module];
        for (at, child) in from.modules.iter().enumerate() {
            if child.parent == Some(module) && child.is_public {
                self.module(from, at, &place.below(&child.name, &child.gates), around);
            }
        }
        for (at, item) in own.items.iter().enumerate() {
            if is_public_item(item)
                && !is_hidden(attributes(item))
                && let Some(name) = name_of(item)
            {
                let gates = joined(&own.gates, attributes(item));
                self.add((module, at), place.below(&name.to_string(), &gates));
            }
        }
        for used in own.uses.iter().filter(|used| used.is_public) {
            let targets = from.resolve(module, &used.path);
            if targets.is_empty() {
                let place = place.below(&used.name, &used.gates);
                self.others.push((place, used.path.join("::")));
            }
            for target in targets {
                self.used(from, &used.name, &used.gates, target, place, around);
            }
        }
        around.pop();
    }

    /// Adds one target of a re-export.
    fn used(
        &mut self,
        from: &Crate,
        name: &str,
        gates: &[String],
        target: Target,
        place: &Place,
        around: &mut Vec<usize>,
    ) {
        match target {
            Target::Module(module) if name == "*" => self.contents(from, module, &place.with(gates), around),
            Target::Module(module) if from.modules[module].is_public => {
                self.module(from, module, &place.below(name, gates), around);
            }
            Target::Item(module, at) => {
                let item = &from.modules[module].items[at];
                if is_public_item(item) {
                    let place = place.below(name, gates);
                    let gates = joined(&from.modules[module].gates, attributes(item));
                    self.add((module, at), place.with(&gates));
                }
            }
            Target::Other(other) => self.others.push((place.below(name, gates), other)),
            // A function has the name, and so has a private module.
            Target::Module(_) => {}
        }
    }

    fn module(&mut self, from: &Crate, module: usize, place: &Place, around: &mut Vec<usize>) {
        self.modules.push(place.clone());
        self.contents(from, module, place, around);
    }

    fn add(&mut self, item: (usize, usize), place: Place) {
        self.items.entry(item).or_default().push(place);
    }
}

impl Place {
    pub(super) fn below(&self, name: &str, gates: &[String]) -> Place {
        let mut place = self.with(gates);
        place.path.push(name.to_owned());
        place
    }

    pub(super) fn with(&self, gates: &[String]) -> Place {
        let mut place = self.clone();
        for gate in gates {
            if !place.gates.contains(gate) {
                place.gates.push(gate.clone());
            }
        }
        place
    }

    pub(super) fn text(&self) -> String {
        self.path.join("::")
    }
}
