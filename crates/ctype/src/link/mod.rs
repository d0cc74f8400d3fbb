//! Linking with deduplication: the types of many units, each once.
//!
//! A type that all units mean alike is *shared*: the parent has it. A name that units give to
//! different types is *ambiguous*, and so is what refers to an ambiguous type: each unit has its
//! own in a child. Three rules make that small, and they are GNU ld's but for three of its habits.
//!
//! 1. To refer to a struct or union is to name it. So a pointer to an ambiguous struct is shared,
//!    and points to a declaration in the parent; ambiguity ends there, also for what has such a
//!    struct as a member. (What unit's struct is meant, whoever looks knows from the unit at hand.)
//!    But an array of ambiguous structs, a union with one, and a struct that begins with one are
//!    ambiguous: readers take their alignment from it, and what is only declared has none (gdb ends
//!    there).
//! 2. Of structs, unions and enums of one name, all are ambiguous; of other types of one name, all
//!    but the most used one.
//! 3. A declaration is as good as the definition, where there is one definition.
//!
//! The names that compilers give to function types are no part of them: to GNU ld two static
//! functions of one name make the less common signature ambiguous, with all that refers to it. And
//! units share one dict under the name of each where one's own types are the other's, or some of
//! them (`share`).
//!
//! Every step is linear in the types, their members and their references. Units are hashed and
//! dicts are packed in parallel; numbers are given in the order of the units, so the result does
//! not depend on how many threads there are.

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
use crate::read::{Archive, Dict, Header, Lent, Symbol, TypeId, Types};
use crate::threads;
use crate::write::{self, Contents, WriteError};
use classes::Classes;
use emit::{Child, Parent};
use symbols::Candidates;
pub use symbols::{LinkedSymbol, Symbols, UnitSymbol};

/// What is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All that is not ambiguous, as GNU ld does unless told otherwise.
    #[default]
    ShareUnconflicted,
    /// What more than one unit has, and is not ambiguous.
    ShareDuplicated,
    /// Everything is in one dict; look-ups by name find the first of ambiguous types.
    SingleDict,
}

/// The types of one unit.
#[derive(Clone, Debug, Default)]
pub struct Unit<'a> {
    /// Its name, as the compiler was given it.
    pub name: &'a [u8],
    /// Its types, without a parent.
    pub types: Graph<'a>,
    /// Its functions and data objects.
    pub symbols: Vec<UnitSymbol<'a>>,
    /// Its variables.
    pub variables: Vec<(&'a [u8], TypeId)>,
}

impl<'a> Unit<'a> {
    /// What a dict has, with what it needs of its parent. Every function and object counts as one
    /// that others may refer to.
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
            types: flat.graph,
        })
    }
}

/// The dicts of a section, open: what units are read from.
#[derive(Debug)]
pub struct Section<'a> {
    dicts: Vec<(&'a [u8], Dict<'a>, Option<usize>)>,
}

impl<'a> Section<'a> {
    /// Opens every dict of an archive, or the one that there is, or all that a linker which does
    /// not know the format has put behind each other.
    pub fn open(bytes: &'a [u8], lent: Lent<'a>) -> Result<Section<'a>, Error> {
        let archive = Archive::parse(bytes)?;
        let units = concatenated(bytes);
        if units.len() > 1 {
            let dicts = units.into_iter().map(|(offset, unit)| {
                let dict = Dict::open(unit, lent).map_err(|error| error.shifted(offset))?;
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
            dicts.push((member.name, member.open(lent)?, None));
        }
        let parents = dicts.iter().map(|(_, dict, _)| {
            let parent = archive.parent_of(dict)?;
            Ok(parent.and_then(|parent| opened.get(&parent.offset)).copied())
        });
        let parents = parents.collect::<Result<Vec<_>, Error>>()?;
        dicts.iter_mut().zip(parents).for_each(|(dict, parent)| dict.2 = parent);
        Ok(Section { dicts })
    }

    /// How many dicts there are.
    pub fn len(&self) -> usize {
        self.dicts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.dicts.is_empty()
    }

    /// A dict by its number, with its parent; and its name in the archive.
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

    /// A unit for each dict. `symbols` are those of the file, as [`Dict::symbol_types`] wants them.
    pub fn units<'s>(&'s self, symbols: &'s [Symbol<'s>]) -> Result<Vec<Unit<'s>>, Error> {
        let units = self.dicts.iter().zip(self.types());
        units
            .map(|((name, ..), types)| Unit::read(types, name, symbols))
            .collect()
    }
}

/// Dicts behind each other, with zeros between them: where each begins, and its bytes. What is
/// compressed does not tell where it ends.
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

/// Units that a thread does one after the other. Some are as large as many others, so it is few:
/// else one thread is left with the large ones.
pub const AT_ONCE: usize = 4;

/// Units, for all threads.
fn runs_of<'u, 'a>(units: &'u [Unit<'a>]) -> impl IndexedParallelIterator<Item = &'u Unit<'a>> {
    units.par_iter().with_max_len(AT_ONCE)
}

/// How units are linked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'s> {
    /// What is shared.
    pub mode: Mode,
    /// Which functions and objects get types.
    pub symbols: Symbols<'s>,
    /// Whether variables are kept.
    pub variables: bool,
}

/// What was linked.
#[derive(Clone, Debug, Default)]
pub struct Linked<'a> {
    /// What units share.
    pub parent: Contents<'a>,
    /// What they do not.
    pub children: Vec<Contents<'a>>,
    /// The name of each unit that has types of its own, and which of the children has them, in the
    /// order of the units.
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

    Ok(linked)
}

impl Linked<'_> {
    /// The section: a dict, or an archive of them where units have types of their own. Equal
    /// children lie at one place. `pointer` is the size of a pointer in bytes.
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

    /// The names of the units with types of their own, each with the number of its dict; and the
    /// dicts.
    fn write_children(&self, options: &write::Options<'_>) -> Result<NamedDicts<'_>, WriteError> {
        // Equal are those that are but for their unit's name: it comes back where nobody shares.
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

/// The names of an archive's members: units of one name are told apart by a number.
#[derive(Default)]
struct Names(FxHashMap<Vec<u8>, u32>);

impl Names {
    fn give(&mut self, unit: &[u8]) -> Vec<u8> {
        let mut name = unit.to_vec();
        loop {
            // The parent has its name, and a nameless one would not be found.
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

/// What makes linking impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkErrorKind {
    /// A reference to a type that does not exist.
    NoType(TypeId),
    /// The type with this id consists of itself.
    Cycle(TypeId),
}

/// Why units can't be linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// What is wrong.
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
