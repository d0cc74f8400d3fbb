//! What a path names within a crate. Good enough for this project's code: it knows modules, items,
//! `use` and re-exports, but not names that macros make.

use syn::{Ident, Item, Visibility};

use super::source::{Crate, is_public};

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Module(usize),
    /// An item of a module, by its index there.
    Item(usize, usize),
    /// The full path of something in another crate.
    Other(String),
}

/// The `use`s that led here: one of them may name itself.
type Seen = Vec<(usize, usize)>;

impl Crate {
    /// What a path means in a module; a name may be that of a module and of a function.
    pub(super) fn resolve(&self, module: usize, path: &[String]) -> Vec<Target> {
        self.resolve_beside(module, path, &mut Seen::new())
    }

    fn resolve_beside(&self, module: usize, path: &[String], seen: &mut Seen) -> Vec<Target> {
        let Some((first, mut rest)) = path.split_first() else {
            return vec![Target::Module(module)];
        };
        let mut found = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(module)],
            "super" => self.modules[module].parent.map(Target::Module).into_iter().collect(),
            name => self.look_up(module, name, seen),
        };
        if found.is_empty() {
            return vec![Target::Other(path.join("::"))];
        }
        while let Some((next, after)) = rest.split_first() {
            let within = found.iter().find_map(|target| match target {
                Target::Module(module) => Some(*module),
                _ => None,
            });
            found = match (within, &found[0]) {
                (Some(module), _) if next == "super" => {
                    self.modules[module].parent.map(Target::Module).into_iter().collect()
                }
                (Some(module), _) => self.look_up(module, next, seen),
                (None, Target::Other(other)) => return vec![Target::Other(format!("{other}::{}", rest.join("::")))],
                // A variant, or an item of a trait.
                (None, _) => Vec::new(),
            };
            if found.is_empty() {
                return found;
            }
            rest = after;
        }
        found
    }

    /// All that has this name in a module.
    fn look_up(&self, module: usize, name: &str, seen: &mut Seen) -> Vec<Target> {
        let mut found: Vec<Target> = self.child(module, name).map(Target::Module).into_iter().collect();
        let own = &self.modules[module];
        let items = own.items.iter().enumerate();
        let named = items.filter(|(_, item)| name_of(item).is_some_and(|own| own == name));
        found.extend(named.map(|(at, _)| Target::Item(module, at)));
        for (at, used) in own.uses.iter().enumerate() {
            if (used.name != name && used.name != "*") || seen.contains(&(module, at)) {
                continue;
            }
            seen.push((module, at));
            let mut targets = self.resolve_beside(module, &used.path, seen);
            if used.name == "*" {
                targets = targets
                    .into_iter()
                    .flat_map(|target| match target {
                        Target::Module(module) => self.look_up(module, name, seen),
                        _ => Vec::new(),
                    })
                    .collect();
            }
            seen.pop();
            for target in targets {
                if !found.contains(&target) {
                    found.push(target);
                }
            }
        }
        found
    }

    /// The module that another one declares.
    fn child(&self, module: usize, name: &str) -> Option<usize> {
        let is_it = |(_, other): &(usize, &super::source::Module)| other.parent == Some(module) && other.name == name;
        self.modules.iter().enumerate().find(is_it).map(|(at, _)| at)
    }
}

/// The name of an item that others can use.
pub(super) fn name_of(item: &Item) -> Option<&Ident> {
    named(item).map(|(name, _)| name)
}

/// Whether an item is public where it is.
pub(super) fn is_public_item(item: &Item) -> bool {
    named(item).is_some_and(|(_, visibility)| is_public(visibility))
}

fn named(item: &Item) -> Option<(&Ident, &Visibility)> {
    match item {
        Item::Const(item) => Some((&item.ident, &item.vis)),
        Item::Enum(item) => Some((&item.ident, &item.vis)),
        Item::Fn(item) => Some((&item.sig.ident, &item.vis)),
        Item::Static(item) => Some((&item.ident, &item.vis)),
        Item::Struct(item) => Some((&item.ident, &item.vis)),
        Item::Trait(item) => Some((&item.ident, &item.vis)),
        Item::Type(item) => Some((&item.ident, &item.vis)),
        Item::Union(item) => Some((&item.ident, &item.vis)),
        _ => None,
    }
}
