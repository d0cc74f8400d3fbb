//! Comparing two files' types as their users see them, with the functions and objects that each
//! change affects.
//!
//! A function or object has changed if its own declaration has, by representation and not by
//! spelling. A struct, union, enum or typedef has changed if its layout or values have. The change
//! affects all functions and objects whose types led to it, even through pointers, because callers
//! were compiled for the layout of the objects that they allocate and access. If the path
//! leads to a mere declaration, because units define the name differently, it continues to each
//! unit's own definition.

mod layout;
mod reach;
mod same;

use std::collections::{BTreeMap, BTreeSet};

use crate::constants::{Kind, SymbolKind};
use crate::error::Result;
use crate::print::Plain;
use crate::read::{TypeId, Types};
use layout::{Aspect, Layout};
use reach::{Node, Reach};
use same::{Comparison, Likeness};

/// A file's types, and the symbols that it exports.
#[derive(Debug, Default)]
pub struct Side<'d> {
    /// Each dict with the name of its unit. The dict that units share comes first, with an empty
    /// name.
    pub units: Vec<(String, Types<'d>)>,
    /// Functions and objects that users can refer to. If neither side has any, all types are
    /// compared.
    pub symbols: Vec<Exported>,
    /// Everything that the file exports, also what has no type.
    pub exports: Option<Exports>,
    /// The types whose contents users can see.
    pub visible: Visible,
}

/// The names that a file exports, each with its versions: programs ask for the one that they were
/// linked with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports(pub BTreeMap<String, BTreeSet<String>>);

impl Exports {
    /// The versions that other exports lack, and those that they have. The dynamic linker of glibc
    /// does not take a symbol without a version for one with.
    fn gone<'e>(&'e self, now: &'e Exports, name: &str) -> Option<(Vec<&'e str>, Vec<&'e str>)> {
        let (before, after) = (self.0.get(name)?, now.0.get(name)?);
        let gone: Vec<&str> = before.difference(after).map(String::as_str).collect();
        let kept = after.iter().map(String::as_str).collect();
        (!gone.is_empty()).then_some((gone, kept))
    }
}

/// The types whose contents users can see, by kind (struct, union, enum, or typedef for those that
/// have no other name) and name. Of all others users have only addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Visible {
    /// All.
    #[default]
    All,
    /// Only these.
    Only(BTreeSet<(Kind, String)>),
    /// All but these.
    Except(BTreeSet<(Kind, String)>),
}

impl Visible {
    fn has(&self, kind: Kind, name: &str) -> bool {
        let listed = |all: &BTreeSet<(Kind, String)>| all.contains(&(kind, name.to_owned()));
        match self {
            Visible::All => true,
            Visible::Only(all) => listed(all),
            Visible::Except(all) => !listed(all),
        }
    }
}

/// How much a change matters to users that were compiled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// They are not affected.
    Harmless,
    /// A type that functions and objects lead to by addresses only has grown at its end: users that
    /// allocate it, or have it inside of their own types, break.
    Possible,
    /// They break.
    Breaking,
}

impl Severity {
    /// All, from the least to the greatest.
    pub const ALL: [Severity; 3] = [Severity::Harmless, Severity::Possible, Severity::Breaking];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Harmless => "harmless",
            Severity::Possible => "possible",
            Severity::Breaking => "breaking",
        }
    }
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
    /// `function`, `object`, `symbol` if it does not depend on the type, or a type's kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The unit that owns it; `None` if units share it.
    pub unit: Option<String>,
    /// The affected functions and objects that users could refer to before.
    pub reaches: Vec<String>,
    /// How much it matters.
    pub severity: Severity,
    /// A description of the change.
    pub detail: String,
}

/// Lists all changes: functions and objects first, then types, each sorted by name.
pub fn compare(old: &Side<'_>, new: &Side<'_>) -> Vec<Change> {
    let mut comparison = Comparison::new(old, new);
    let mut changes = symbols(old, new, &mut comparison);
    let blind = old.symbols.is_empty() && new.symbols.is_empty();
    let reach = Reach::new(old);
    let definitions = Definitions::of(new);
    let functions = old.symbols.iter().filter(|symbol| symbol.kind == SymbolKind::Function);
    let functions: BTreeSet<&str> = functions.map(|symbol| &symbol.name[..]).collect();
    let mut of_types = Vec::new();
    for (key, all) in &Definitions::of(old).0 {
        for &before in all {
            // Units that define a name differently may have changed places.
            let found = definitions.counterparts(old, new, key, before);
            let differences = found
                .iter()
                .map(|&after| (after, difference(before, after, &mut comparison)));
            let differences: Vec<_> = differences.collect();
            if differences.is_empty() || differences.iter().any(|(_, difference)| difference.is_none()) {
                continue;
            }
            let mut way = reach.way(before);
            way.symbols.sort();
            let is_unseen = way.symbols.is_empty() && !blind || reach.is_hidden(before);
            for (after, difference) in differences {
                let Some((mut detail, mut severity, is_passed)) = difference else {
                    continue;
                };
                if way.by_value && severity == Severity::Possible {
                    severity = Severity::Breaking;
                }
                if way.by_value && is_passed && way.symbols.iter().any(|name| functions.contains(&name[..])) {
                    severity = Severity::Breaking;
                    detail += "; passed by value in other registers";
                }
                if is_unseen {
                    severity = Severity::Harmless;
                }
                let own = [&old.units[before.unit], &new.units[after.unit]].map(|(name, _)| name.clone());
                of_types.push(Change {
                    kind: key.0.name(),
                    name: key.1.clone(),
                    unit: own.into_iter().rev().find(|name| !name.is_empty()),
                    severity,
                    reaches: way.symbols.clone(),
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

fn symbols(old: &Side<'_>, new: &Side<'_>, comparison: &mut Comparison<'_, '_>) -> Vec<Change> {
    fn by_name<'s>(side: &'s Side<'_>) -> BTreeMap<(&'static str, &'s str), &'s Exported> {
        let all = side.symbols.iter().map(|symbol| {
            let kind = match symbol.kind {
                SymbolKind::Function => "function",
                SymbolKind::Object => "object",
            };
            ((kind, &symbol.name[..]), symbol)
        });
        all.collect()
    }
    let text = |side: &Side<'_>, symbol: &Exported| declaration(side, symbol).unwrap_or_else(|error| error.to_string());
    let (before, after) = (by_name(old), by_name(new));
    let change = |(kind, name): (&'static str, &str), severity, detail| Change {
        kind,
        name: name.to_owned(),
        unit: None,
        reaches: vec![name.to_owned()],
        severity,
        detail,
    };
    let [typed, typed_now] = [&before, &after].map(|all| all.keys().map(|(_, name)| *name).collect::<BTreeSet<_>>());
    let mut changes = Vec::new();
    for (&key, symbol) in &before {
        let Some(now) = after.get(&key) else {
            if !is_untyped(new, &typed_now, key.1) {
                let detail = format!("removed: {}", text(old, symbol));
                changes.push(change(key, Severity::Breaking, detail));
            }
            continue;
        };
        let node = |symbol: &Exported| Node {
            unit: symbol.unit,
            id: symbol.id,
        };
        let (one, other) = (node(symbol), node(now));
        let mut likeness = comparison.compare(one, other);
        // A program has a copy of an object of another file, with the size that it had then.
        let is_object = symbol.kind == SymbolKind::Object;
        if is_object && comparison.size(0, one) != comparison.size(1, other) {
            likeness = Likeness::Different;
        }
        let severity = match likeness {
            Likeness::Same => continue,
            Likeness::Alike => Severity::Harmless,
            Likeness::Different => Severity::Breaking,
        };
        let (was, is) = (text(old, symbol), text(new, now));
        let detail = match was == is {
            true if is_object => format!("{was} has another size, or other members"),
            true => format!("a type that it takes or returns has changed: {was}"),
            false => format!("was {was}, is {is}"),
        };
        changes.push(change(key, severity, detail));
    }
    if let (Some(one), Some(other)) = (&old.exports, &new.exports) {
        for name in one.0.keys().map(String::as_str) {
            if !other.0.contains_key(name) && !typed.contains(name) {
                changes.push(change(("symbol", name), Severity::Breaking, "removed".to_owned()));
            }
            if let Some((gone, kept)) = one.gone(other, name) {
                let kept = if kept.is_empty() { "none" } else { &kept.join(", ") };
                let detail = format!("version {} is gone, has {kept}", gone.join(", "));
                changes.push(change(("symbol", name), Severity::Breaking, detail));
            }
        }
    }
    let added = after
        .iter()
        .filter(|(key, _)| !before.contains_key(key) && !is_untyped(old, &typed, key.1));
    changes.extend(added.map(|(&key, symbol)| {
        let detail = format!("added: {}", text(new, symbol));
        change(key, Severity::Harmless, detail)
    }));
    changes.sort();
    changes
}

/// Whether a side exports a name whose type nothing says.
fn is_untyped(side: &Side<'_>, typed: &BTreeSet<&str>, name: &str) -> bool {
    let is_exported = side.exports.as_ref().is_some_and(|all| all.0.contains_key(name));
    is_exported && !typed.contains(name)
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

/// The difference, how much it matters to those who see the type, and whether registers pass it
/// otherwise; `None` if they are equal.
fn difference(before: Node, after: Node, comparison: &mut Comparison<'_, '_>) -> Option<(String, Severity, bool)> {
    let of = |side: &Side<'_>, node: Node| Layout::of(side.units[node.unit].1, node);
    let [old, new] = comparison.sides();
    let (old, new) = match (of(old, before), of(new, after)) {
        (Ok(old), Ok(new)) => (old, new),
        // Types that can't be read have no layout to compare.
        _ => return None,
    };
    let aspects = old.compare(&new, comparison);
    let text: Vec<String> = aspects.iter().map(Aspect::to_string).collect();
    let is_passed_otherwise = old.is_passed_otherwise(&new, &aspects);
    (!text.is_empty()).then(|| (text.join("; "), old.severity(&aspects), is_passed_otherwise))
}
