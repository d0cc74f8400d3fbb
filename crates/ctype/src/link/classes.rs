//! Classes of equal types in all units, and which of them are ambiguous.

use std::ops::Range;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::hash::{aligned_by, counts_by_name};
use super::{Mode, Unit};
use crate::constants::Kind;
use crate::graph::{Body, Node};

/// A class's number, in the order of first occurrence in the units.
pub(super) type ClassId = u32;
/// A name's number.
pub(super) type NameId = u32;

/// A type that one or more units have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The first unit that has it; `index` is the type's index there.
    pub(super) unit: u32,
    pub(super) index: u32,
    /// The number of units' types in this class; `units` is the number of units that have it.
    uses: u32,
    units: u32,
    last_unit: u32,
    pub(super) name: Option<NameId>,
    /// Whether it can't be in the parent.
    pub(super) ambiguous: bool,
}

/// All types that have one name in one namespace.
#[derive(Clone, Debug, Default)]
struct Name {
    /// Whether the namespace is that of structs, unions or enums.
    tagged: bool,
    definitions: Vec<ClassId>,
    forward: Option<ClassId>,
}

/// All classes.
pub(super) struct Classes {
    pub(super) all: Vec<Class>,
    /// The class of each unit's types.
    pub(super) of: Vec<Vec<ClassId>>,
    names: Vec<Name>,
}

/// The meaning of a reference to a named struct or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The only definition of this name.
    Shared(ClassId),
    /// The unit's own definition. Shared types can refer only to a declaration: its class, if units
    /// have one.
    Declared(Option<ClassId>),
}

/// The classes of some consecutive units, numbered in the order of first occurrence. So consecutive
/// runs can be joined, and the numbers do not depend on the number of runs.
#[derive(Default)]
struct Run {
    known: FxHashMap<u128, ClassId>,
    hashes: Vec<u128>,
    classes: Vec<Class>,
    of: Vec<Vec<ClassId>>,
}

impl Run {
    /// Classes of the units with these hashes; `first` is the number of the first unit.
    fn new(hashes: &[Vec<u128>], first: u32) -> Run {
        let mut run = Run::default();
        // In small inputs most types are new, in large programs one in ten.
        let types: usize = hashes.iter().map(Vec::len).sum();
        run.known.reserve(types / 8);
        for (unit, hashes) in (first..).zip(hashes) {
            let of = hashes.iter().enumerate().map(|(index, &hash)| {
                let class = run.class(hash, Class::new(unit, index as u32));
                let found = &mut run.classes[class as usize];
                found.uses += 1;
                found.units += u32::from(found.last_unit != unit);
                found.last_unit = unit;
                class
            });
            let of = of.collect();
            run.of.push(of);
        }
        run
    }

    /// The class of a hash; adds `class` if there is none yet.
    fn class(&mut self, hash: u128, class: Class) -> ClassId {
        let next = self.classes.len() as ClassId;
        let number = *self.known.entry(hash).or_insert(next);
        if number == next {
            self.classes.push(class);
            self.hashes.push(hash);
        }
        number
    }

    /// Adds the classes of the following run, and returns the new number of each.
    fn add(&mut self, next: &Run) -> Vec<ClassId> {
        let classes = next.hashes.iter().zip(&next.classes);
        let places = classes.map(|(&hash, class)| {
            let unused = Class {
                uses: 0,
                units: 0,
                ..*class
            };
            let place = self.class(hash, unused);
            let found = &mut self.classes[place as usize];
            found.uses += class.uses;
            found.units += class.units;
            place
        });
        places.collect()
    }
}

/// Ranges of consecutive units with at least `enough` types each, except the last range.
fn split(hashes: &[Vec<u128>], enough: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut types) = (0, 0);
    for (number, hashes) in hashes.iter().enumerate() {
        types += hashes.len();
        if types >= enough {
            ranges.push(start..number + 1);
            (start, types) = (number + 1, 0);
        }
    }
    if start < hashes.len() {
        ranges.push(start..hashes.len());
    }
    ranges
}

/// All names, and the name of each class.
#[derive(Default)]
struct Names {
    all: Vec<Name>,
    of: Vec<Option<NameId>>,
}

impl Names {
    fn of(classes: &[Class], units: &[Unit<'_>]) -> Names {
        let mut known: FxHashMap<(Option<Kind>, &[u8]), NameId> = FxHashMap::default();
        let mut names = Names::default();
        for (number, class) in classes.iter().enumerate() {
            let node = &units[class.unit as usize].types.nodes()[class.index as usize];
            let id = name_of(node).map(|name| {
                let fresh = names.all.len() as NameId;
                let id = *known.entry(name).or_insert(fresh);
                if id == fresh {
                    let tagged = name.0.is_some();
                    names.all.push(Name {
                        tagged,
                        ..Name::default()
                    });
                }
                let name = &mut names.all[id as usize];
                match node.body {
                    Body::Forward(_) => name.forward = Some(number as ClassId),
                    _ => name.definitions.push(number as ClassId),
                }
                id
            });
            names.of.push(id);
        }
        names
    }
}

/// For each class, the classes that refer to it by more than its name, and those that take their
/// alignment from it.
struct Citers {
    /// Where each class's citers begin in `all`, plus the end of the last.
    starts: Vec<u32>,
    all: Vec<ClassId>,
}

impl Citers {
    fn of(classes: &Classes, units: &[Unit<'_>]) -> Citers {
        let runs = classes
            .all
            .par_iter()
            .enumerate()
            .fold(Vec::new, |mut pairs, (number, class)| {
                let of = &classes.of[class.unit as usize];
                let graph = &units[class.unit as usize].types;
                let node = &graph.nodes()[class.index as usize];
                graph.references(node, |id| {
                    let Some(to) = graph.index(id) else { return };
                    if counts_by_name(&graph.nodes()[to]).is_none() {
                        pairs.push((of[to], number as ClassId));
                    }
                });
                aligned_by(graph, node, &mut |aggregate, _| {
                    pairs.push((of[aggregate], number as ClassId))
                });
                pairs
            });
        let runs: Vec<Vec<(ClassId, ClassId)>> = runs.collect();
        let pairs = || runs.iter().flatten();
        let mut starts = vec![0; classes.all.len() + 1];
        pairs().for_each(|&(to, _)| starts[to as usize + 1] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut all = vec![0; sum as usize];
        for &(to, citer) in pairs() {
            let place = &mut next[to as usize];
            all[*place as usize] = citer;
            *place += 1;
        }
        Citers { starts, all }
    }

    fn get(&self, class: ClassId) -> &[ClassId] {
        let class = class as usize;
        &self.all[self.starts[class] as usize..self.starts[class + 1] as usize]
    }
}

impl Class {
    fn new(unit: u32, index: u32) -> Class {
        Class {
            unit,
            index,
            uses: 0,
            units: 0,
            last_unit: u32::MAX,
            name: None,
            ambiguous: false,
        }
    }
}

impl Classes {
    /// Builds the classes from each unit's types and their hashes.
    pub(super) fn new(units: &[Unit<'_>], hashes: &[Vec<u128>], mode: Mode) -> Classes {
        let mut classes = Classes::merge(hashes);
        let (names, citers) = rayon::join(|| Names::of(&classes.all, units), || Citers::of(&classes, units));
        for (class, name) in classes.all.iter_mut().zip(names.of) {
            class.name = name;
        }
        classes.names = names.all;
        let mut ambiguous = classes.clashing(&citers);
        if mode == Mode::ShareDuplicated {
            let single = (0..classes.all.len() as ClassId).filter(|&class| classes.all[class as usize].units == 1);
            ambiguous.extend(single);
        }
        classes.spread(&citers, ambiguous);
        classes
    }

    /// Builds the classes without names. Each thread processes a run of units.
    fn merge(hashes: &[Vec<u128>]) -> Classes {
        let types: usize = hashes.iter().map(Vec::len).sum();
        let enough = types.div_ceil(rayon::current_num_threads()).max(1);
        let mut runs: Vec<Run> = split(hashes, enough)
            .into_par_iter()
            .map(|range| Run::new(&hashes[range.clone()], range.start as u32))
            .collect();
        let mut rest = runs.split_off(1.min(runs.len()));
        let mut all = runs.pop().unwrap_or_default();
        let places: Vec<Vec<ClassId>> = rest.iter().map(|run| all.add(run)).collect();
        rest.par_iter_mut().zip(&places).for_each(|(run, places)| {
            let of = run.of.par_iter_mut().flatten();
            of.for_each(|class| *class = places[*class as usize]);
        });
        all.of.extend(rest.into_iter().flat_map(|run| run.of));
        Classes {
            all: all.classes,
            of: all.of,
            names: Vec::new(),
        }
    }

    /// Classes whose names clash: all structs, unions and enums that share a name, and all other
    /// types that share one except the most used.
    fn clashing(&self, citers: &Citers) -> Vec<ClassId> {
        let mut clashing = Vec::new();
        for name in self.names.iter().filter(|name| name.definitions.len() > 1) {
            // Of equally used classes, the one that would make most others ambiguous wins, else the
            // first.
            let weight = |class: ClassId| (self.all[class as usize].uses, citers.get(class).len());
            let winner = name
                .definitions
                .iter()
                .copied()
                .rev()
                .max_by_key(|&class| weight(class));
            let winner = winner.filter(|_| !name.tagged);
            clashing.extend(name.definitions.iter().filter(|&&class| Some(class) != winner));
        }
        clashing
    }

    /// The number of names.
    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    /// The meaning of a type's name to the types that refer to it.
    pub(super) fn meaning(&self, class: ClassId) -> Meaning {
        let name = self.all[class as usize].name.map(|name| &self.names[name as usize]);
        match name.map(|name| (&name.definitions[..], name.forward)) {
            Some((&[only], _)) if !self.all[only as usize].ambiguous => Meaning::Shared(only),
            Some((_, forward)) => Meaning::Declared(forward),
            None => Meaning::Shared(class),
        }
    }

    /// All definitions of a class's name in its namespace.
    pub(super) fn definitions(&self, class: ClassId) -> &[ClassId] {
        let name = self.all[class as usize].name.map(|name| &self.names[name as usize]);
        name.map_or(&[], |name| &name.definitions)
    }

    /// Marks types that refer to an ambiguous type as ambiguous, unless they need only its name.
    fn spread(&mut self, citers: &Citers, mut pending: Vec<ClassId>) {
        while let Some(class) = pending.pop() {
            if !std::mem::replace(&mut self.all[class as usize].ambiguous, true) {
                pending.extend(citers.get(class));
            }
        }
    }
}

fn name_of<'a>(node: &Node<'a>) -> Option<(Option<Kind>, &'a [u8])> {
    let named = !node.name.is_empty() && !matches!(node.body, Body::Function(_));
    named.then(|| (node.body.namespace(), node.name))
}
