//! Looking up types by name.

use rustc_hash::FxHashMap;

use super::{TypeId, Types};
use crate::constants::Kind;

/// An index of a dict's own types by name: the first root-visible type of each name in each
/// namespace.
#[derive(Clone, Debug)]
pub struct NameIndex<'d> {
    ids: FxHashMap<(Option<Kind>, &'d [u8]), TypeId>,
}

impl<'d> NameIndex<'d> {
    /// Indexes all types that look-ups by name can find. Uses memory for each; skips types that
    /// can't be read.
    pub fn new(types: Types<'d>) -> NameIndex<'d> {
        let dict = types.dict();
        let mut ids = FxHashMap::default();
        for id in dict.ids() {
            let Ok(found) = types.get(id) else { continue };
            let namespace = match found.kind() {
                kind @ (Kind::Struct | Kind::Union | Kind::Enum) => Some(kind),
                Kind::Forward => found.forwarded().ok(),
                _ => None,
            };
            match found.name() {
                // A function's name is not the name of a type.
                Ok(name) if !name.is_empty() && found.is_root() && found.kind() != Kind::Function => {
                    ids.entry((namespace, name)).or_insert(id);
                }
                _ => {}
            }
        }
        NameIndex { ids }
    }

    /// The struct, union or enum with a name or, for `None`, the type of another kind.
    pub fn get(&self, namespace: Option<Kind>, name: &[u8]) -> Option<TypeId> {
        self.ids.get(&(namespace, name)).copied()
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
