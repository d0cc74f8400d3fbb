//! Functions and data objects, and the dicts that store their types.

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::{Options, Unit, runs_of};
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
    /// Whether it is a function or a data object.
    pub kind: SymbolKind,
    /// Its type, in the unit's graph.
    pub id: TypeId,
    /// Whether other units can't refer to it (`STB_LOCAL`).
    pub local: bool,
    /// Whether the unit only declares it. Its type is used if no unit defines it, as for a symbol
    /// of a library.
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
    /// Whether it is a function or a data object.
    pub kind: SymbolKind,
    /// For a local symbol, the last component of its source file's name (`STT_FILE`), empty if
    /// unknown; `None` for a global symbol.
    pub file: Option<&'s [u8]>,
    /// Its address, if the file defines it.
    pub address: Option<u64>,
}

/// Which symbols get types, and how the types are stored.
#[derive(Clone, Copy, Debug, Default)]
pub enum Symbols<'s> {
    /// No symbols, as in a program that exports nothing.
    #[default]
    None,
    /// All symbols of the units, by name.
    Named,
    /// The symbols of the linked file, in the order of its symbol table. Only for `.dynsym`:
    /// releases of libctf disagree on which symbols of `.symtab` count (`_DYNAMIC` does in 2.44,
    /// but not in 2.47), and strip removes `.symtab`.
    Numbered(&'s [LinkedSymbol<'s>]),
    /// The symbols of the linked file, by name.
    Listed(&'s [LinkedSymbol<'s>]),
}

/// The symbol tables of all dicts.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) shared: Own<'a>,
    pub(super) of_unit: FxHashMap<usize, Own<'a>>,
}

/// The tables of one dict: each entry has its index among all symbols of its kind.
#[derive(Default)]
pub(super) struct Own<'a> {
    objects: Vec<(usize, &'a [u8], TypeId)>,
    functions: Vec<(usize, &'a [u8], TypeId)>,
    variables: Vec<(&'a [u8], TypeId)>,
    named: bool,
}

/// A table with a larger share of empty entries is stored by name instead, for four more bytes per
/// entry (GNU ld's `CTF_INDEX_PAD_THRESHOLD`).
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

/// A unit's type for a symbol.
struct Candidate {
    unit: usize,
    id: TypeId,
    local: bool,
    declared: bool,
    /// It has another name, and the symbol's address.
    alias: bool,
}

impl Candidate {
    fn of(unit: usize, symbol: &UnitSymbol<'_>) -> Candidate {
        Candidate {
            unit,
            id: symbol.id,
            local: symbol.local,
            declared: symbol.declared,
            alias: false,
        }
    }
}

type Key<'a> = (SymbolKind, &'a [u8]);

/// The units' types for the symbols that get types, in the order of the units.
#[derive(Default)]
pub(super) struct Candidates<'a> {
    /// The index in `lists` of each symbol's candidates.
    of: FxHashMap<Key<'a>, u32>,
    lists: Vec<Vec<Candidate>>,
}

impl<'a> Candidates<'a> {
    /// Collects candidates with the ids that their types have in the units.
    pub(super) fn of(units: &[Unit<'a>], symbols: Symbols<'a>) -> Candidates<'a> {
        let mut all = Candidates::default();
        match symbols {
            Symbols::None => return all,
            Symbols::Named => {
                let symbols = units.iter().flat_map(|unit| &unit.symbols);
                symbols.for_each(|symbol| all.want((symbol.kind, symbol.name)));
            }
            Symbols::Numbered(symbols) | Symbols::Listed(symbols) => {
                symbols.iter().for_each(|symbol| all.want((symbol.kind, symbol.name)));
            }
        }
        let of_units = runs_of(units).enumerate().map(|(unit, of)| {
            let candidates = of.symbols.iter().filter_map(|symbol| {
                let list = *all.of.get(&(symbol.kind, symbol.name))?;
                Some((list, Candidate::of(unit, symbol)))
            });
            candidates.collect::<Vec<_>>()
        });
        let of_units: Vec<Vec<_>> = of_units.collect();
        for (list, candidate) in of_units.into_iter().flatten() {
            all.lists[list as usize].push(candidate);
        }
        if let Symbols::Numbered(symbols) | Symbols::Listed(symbols) = symbols {
            all.add_aliases(units, symbols);
        }
        all
    }

    /// Finds the definitions of symbols by address that are not found by name.
    fn add_aliases(&mut self, units: &[Unit<'a>], symbols: &[LinkedSymbol<'_>]) {
        let mut sought: FxHashMap<(SymbolKind, u64), Vec<u32>> = FxHashMap::default();
        for symbol in symbols {
            let is_defined = |list: u32| self.lists[list as usize].iter().any(|candidate| !candidate.declared);
            if let Some(address) = symbol.address
                && let Some(&list) = self.of.get(&(symbol.kind, symbol.name))
                && !is_defined(list)
            {
                sought.entry((symbol.kind, address)).or_default().push(list);
            }
        }
        for (unit, of) in units.iter().enumerate() {
            for &(address, number) in &of.addresses {
                let Some(symbol) = of.symbols.get(number as usize) else {
                    continue;
                };
                for &list in sought.get(&(symbol.kind, address)).into_iter().flatten() {
                    self.lists[list as usize].push(Candidate {
                        alias: true,
                        ..Candidate::of(unit, symbol)
                    });
                }
            }
        }
    }

    fn want(&mut self, key: Key<'a>) {
        let next = self.lists.len() as u32;
        if *self.of.entry(key).or_insert(next) == next {
            self.lists.push(Vec::new());
        }
    }

    /// Replaces the units' ids by those in the linked dicts, and drops candidates whose types these
    /// do not have.
    fn placed(mut self, place: Place<'_>) -> Candidates<'a> {
        self.lists.par_iter_mut().for_each(|candidates| {
            candidates.retain_mut(|candidate| {
                candidate.id = place(candidate.unit, candidate.id).unwrap_or(TypeId(0));
                !candidate.id.is_none()
            });
        });
        self
    }

    fn get(&self, key: &Key<'_>) -> &[Candidate] {
        let list = self.of.get(key).and_then(|&list| self.lists.get(list as usize));
        list.map_or(&[], Vec::as_slice)
    }
}

/// Maps a unit's type to its id in the linked dicts.
type Place<'p> = &'p (dyn Fn(usize, TypeId) -> Option<TypeId> + Sync);

/// Puts each symbol into the parent's table or a child's.
pub(super) fn tables<'a>(
    units: &[Unit<'a>],
    candidates: Candidates<'a>,
    options: &Options<'a>,
    place: Place<'_>,
) -> Tables<'a> {
    let mut tables = Tables::default();
    let candidates = candidates.placed(place);
    match options.symbols {
        Symbols::None => {}
        Symbols::Named => named(candidates, &mut tables),
        Symbols::Numbered(symbols) => of_file(units, candidates, symbols, false, &mut tables),
        Symbols::Listed(symbols) => of_file(units, candidates, symbols, true, &mut tables),
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
        // One variable of each name: if units disagree about its type, the first.
        tables.shared.variables.dedup_by_key(|(name, _)| *name);
    }
    tables
}

impl<'a> Tables<'a> {
    /// The tables of the dict that contains a type.
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

/// Stores symbols by name: in the parent if all units agree on the type and it is shared,
/// otherwise in each unit's child.
fn named<'a>(candidates: Candidates<'a>, tables: &mut Tables<'a>) {
    let mut all: Vec<_> = candidates.of.keys().copied().collect();
    all.sort_unstable_by_key(|key| (key.0 as u8, key.1));
    for (kind, name) in all {
        let candidates = candidates.get(&(kind, name)).iter();
        let candidates: Vec<&Candidate> = candidates.filter(|candidate| !candidate.declared).collect();
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

/// Stores the symbols of the linked file, by index or by name. If the parent already has the name
/// with another type, the unit's dict stores it.
fn of_file<'a>(
    units: &[Unit<'a>],
    candidates: Candidates<'a>,
    symbols: &[LinkedSymbol<'a>],
    by_name: bool,
    tables: &mut Tables<'a>,
) {
    let mut places = [0; 2];
    let mut told = FxHashMap::default();
    for symbol in symbols {
        let at = &mut places[symbol.kind as usize];
        *at += 1;
        let key = (symbol.kind, symbol.name);
        let Some(chosen) = choose(symbol, candidates.get(&key), units) else {
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

/// Finds the unit's symbol for a symbol of the linked file: for a global symbol, one that is not
/// local, or else one at its address; for a local symbol, one from the same source file. `None` if
/// several match and disagree.
fn choose<'c>(symbol: &LinkedSymbol<'_>, all: &'c [Candidate], units: &[Unit<'_>]) -> Option<&'c Candidate> {
    let Some(file) = symbol.file else {
        let is_global = |candidate: &&Candidate| !candidate.local && !candidate.declared && !candidate.alias;
        let aliases = || all.iter().filter(|candidate| candidate.alias).collect::<Vec<_>>();
        // A library's object of which the program has a copy is only declared in the units.
        return (all.iter().find(is_global))
            .or_else(|| agreed(&aliases()))
            .or_else(|| all.iter().find(|candidate| candidate.declared));
    };
    let is_of_file = |candidate: &&Candidate| {
        let name = units[candidate.unit].name;
        let base = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
        base == file
    };
    let own = || all.iter().filter(|candidate| !candidate.declared);
    let of_file: Vec<&Candidate> = own().filter(is_of_file).collect();
    let possible: Vec<&Candidate> = if of_file.is_empty() { own().collect() } else { of_file };
    agreed(&possible)
}

/// The first, if all have its type.
fn agreed<'c>(possible: &[&'c Candidate]) -> Option<&'c Candidate> {
    let first = *possible.first()?;
    possible
        .iter()
        .all(|other| other.id == first.id && (!first.id.is_child() || other.unit == first.unit))
        .then_some(first)
}
