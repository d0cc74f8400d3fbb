//! Linking with deduplication: merges the types of many units and stores each type once.
//!
//! A type that is the same in all units is *shared*: the parent has it. Types that units define
//! differently under one name are *ambiguous*, and so are types that refer to them: each unit has
//! its own version in a child. Three rules keep the children small. They follow GNU ld, except for
//! three of its habits.
//!
//! 1. A reference to a struct or union is a reference to its name. So a pointer to an ambiguous
//!    struct is shared, and points to a declaration in the parent; ambiguity ends there, even for a
//!    type that has such a struct as a member. (The unit that a reader is looking at determines
//!    which unit's struct is meant.) But an array of ambiguous structs, a union with one, and a
//!    struct that begins with one are ambiguous: readers derive their alignment from it, and a mere
//!    declaration has none (gdb stops there).
//! 2. If several structs, unions or enums have one name, all are ambiguous; if several other types
//!    do, all except the most used one.
//! 3. A declaration counts as the definition if there is only one definition.
//!
//! The names that compilers give to function types are not part of the types. In GNU ld, two static
//! functions of one name make the less common signature ambiguous, with all types that refer to it.
//! Units also share one dict, under the name of each, if the types of one are a subset of the
//! other's (`share`).
//!
//! Every step is linear in the types, their members and their references. Units are hashed and
//! dicts are compressed in parallel. Numbers are assigned in the order of the units, so the result
//! does not depend on the number of threads.

mod classes;
mod emit;
mod hash;
mod share;
mod symbols;

use core::fmt;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::constants::{CTF_SECTION, Flags};
use crate::error::Error;
use crate::graph::Graph;
use crate::read::{Archive, Dict, Header, Surroundings, Symbol, TypeId, Types};
use crate::threads;
use crate::write::{self, Contents, WriteError};
use classes::Classes;
use emit::{Child, Parent};
use symbols::Candidates;
pub use symbols::{LinkedSymbol, Symbols, UnitSymbol};

/// Which types are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Share all types that are not ambiguous, like GNU ld by default.
    #[default]
    ShareUnconflicted,
    /// Share types that more than one unit has and that are not ambiguous.
    ShareDuplicated,
    /// Put everything into one dict; look-ups by name find the first of several ambiguous types.
    SingleDict,
}

/// The types of one unit.
#[derive(Clone, Debug, Default)]
pub struct Unit<'a> {
    /// Its name, as passed to the compiler.
    pub name: &'a [u8],
    /// Its types, without a parent.
    pub types: Graph<'a>,
    /// Its functions and data objects.
    pub symbols: Vec<UnitSymbol<'a>>,
    /// Addresses in the linked file of those that the unit defines, by their index: a function can
    /// begin at several. A symbol whose name no unit has is an alias of the one at its address.
    pub addresses: Vec<(u64, u32)>,
    /// Its variables.
    pub variables: Vec<(&'a [u8], TypeId)>,
}

impl<'a> Unit<'a> {
    /// Reads the contents of a dict, with the types that it needs from its parent. Every function
    /// and object is treated as global.
    pub fn read(types: Types<'a>, name: &'a [u8], symbols: &'a [Symbol<'a>]) -> Result<Unit<'a>, Error> {
        let dict = types.dict();
        let told = UnitSymbol::read(dict, symbols)?;
        let variables = dict.variables().collect::<Result<Vec<_>, _>>()?;
        let ids = told
            .iter()
            .map(|symbol| symbol.id)
            .chain(variables.iter().map(|(_, id)| *id));
        let flat = Graph::read_flat(types, ids)?;
        let place = |id| flat.id(id).unwrap_or(TypeId(0));
        Ok(Unit {
            name: dict.cu_name()?.unwrap_or(name),
            symbols: told
                .into_iter()
                .map(|symbol| UnitSymbol {
                    id: place(symbol.id),
                    ..symbol
                })
                .collect(),
            variables: variables.into_iter().map(|(name, id)| (name, place(id))).collect(),
            addresses: Vec::new(),
            types: flat.graph,
        })
    }
}

/// The opened dicts of a section, from which units are read.
#[derive(Debug)]
pub struct Section<'a> {
    dicts: Vec<(&'a [u8], Dict<'a>, Option<usize>)>,
}

impl<'a> Section<'a> {
    /// Opens every dict of an archive, a lone dict, or all dicts that a linker without support for
    /// the format has concatenated.
    pub fn open(bytes: &'a [u8], surroundings: Surroundings<'a>) -> Result<Section<'a>, Error> {
        let archive = Archive::parse(bytes)?;
        let units = concatenated(bytes);
        if units.len() > 1 {
            let dicts = units.into_iter().map(|(offset, unit)| {
                let dict = Dict::open(unit, surroundings).map_err(|error| error.shifted(offset))?;
                Ok((CTF_SECTION, dict, None))
            });
            let dicts = dicts.collect::<Result<_, Error>>()?;
            return Ok(Section { dicts });
        }
        let mut dicts: Vec<(&[u8], Dict<'_>, Option<usize>)> = Vec::new();
        let mut opened: FxHashMap<usize, usize> = FxHashMap::default();
        for member in archive.members() {
            let member = member?;
            opened.entry(member.offset).or_insert(dicts.len());
            dicts.push((member.name, member.open(surroundings)?, None));
        }
        let parents = dicts.iter().map(|(_, dict, _)| {
            let parent = archive.parent_of(dict)?;
            Ok(parent.and_then(|parent| opened.get(&parent.offset)).copied())
        });
        let parents = parents.collect::<Result<Vec<_>, Error>>()?;
        dicts.iter_mut().zip(parents).for_each(|(dict, parent)| dict.2 = parent);
        Ok(Section { dicts })
    }

    /// The number of dicts.
    pub fn len(&self) -> usize {
        self.dicts.len()
    }

    /// Whether there are no dicts.
    pub fn is_empty(&self) -> bool {
        self.dicts.is_empty()
    }

    /// A dict by its number: its name in the archive, and the dict with its parent.
    pub fn get(&self, number: usize) -> Option<(&'a [u8], Types<'_>)> {
        let (name, dict, parent) = self.dicts.get(number)?;
        let parent = parent
            .and_then(|parent| self.dicts.get(parent))
            .map(|(_, dict, _)| dict);
        Some((*name, Types::with_parent(dict, parent)))
    }

    /// Each dict, with its parent.
    pub fn types(&self) -> impl Iterator<Item = Types<'_>> {
        (0..self.len()).filter_map(|number| Some(self.get(number)?.1))
    }

    /// A unit for each dict. `symbols` are those of the file, as for [`Dict::symbol_types`].
    pub fn units<'s>(&'s self, symbols: &'s [Symbol<'s>]) -> Result<Vec<Unit<'s>>, Error> {
        let units = self.dicts.iter().zip(self.types());
        units
            .map(|((name, ..), types)| Unit::read(types, name, symbols))
            .collect()
    }
}

/// The offset and bytes of each of several concatenated dicts, with zeros between them. The end of
/// a compressed dict is not known, so it must be the last.
fn concatenated(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Ok(header) = Header::parse(rest) else { break };
        let len = match header.flags.contains(Flags::COMPRESS) {
            true => rest.len(),
            false => header.size().saturating_add(header.body_size()).min(rest.len()),
        };
        found.push((at, &rest[..len]));
        let zeros = rest[len..].iter().take_while(|&&byte| byte == 0).count();
        at += len + zeros;
    }
    found
}

/// The number of units that one thread processes in sequence. Some units are as large as many
/// others; with a larger number, one thread would be left with the large ones.
pub const AT_ONCE: usize = 4;

/// The units, divided among all threads.
fn runs_of<'u, 'a>(units: &'u [Unit<'a>]) -> impl IndexedParallelIterator<Item = &'u Unit<'a>> {
    units.par_iter().with_max_len(AT_ONCE)
}

/// Options for linking.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'s> {
    /// Which types are shared.
    pub mode: Mode,
    /// Which functions and objects get types.
    pub symbols: Symbols<'s>,
    /// Whether variables are kept.
    pub variables: bool,
}

/// The result of linking.
#[derive(Clone, Debug, Default)]
pub struct Linked<'a> {
    /// The types that units share.
    pub parent: Contents<'a>,
    /// The types that units do not share.
    pub children: Vec<Contents<'a>>,
    /// The name of each unit that has types of its own, and the index of the child that holds them,
    /// in the order of the units.
    pub names: Vec<(Vec<u8>, usize)>,
}

/// Links units.
pub fn link<'a>(units: &[Unit<'a>], options: &Options<'a>) -> Result<Linked<'a>, LinkError> {
    threads::scoped(|| link_in_pool(units, options))
}

fn link_in_pool<'a>(units: &[Unit<'a>], options: &Options<'a>) -> Result<Linked<'a>, LinkError> {
    let hashes: Vec<Result<Vec<u128>, LinkErrorKind>> = runs_of(units).map(|unit| hash::hashes(&unit.types)).collect();
    let failed = |(unit, result): (usize, Result<Vec<u128>, _>)| result.map_err(|kind| LinkError { kind, unit });
    let hashes = hashes
        .into_iter()
        .enumerate()
        .map(failed)
        .collect::<Result<Vec<_>, _>>()?;
    let classes = Classes::new(units, &hashes, options.mode);
    let (parent, candidates) = rayon::join(
        || Parent::new(units, &classes, options.mode),
        || Candidates::of(units, options.symbols),
    );
    let own: Vec<Child<'a>> = match options.mode {
        Mode::SingleDict => Vec::new(),
        _ => {
            let units = runs_of(units).zip(&classes.of);
            units
                .map(|(unit, of)| Child::new(unit, of, &classes, &parent))
                .collect()
        }
    };
    let mut tables = symbols::tables(units, candidates, options, &|unit, id| {
        let graph = &units[unit].types;
        let index = graph.index(id)?;
        let (node, class) = (graph.nodes().get(index)?, *classes.of[unit].get(index)?);
        Some(match own.get(unit) {
            Some(child) => child.id(node, class, &classes, &parent),
            None => parent.id(class),
        })
    });
    let hosts = share::hosts(&own, &classes, &|unit| tables.of_unit.contains_key(&unit));
    let mut linked = Linked {
        parent: tables.shared.into_contents(parent.types),
        ..Linked::default()
    };
    let mut names = Names::default();
    let mut places = vec![None; own.len()];
    let mut own: Vec<Option<Child<'_>>> = own.into_iter().map(Some).collect();
    for (number, host) in hosts.into_iter().enumerate() {
        let tables_of_host = tables.of_unit.remove(&host).unwrap_or_default();
        let child = own[host].take_if(|child| !child.is_empty() || !tables_of_host.is_empty());
        if let Some(child) = child {
            places[host] = Some(linked.children.len());
            linked.children.push(Contents {
                parent_name: CTF_SECTION,
                cu_name: units[host].name,
                ..tables_of_host.into_contents(child.types)
            });
        }
        if let Some(place) = places[host] {
            linked.names.push((names.give(units[number].name), place));
        }
    }
    if let ([only], true) = (units, linked.children.is_empty()) {
        linked.parent.cu_name = only.name;
    }
    Ok(linked)
}

impl Linked<'_> {
    /// Writes the section: a dict, or an archive if units have types of their own. Equal children
    /// are stored once. `pointer` is the size of a pointer in bytes.
    pub fn write(&self, options: &write::Options<'_>, pointer: u8) -> Result<Vec<u8>, WriteError> {
        threads::scoped(|| self.write_in_pool(options, pointer))
    }

    fn write_in_pool(&self, options: &write::Options<'_>, pointer: u8) -> Result<Vec<u8>, WriteError> {
        if self.children.is_empty() {
            return write::dict(&self.parent, options);
        }
        let (parent, children) = rayon::join(|| write::dict(&self.parent, options), || self.write_children(options));
        let mut names = vec![(CTF_SECTION, 0)];
        let mut dicts = vec![parent?];
        let (of_children, children) = children?;
        names.extend(of_children.into_iter().map(|(name, dict)| (name, dict + 1)));
        dicts.extend(children);
        Ok(write::archive(&names, &dicts, pointer))
    }

    /// The names of the units with types of their own, each with the number of its dict, and the
    /// dicts.
    fn write_children(&self, options: &write::Options<'_>) -> Result<NamedDicts<'_>, WriteError> {
        // Children are compared without their unit's name; a child that is not shared keeps it.
        let plain = write::Options {
            compress_from: usize::MAX,
            ..*options
        };
        let nameless = self.children.par_iter().map(|child| {
            let child = Contents {
                cu_name: &[],
                ..child.clone()
            };
            write::dict(&child, &plain)
        });
        let nameless = nameless.collect::<Result<Vec<_>, _>>()?;
        let mut first: FxHashMap<&[u8], usize> = FxHashMap::default();
        let equal: Vec<usize> = nameless
            .iter()
            .enumerate()
            .map(|(child, bytes)| *first.entry(bytes).or_insert(child))
            .collect();
        let mut shared: Vec<(&Contents<'_>, bool)> = Vec::new();
        let mut names = Vec::new();
        let mut places = vec![None; self.children.len()];
        for (name, child) in &self.names {
            let child = equal[*child];
            let next = shared.len();
            let place = *places[child].get_or_insert(next);
            match shared.get_mut(place) {
                Some((_, several)) => *several = true,
                None => shared.push((&self.children[child], false)),
            }
            names.push((&name[..], place));
        }
        let dicts = shared.par_iter().map(|&(contents, several)| match several {
            false => write::dict(contents, options),
            true => write::dict(
                &Contents {
                    cu_name: &[],
                    ..contents.clone()
                },
                options,
            ),
        });
        Ok((names, dicts.collect::<Result<_, _>>()?))
    }
}

/// Names of dicts, each with its number, and the dicts.
type NamedDicts<'a> = (Vec<(&'a [u8], usize)>, Vec<Vec<u8>>);

/// The names of an archive's members. A number distinguishes units of the same name.
#[derive(Default)]
struct Names(FxHashMap<Vec<u8>, u32>);

impl Names {
    fn give(&mut self, unit: &[u8]) -> Vec<u8> {
        let mut name = unit.to_vec();
        loop {
            // `.ctf` is the parent's name, and no look-up would find a nameless member.
            let taken = name == CTF_SECTION || name.is_empty() || self.0.contains_key(&name);
            if !taken {
                self.0.insert(name.clone(), 0);
                return name;
            }
            let count = self.0.entry(unit.to_vec()).or_insert(0);
            *count += 1;
            name = [unit, format!("#{count}").as_bytes()].concat();
        }
    }
}

/// The kind of error that prevents linking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkErrorKind {
    /// A reference to a type that does not exist.
    NoType(TypeId),
    /// The type with this id contains itself.
    Cycle(TypeId),
}

/// Why units can't be linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// The kind of error.
    pub kind: LinkErrorKind,
    /// The number of the unit.
    pub unit: usize,
}

impl fmt::Display for LinkErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LinkErrorKind::NoType(id) => write!(f, "no type has the id {id}"),
            LinkErrorKind::Cycle(id) => write!(f, "type {id} is made of itself"),
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in unit {}", self.kind, self.unit)
    }
}

impl core::error::Error for LinkError {}
