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

/// For each unit, the unit whose dict is the parent of its dict; without one, the unit itself.
pub(super) struct Places(Vec<usize>);

impl Places {
    pub(super) fn of(side: &Side<'_>) -> Places {
        Places((0..side.units.len()).map(|unit| parent(side, unit)).collect())
    }

    /// The type with this id in a unit, by the unit whose dict has it.
    pub(super) fn node(&self, side: &Side<'_>, unit: usize, id: TypeId) -> Node {
        let own = id.is_child() == side.units[unit].1.dict().is_child();
        Node {
            unit: if own { unit } else { self.0[unit] },
            id,
        }
    }
}

/// The types and symbols that refer to each type.
pub(super) struct Reach<'s> {
    citers: FxHashMap<Node, Vec<Citer>>,
    symbols: FxHashMap<Node, Vec<&'s str>>,
    /// Types whose contents users can't see.
    hidden: FxHashSet<Node>,
}

/// A type that refers to another.
#[derive(Clone, Copy)]
struct Citer {
    node: Node,
    /// Whether it holds the other's address, not the other itself.
    points: bool,
}

/// How users get to a type.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// The functions and objects whose types lead to it.
    pub(super) symbols: Vec<String>,
    /// Whether one of them passes it, returns it, or is of its type, perhaps inside of another.
    pub(super) by_value: bool,
}

impl<'s> Reach<'s> {
    pub(super) fn new(side: &'s Side<'_>) -> Reach<'s> {
        let mut reach = Reach {
            citers: FxHashMap::default(),
            symbols: FxHashMap::default(),
            hidden: FxHashSet::default(),
        };
        let places = Places::of(side);
        let place = |unit: usize, id: TypeId| places.node(side, unit, id);
        let definitions = definitions(side);
        for (unit, (_, types)) in side.units.iter().enumerate() {
            for id in types.dict().ids() {
                let Ok(found) = types.get(id) else { continue };
                let node = Node { unit, id };
                if is_hidden(side, *types, &found) {
                    reach.hidden.insert(node);
                }
                let points = found.kind() == Kind::Pointer;
                let from = Citer { node, points };
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

    /// How users get to a type: only through types whose contents they can see.
    pub(super) fn way(&self, of: Node) -> Way {
        let mut way = Way::default();
        // Each type once by itself, and once by its address.
        let mut seen: FxHashSet<(Node, bool)> = FxHashSet::default();
        let mut pending = vec![(of, true)];
        let mut names: FxHashSet<&str> = FxHashSet::default();
        while let Some((node, by_value)) = pending.pop() {
            // What is known by value is known.
            if self.hidden.contains(&node) || seen.contains(&(node, true)) || !seen.insert((node, by_value)) {
                continue;
            }
            for name in self.symbols.get(&node).into_iter().flatten() {
                names.insert(name);
                way.by_value |= by_value;
            }
            let citers = self.citers.get(&node).into_iter().flatten();
            pending.extend(citers.map(|citer| (citer.node, by_value && !citer.points)));
        }
        way.symbols = names.into_iter().map(str::to_owned).collect();
        way
    }

    /// Whether users can't see what a type contains.
    pub(super) fn is_hidden(&self, node: Node) -> bool {
        self.hidden.contains(&node)
    }
}

/// Whether users can't see what a type contains: by its own name, or by that of its typedef.
fn is_hidden(side: &Side<'_>, types: Types<'_>, found: &Type<'_>) -> bool {
    let kind = match found.kind() {
        kind @ (Kind::Struct | Kind::Union | Kind::Enum) => Some(kind),
        Kind::Typedef => {
            let named = found.reference().and_then(|of| types.get(of));
            let is_nameless = |of: &Type<'_>| of.name().is_ok_and(<[u8]>::is_empty);
            let body = named.ok().filter(is_nameless).map(|of| of.kind());
            body.filter(|kind| matches!(kind, Kind::Struct | Kind::Union | Kind::Enum))
                .map(|_| Kind::Typedef)
        }
        _ => None,
    };
    let name = found.name().unwrap_or_default();
    kind.is_some_and(|kind| !name.is_empty() && !side.visible.has(kind, &String::from_utf8_lossy(name)))
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
