//! Comparing two files' types as their users see them, with the functions and objects that each
//! change affects.
//!
//! A function or object has changed if its own declaration has. A struct, union, enum or typedef
//! has changed if its layout or values have. The change affects all functions and objects whose
//! types lead to it, even through pointers, because callers are compiled for the layout of the
//! objects that they allocate and access. If the path leads to a mere declaration, because units
//! define the name differently, it continues to each unit's own definition.

mod layout;
mod reach;

use std::collections::BTreeMap;

use crate::constants::{Kind, SymbolKind};
use crate::error::Result;
use crate::print::Plain;
use crate::read::{TypeId, Types};
use layout::{Aspect, Layout, is_requalified};
use reach::{Node, Reach};

/// A file's types, and the symbols that it exports.
#[derive(Debug, Default)]
pub struct Side<'d> {
    /// Each dict with the name of its unit. The dict that units share comes first, with an empty
    /// name.
    pub units: Vec<(String, Types<'d>)>,
    /// Functions and objects that users can refer to. If neither side has any, all types are
    /// compared.
    pub symbols: Vec<Exported>,
}

/// A function or object that a file exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Its name.
    pub name: String,
    /// Whether it is a function or a data object.
    pub kind: SymbolKind,
    /// The index of the unit that stores its type.
    pub unit: usize,
    /// Its type.
    pub id: TypeId,
}

/// A difference between the two files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// `function`, `object`, or a type's kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The unit that owns it; `None` if units share it.
    pub unit: Option<String>,
    /// The affected functions and objects that users can refer to.
    pub reaches: Vec<String>,
    /// Whether the change may break users that were compiled before.
    pub breaking: bool,
    /// A description of the change.
    pub detail: String,
}

/// Lists all changes: functions and objects first, then types, each sorted by name.
pub fn compare(old: &Side<'_>, new: &Side<'_>) -> Vec<Change> {
    let mut changes = symbols(old, new);
    let blind = old.symbols.is_empty() && new.symbols.is_empty();
    let (old_reach, new_reach) = (Reach::new(old), Reach::new(new));
    let definitions = Definitions::of(new);
    let mut of_types = Vec::new();
    for (key, all) in &Definitions::of(old).0 {
        for &before in all {
            for after in definitions.counterparts(old, new, key, before) {
                let Some((detail, layout_changed)) = difference(old, before, new, after) else {
                    continue;
                };
                let mut reaches = old_reach.symbols(before);
                reaches.extend(new_reach.symbols(after));
                reaches.sort();
                reaches.dedup();
                let own = [&old.units[before.unit], &new.units[after.unit]].map(|(name, _)| name.clone());
                of_types.push(Change {
                    kind: key.0.name(),
                    name: key.1.clone(),
                    unit: own.into_iter().rev().find(|name| !name.is_empty()),
                    breaking: layout_changed && (blind || !reaches.is_empty()),
                    reaches,
                    detail,
                });
            }
        }
    }
    of_types.sort();
    of_types.dedup();
    changes.extend(of_types);
    changes
}

fn symbols(old: &Side<'_>, new: &Side<'_>) -> Vec<Change> {
    let texts = |side: &Side<'_>| -> BTreeMap<(&'static str, String), String> {
        let all = side.symbols.iter().map(|symbol| {
            let kind = match symbol.kind {
                SymbolKind::Function => "function",
                SymbolKind::Object => "object",
            };
            let text = declaration(side, symbol).unwrap_or_else(|error| error.to_string());
            ((kind, symbol.name.clone()), text)
        });
        all.collect()
    };
    let (before, after) = (texts(old), texts(new));
    let change = |(kind, name): &(&'static str, String), breaking, detail| Change {
        kind,
        name: name.clone(),
        unit: None,
        reaches: vec![name.clone()],
        breaking,
        detail,
    };
    let mut changes = Vec::new();
    for (key, text) in &before {
        match after.get(key) {
            None => changes.push(change(key, true, format!("removed: {text}"))),
            Some(now) if now != text => {
                let breaking = !is_requalified(text, now);
                changes.push(change(key, breaking, format!("was {text}, is {now}")));
            }
            Some(_) => {}
        }
    }
    let added = after.iter().filter(|(key, _)| !before.contains_key(key));
    changes.extend(added.map(|(key, text)| change(key, false, format!("added: {text}"))));
    changes.sort();
    changes
}

fn declaration(side: &Side<'_>, symbol: &Exported) -> Result<String> {
    let (_, types) = &side.units[symbol.unit];
    Plain::new(*types).declaration(symbol.id, &symbol.name)
}

/// Definitions by kind and name.
struct Definitions(BTreeMap<(Kind, String), Vec<Node>>);

impl Definitions {
    fn of(side: &Side<'_>) -> Definitions {
        let mut all: BTreeMap<_, Vec<Node>> = BTreeMap::new();
        for (unit, (_, types)) in side.units.iter().enumerate() {
            for id in types.dict().ids() {
                let Ok(found) = types.get(id) else { continue };
                let tells = matches!(found.kind(), Kind::Struct | Kind::Union | Kind::Enum | Kind::Typedef);
                match found.name() {
                    Ok(name) if tells && !name.is_empty() => {
                        let key = (found.kind(), String::from_utf8_lossy(name).into_owned());
                        all.entry(key).or_default().push(Node { unit, id });
                    }
                    _ => {}
                }
            }
        }
        Definitions(all)
    }

    /// The new counterparts of a unit's definition: that of the same unit, or the shared one, or
    /// those of all units.
    fn counterparts(&self, old: &Side<'_>, new: &Side<'_>, key: &(Kind, String), before: Node) -> Vec<Node> {
        let now = self.0.get(key).map_or(&[][..], Vec::as_slice);
        let unit = &old.units[before.unit].0;
        let shared: Vec<Node> = now
            .iter()
            .copied()
            .filter(|node| new.units[node.unit].0.is_empty())
            .collect();
        let same = same_unit(unit, new);
        let own: Vec<Node> = now.iter().copied().filter(|node| Some(node.unit) == same).collect();
        match (own.is_empty() || unit.is_empty(), shared.is_empty()) {
            (false, _) => own,
            (true, false) => shared,
            // Units were renamed or merged, so any of them may be the counterpart.
            (true, true) => now.to_vec(),
        }
    }
}

/// The unit of this name, or else the only one with the same file name, because builds may be in
/// different folders.
fn same_unit(name: &str, side: &Side<'_>) -> Option<usize> {
    let exact = side.units.iter().position(|(other, _)| other == name);
    let file = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    exact.or_else(|| {
        let mut alike = side
            .units
            .iter()
            .enumerate()
            .filter(|(_, (other, _))| file(other) == file(name));
        match (alike.next(), alike.next()) {
            (Some((found, _)), None) => Some(found),
            _ => None,
        }
    })
}

/// The difference, and whether it affects the layout in memory; `None` if there is no difference.
fn difference(old: &Side<'_>, before: Node, new: &Side<'_>, after: Node) -> Option<(String, bool)> {
    let of = |side: &Side<'_>, node: Node| Layout::of(side.units[node.unit].1, node.id);
    let (before, after) = match (of(old, before), of(new, after)) {
        (Ok(before), Ok(after)) => (before, after),
        // Types that can't be read have no layout to compare.
        _ => return None,
    };
    let aspects = before.compare(&after);
    let breaking = aspects.iter().any(Aspect::is_breaking);
    let text: Vec<String> = aspects.iter().map(Aspect::to_string).collect();
    (!text.is_empty()).then(|| (text.join("; "), breaking))
}
