//! The same types of all units as classes, and which of them are ambiguous.

use rustc_hash::FxHashMap;

use super::hash::counts_by_name;
use super::{Mode, Unit};
use crate::constants::Kind;
use crate::graph::{Body, Graph, Node};
use crate::read::{MAX_REFERENCES, TypeId};

/// A class's number, in the order in which units have them first.
pub(super) type ClassId = u32;
/// A name's number.
pub(super) type NameId = u32;

/// A type as units have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The first unit that has it, and where.
    pub(super) unit: u32,
    pub(super) index: u32,
    /// How many types of units it stands for, and how many units have it.
    uses: u32,
    units: u32,
    last_unit: u32,
    pub(super) name: Option<NameId>,
    /// Whether it has no place in the parent.
    pub(super) ambiguous: bool,
}

/// All types that have one name in one namespace.
#[derive(Clone, Debug, Default)]
struct Name {
    /// Whether it is the namespace of structs, unions or enums.
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

/// What a reference to a struct or union that has a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This one, which there is once.
    Shared(ClassId),
    /// Whichever the unit has: what is shared can refer to its declaration only. The class of a declaration, if units have one.
    Declared(Option<ClassId>),
}

impl Classes {
    /// From each unit's types and their hashes.
    pub(super) fn new(units: &[Unit<'_>], hashes: &[Vec<u128>], mode: Mode) -> Classes {
        let mut classes = Classes::merge(units, hashes);
        let citers = classes.citers(units);
        let mut ambiguous = classes.clashing(&citers);
        if mode == Mode::ShareDuplicated {
            let single = (0..classes.all.len() as ClassId).filter(|&class| classes.all[class as usize].units == 1);
            ambiguous.extend(single);
        }
        classes.spread(&citers, ambiguous);
        classes
    }

    fn merge<'a>(units: &[Unit<'a>], hashes: &[Vec<u128>]) -> Classes {
        let mut known: FxHashMap<u128, ClassId> = FxHashMap::default();
        let mut names: FxHashMap<(Option<Kind>, &'a [u8]), NameId> = FxHashMap::default();
        let mut classes = Classes {
            all: Vec::new(),
            of: Vec::with_capacity(units.len()),
            names: Vec::new(),
        };
        for (number, (unit, hashes)) in units.iter().zip(hashes).enumerate() {
            let mut of_unit = Vec::with_capacity(hashes.len());
            for (index, (node, &hash)) in unit.types.nodes().iter().zip(hashes).enumerate() {
                let next = classes.all.len() as ClassId;
                let class = *known.entry(hash).or_insert(next);
                if class == next {
                    let name = name_of(node).map(|name| {
                        let fresh = classes.names.len() as NameId;
                        let id = *names.entry(name).or_insert(fresh);
                        if id == fresh {
                            let tagged = name.0.is_some();
                            classes.names.push(Name {
                                tagged,
                                ..Name::default()
                            });
                        }
                        id
                    });
                    classes.add(number as u32, index as u32, name, matches!(node.body, Body::Forward(_)));
                }
                let class_of = &mut classes.all[class as usize];
                class_of.uses += 1;
                class_of.units += u32::from(class_of.last_unit != number as u32);
                class_of.last_unit = number as u32;
                of_unit.push(class);
            }
            classes.of.push(of_unit);
        }
        classes
    }

    fn add(&mut self, unit: u32, index: u32, name: Option<NameId>, forward: bool) {
        let class = self.all.len() as ClassId;
        if let Some(name) = name {
            let name = &mut self.names[name as usize];
            match forward {
                true => name.forward = Some(class),
                false => name.definitions.push(class),
            }
        }
        self.all.push(Class {
            unit,
            index,
            uses: 0,
            units: 0,
            last_unit: u32::MAX,
            name,
            ambiguous: false,
        });
    }

    /// Classes that clash by their names: of structs, unions and enums all that share one, of other types all but the one that
    /// is used most.
    fn clashing(&self, citers: &[Vec<ClassId>]) -> Vec<ClassId> {
        let mut clashing = Vec::new();
        for name in self.names.iter().filter(|name| name.definitions.len() > 1) {
            // Of those that are used alike, the one that would draw most others with it; else the first.
            let weight = |class: ClassId| (self.all[class as usize].uses, citers[class as usize].len());
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

    /// What a type's name alone means, to those who refer to it.
    pub(super) fn meaning(&self, class: ClassId) -> Meaning {
        let name = self.all[class as usize].name.map(|name| &self.names[name as usize]);
        match name.map(|name| (&name.definitions[..], name.forward)) {
            Some((&[only], _)) if !self.all[only as usize].ambiguous => Meaning::Shared(only),
            Some((_, forward)) => Meaning::Declared(forward),
            None => Meaning::Shared(class),
        }
    }

    /// All that one name means in its namespace.
    pub(super) fn definitions(&self, class: ClassId) -> &[ClassId] {
        let name = self.all[class as usize].name.map(|name| &self.names[name as usize]);
        name.map_or(&[], |name| &name.definitions)
    }

    /// For each class those that refer to it by more than its name, and those that are aligned as it is.
    fn citers(&self, units: &[Unit<'_>]) -> Vec<Vec<ClassId>> {
        let mut citers = vec![Vec::new(); self.all.len()];
        for (number, class) in self.all.iter().enumerate() {
            let graph = &units[class.unit as usize].types;
            let node = &graph.nodes()[class.index as usize];
            graph.references(node, |id| {
                let Some(to) = graph.index(id) else { return };
                let other = &graph.nodes()[to];
                if counts_by_name(other).is_none() {
                    let to = self.of[class.unit as usize][to];
                    citers[to as usize].push(number as ClassId);
                }
            });
            aligned_by(graph, node, &mut |aggregate, _| {
                let to = self.of[class.unit as usize][aggregate];
                citers[to as usize].push(number as ClassId);
            });
        }
        citers
    }

    /// What refers to an ambiguous type is ambiguous too, unless its name is enough.
    fn spread(&mut self, citers: &[Vec<ClassId>], mut pending: Vec<ClassId>) {
        while let Some(class) = pending.pop() {
            if !std::mem::replace(&mut self.all[class as usize].ambiguous, true) {
                pending.extend(&citers[class as usize]);
            }
        }
    }
}

/// The structs and unions with a name whose alignment readers take for a type's own: what an array has, what a union has, what a struct begins
/// with. `each` gets where in the graph each is, and the types by way of which it is one (arrays, typedefs, qualifiers).
pub(super) fn aligned_by(graph: &Graph<'_>, node: &Node<'_>, each: &mut dyn FnMut(usize, &[usize])) {
    let members = match node.body {
        Body::Array(array) => return follow(graph, array.contents, each),
        Body::Aggregate(Kind::Union, _, members) => graph.members(members),
        Body::Aggregate(_, _, members) => graph.members(members).get(..1).unwrap_or_default(),
        _ => return,
    };
    members.iter().for_each(|member| follow(graph, member.id, each));
}

fn follow(graph: &Graph<'_>, id: TypeId, each: &mut dyn FnMut(usize, &[usize])) {
    let (mut next, mut way) = (id, Vec::new());
    while let Some(index) = graph.index(next).filter(|_| way.len() < MAX_REFERENCES) {
        let Some(node) = graph.nodes().get(index) else { return };
        next = match node.body {
            Body::Reference(kind, to) if kind != Kind::Pointer => to,
            Body::Array(array) => array.contents,
            Body::Aggregate(..) if !node.name.is_empty() => return each(index, &way),
            _ => return,
        };
        way.push(index);
    }
}

fn name_of<'a>(node: &Node<'a>) -> Option<(Option<Kind>, &'a [u8])> {
    let named = !node.name.is_empty() && !matches!(node.body, Body::Function(_));
    named.then(|| (node.body.namespace(), node.name))
}
