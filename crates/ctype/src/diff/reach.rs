//! Finding the functions and objects whose types lead to a type.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Side;
use crate::constants::Kind;
use crate::error::Result;
use crate::read::{Type, TypeId, Types};

/// A dict's own type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) unit: usize,
    pub(super) id: TypeId,
}

/// The types and symbols that refer to each type.
pub(super) struct Reach<'s> {
    citers: FxHashMap<Node, Vec<Node>>,
    symbols: FxHashMap<Node, Vec<&'s str>>,
}

impl<'s> Reach<'s> {
    pub(super) fn new(side: &'s Side<'_>) -> Reach<'s> {
        let mut reach = Reach {
            citers: FxHashMap::default(),
            symbols: FxHashMap::default(),
        };
        let parents: Vec<usize> = (0..side.units.len()).map(|unit| parent(side, unit)).collect();
        let place = |unit: usize, id: TypeId| {
            let own = id.is_child() == side.units[unit].1.dict().is_child();
            Node {
                unit: if own { unit } else { parents[unit] },
                id,
            }
        };
        let definitions = definitions(side);
        for (unit, (_, types)) in side.units.iter().enumerate() {
            for id in types.dict().ids() {
                let Ok(found) = types.get(id) else { continue };
                let from = Node { unit, id };
                // Damaged types refer to nothing.
                let _ = references(&found, &mut |to| {
                    reach.citers.entry(place(unit, to)).or_default().push(from)
                });
                if let (Ok(kind), Ok(name)) = (found.forwarded(), found.name()) {
                    for &to in definitions.get(&(kind, name)).into_iter().flatten() {
                        reach.citers.entry(to).or_default().push(from);
                    }
                }
            }
        }
        for symbol in &side.symbols {
            let node = place(symbol.unit, symbol.id);
            reach.symbols.entry(node).or_default().push(&symbol.name);
        }
        reach
    }

    /// The names of the functions and objects from which a type can be reached.
    pub(super) fn symbols(&self, of: Node) -> Vec<String> {
        let mut names = Vec::new();
        let mut seen: FxHashSet<Node> = FxHashSet::default();
        let mut pending = vec![of];
        while let Some(node) = pending.pop() {
            if seen.insert(node) {
                names.extend(
                    self.symbols
                        .get(&node)
                        .into_iter()
                        .flatten()
                        .map(|&name| name.to_owned()),
                );
                pending.extend(self.citers.get(&node).into_iter().flatten());
            }
        }
        names
    }
}

/// The unit whose dict is the parent of a unit's dict; the unit itself if there is no parent.
fn parent(side: &Side<'_>, unit: usize) -> usize {
    let wanted = side.units[unit].1.parent();
    let found = wanted.and_then(|parent| {
        side.units
            .iter()
            .position(|(_, types)| std::ptr::eq(types.dict(), parent))
    });
    found.unwrap_or(unit)
}

fn definitions<'d>(side: &Side<'d>) -> FxHashMap<(Kind, &'d [u8]), Vec<Node>> {
    let mut all: FxHashMap<_, Vec<Node>> = FxHashMap::default();
    for (unit, (_, types)) in side.units.iter().enumerate() {
        let types: Types<'d> = *types;
        for id in types.dict().ids() {
            let Ok(found) = types.get(id) else { continue };
            if let (Kind::Struct | Kind::Union | Kind::Enum, Ok(name)) = (found.kind(), found.name()) {
                all.entry((found.kind(), name)).or_default().push(Node { unit, id });
            }
        }
    }
    all
}

fn references(found: &Type<'_>, each: &mut dyn FnMut(TypeId)) -> Result<()> {
    match found.kind() {
        Kind::Array => each(found.array()?.contents),
        Kind::Struct | Kind::Union => {
            for member in found.members()? {
                each(member?.id);
            }
        }
        Kind::Function => {
            each(found.reference()?);
            let (arguments, _) = found.arguments()?;
            for argument in arguments {
                each(argument?);
            }
        }
        Kind::Integer | Kind::Float | Kind::Enum | Kind::Forward | Kind::Unknown => {}
        _ => each(found.reference()?),
    }
    Ok(())
}
