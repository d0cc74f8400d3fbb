//! Functions and data objects, and in which dict their types are told.

use rustc_hash::FxHashMap;

use super::{Options, Unit};
use crate::constants::SymbolKind;
use crate::error::Error;
use crate::graph::Graph;
use crate::read::{Dict, Symbol, TypeId};
use crate::write::{Contents, Table};

/// A function or object of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitSymbol<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// What it is.
    pub kind: SymbolKind,
    /// Its type, in the unit's graph.
    pub id: TypeId,
    /// Whether no other unit can mean it (`STB_LOCAL`).
    pub local: bool,
    /// Whether the unit only declares it: its type counts where no unit has it, as that of what a library has.
    pub declared: bool,
}

impl<'a> UnitSymbol<'a> {
    pub(super) fn read(dict: &'a Dict<'a>, symbols: &'a [Symbol<'a>]) -> Result<Vec<UnitSymbol<'a>>, Error> {
        let mut all = Vec::new();
        for kind in [SymbolKind::Object, SymbolKind::Function] {
            for pair in dict.symbol_types(kind, symbols) {
                let (name, id) = pair?;
                all.push(UnitSymbol {
                    name,
                    kind,
                    id,
                    local: false,
                    declared: false,
                });
            }
        }
        Ok(all)
    }
}

/// A symbol of the linked file that has a place in the tables ([`Symbol::counted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedSymbol<'s> {
    /// Its name.
    pub name: &'s [u8],
    /// What it is.
    pub kind: SymbolKind,
    /// Of a local one, the last part of its source file's name (`STT_FILE`), empty where nothing tells it.
    pub file: Option<&'s [u8]>,
}

/// Which symbols get types, and how these are told.
#[derive(Clone, Copy, Debug, Default)]
pub enum Symbols<'s> {
    /// None, as in a program that exports nothing.
    #[default]
    None,
    /// All of the units', by name.
    Named,
    /// Those of the linked file, in the order of its symbol table. Only for `.dynsym`: releases of libctf do not agree on which
    /// symbols of `.symtab` count (`_DYNAMIC` does for 2.44, not for 2.47), and strip removes it.
    Numbered(&'s [LinkedSymbol<'s>]),
    /// Those of the linked file, by name.
    Listed(&'s [LinkedSymbol<'s>]),
}

/// The tables of all dicts.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) shared: Own<'a>,
    pub(super) of_unit: FxHashMap<usize, Own<'a>>,
}

/// The tables of one dict: each entry with the place that it has among all of its kind.
#[derive(Default)]
pub(super) struct Own<'a> {
    objects: Vec<(usize, &'a [u8], TypeId)>,
    functions: Vec<(usize, &'a [u8], TypeId)>,
    variables: Vec<(&'a [u8], TypeId)>,
    named: bool,
}

/// Of a table with more empty places than this share of all, names are told instead: four bytes more for each entry (GNU ld's
/// `CTF_INDEX_PAD_THRESHOLD`).
const MOST_PADS: f64 = 0.75;

impl<'a> Own<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.functions.is_empty() && self.variables.is_empty()
    }

    pub(super) fn into_contents(self, types: Graph<'a>) -> Contents<'a> {
        let table = |entries: Vec<(usize, &'a [u8], TypeId)>| {
            let places = entries.last().map_or(0, |(place, ..)| place + 1);
            let pads = places.saturating_sub(entries.len());
            if self.named || pads as f64 > MOST_PADS * places as f64 {
                return Table::Named(entries.into_iter().map(|(_, name, id)| (name, id)).collect());
            }
            let mut ids = vec![TypeId(0); places];
            for (place, _, id) in entries {
                ids[place] = id;
            }
            Table::Numbered(ids)
        };
        Contents {
            objects: table(self.objects),
            functions: table(self.functions),
            variables: self.variables,
            types,
            ..Contents::default()
        }
    }
}

/// Where a symbol's type is told: by which unit, if not by all that have it.
struct Candidate {
    unit: usize,
    id: TypeId,
    local: bool,
    declared: bool,
}

/// Puts each symbol into the parent's table or a child's. `place` tells where the linked types have one of a unit's.
pub(super) fn tables<'a>(
    units: &[Unit<'a>],
    options: &Options<'a>,
    place: &dyn Fn(usize, TypeId) -> Option<TypeId>,
) -> Tables<'a> {
    let mut tables = Tables::default();
    match options.symbols {
        Symbols::None => {}
        Symbols::Named => named(units, place, &mut tables),
        Symbols::Numbered(symbols) => of_file(units, symbols, false, place, &mut tables),
        Symbols::Listed(symbols) => of_file(units, symbols, true, place, &mut tables),
    }
    if options.variables {
        for (number, unit) in units.iter().enumerate() {
            for &(name, id) in &unit.variables {
                if let Some(id) = place(number, id).filter(|id| !id.is_none()) {
                    tables.of(number, id).variables.push((name, id));
                }
            }
        }
        tables.shared.variables.sort();
        // What units declare alike; of what they do not, the first.
        tables.shared.variables.dedup_by_key(|(name, _)| *name);
    }
    tables
}

impl<'a> Tables<'a> {
    /// The tables of the dict that has a type.
    fn of(&mut self, unit: usize, id: TypeId) -> &mut Own<'a> {
        match id.is_child() {
            true => self.of_unit.entry(unit).or_default(),
            false => &mut self.shared,
        }
    }
}

impl<'a> Own<'a> {
    fn add(&mut self, kind: SymbolKind, at: usize, name: &'a [u8], id: TypeId) {
        let table = match kind {
            SymbolKind::Object => &mut self.objects,
            SymbolKind::Function => &mut self.functions,
        };
        table.push((at, name, id));
    }
}

fn candidates<'a>(
    units: &[Unit<'a>],
    place: &dyn Fn(usize, TypeId) -> Option<TypeId>,
) -> FxHashMap<(SymbolKind, &'a [u8]), Vec<Candidate>> {
    let mut candidates: FxHashMap<_, Vec<Candidate>> = FxHashMap::default();
    for (unit, of) in units.iter().enumerate() {
        for symbol in &of.symbols {
            if let Some(id) = place(unit, symbol.id).filter(|id| !id.is_none()) {
                let all = candidates.entry((symbol.kind, symbol.name)).or_default();
                all.push(Candidate {
                    unit,
                    id,
                    local: symbol.local,
                    declared: symbol.declared,
                });
            }
        }
    }
    candidates
}

/// Symbols by name: the parent has those that mean one thing, a child what its unit means otherwise.
fn named<'a>(units: &[Unit<'a>], place: &dyn Fn(usize, TypeId) -> Option<TypeId>, tables: &mut Tables<'a>) {
    let mut all: Vec<_> = candidates(units, place).into_iter().collect();
    all.sort_unstable_by_key(|(key, _)| (key.0 as u8, key.1));
    for ((kind, name), candidates) in all {
        let candidates: Vec<&Candidate> = candidates.iter().filter(|candidate| !candidate.declared).collect();
        let Some(first) = candidates.first() else { continue };
        let one = !first.id.is_child() && candidates.iter().all(|candidate| candidate.id == first.id);
        let told = if one { &candidates[..1] } else { &candidates[..] };
        for candidate in told {
            let own = match one {
                true => &mut tables.shared,
                false => tables.of_unit.entry(candidate.unit).or_default(),
            };
            own.named = true;
            own.add(kind, 0, name, candidate.id);
        }
    }
}

/// The symbols of the linked file, in their places or by name. A name that the parent has for another type already is told by the
/// unit.
fn of_file<'a>(
    units: &[Unit<'a>],
    symbols: &[LinkedSymbol<'a>],
    by_name: bool,
    place: &dyn Fn(usize, TypeId) -> Option<TypeId>,
    tables: &mut Tables<'a>,
) {
    let candidates = candidates(units, place);
    let mut places = [0; 2];
    let mut told = FxHashMap::default();
    for symbol in symbols {
        let at = &mut places[symbol.kind as usize];
        *at += 1;
        let key = (symbol.kind, symbol.name);
        let Some(chosen) = candidates.get(&key).and_then(|all| choose(symbol, all, units)) else {
            continue;
        };
        let dict = if chosen.id.is_child() { Some(chosen.unit) } else { None };
        let dict = match told.get(&(dict, key)) {
            _ if !by_name => dict,
            Some(&id) if id == chosen.id => continue,
            Some(_) => Some(chosen.unit),
            None => dict,
        };
        if by_name && told.insert((dict, key), chosen.id).is_some() {
            continue;
        }
        let own = match dict {
            Some(unit) => tables.of_unit.entry(unit).or_default(),
            None => &mut tables.shared,
        };
        own.named |= by_name;
        own.add(symbol.kind, *at - 1, symbol.name, chosen.id);
    }
}

/// Which unit's symbol it is: a global one's is not local there, a local one's source has its file's name. `None` where several
/// units could be meant that do not agree.
fn choose<'c>(symbol: &LinkedSymbol<'_>, all: &'c [Candidate], units: &[Unit<'_>]) -> Option<&'c Candidate> {
    let Some(file) = symbol.file else {
        let mut global = all.iter().filter(|candidate| !candidate.local && !candidate.declared);
        // What a library has and the program has a copy of is only declared.
        return global
            .next()
            .or_else(|| all.iter().find(|candidate| candidate.declared));
    };
    let is_of_file = |candidate: &&Candidate| {
        let name = units[candidate.unit].name;
        let base = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
        base == file
    };
    let own = || all.iter().filter(|candidate| !candidate.declared);
    let of_file: Vec<&Candidate> = own().filter(is_of_file).collect();
    let possible = if of_file.is_empty() { own().collect() } else { of_file };
    let first = *possible.first()?;
    possible
        .iter()
        .all(|other| other.id == first.id && (!first.id.is_child() || other.unit == first.unit))
        .then_some(first)
}
