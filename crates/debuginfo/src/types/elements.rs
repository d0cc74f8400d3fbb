//! Which types the elements of containers have: no member of a vector or a map has the type of its
//! elements, so a member without a name is added: an array without elements, of pointers to it. No
//! struct of C has one, so readers cannot take another member for it.

use backtrail_ctype::graph::{Body, Graph, Node, Span};
use backtrail_ctype::{Array, Kind, StructMember, TypeId};
use gimli::constants as dw;
use rustc_hash::{FxHashMap, FxHashSet};

use super::build::{Builder, Place};
use super::dies::{Die, Ref};
use crate::containers::{self, containers, is_box, node};

/// Limit of typedefs and qualifiers in a row.
const MOST_NAMES: usize = 64;
/// The deepest nesting of types that are compared.
const DEEPEST: u32 = 16;
/// Limit of the types that are looked at to compare two, and to find a way back to one.
const MOST_COMPARED: usize = 1 << 12;

impl<'d> Builder<'_, 'd> {
    /// The member that shows the type of a container's elements.
    pub(super) fn elements_shown(&mut self, at: Place, die: &Die<'d>) -> Option<StructMember<'d>> {
        if let Some(element) = self.element_of_slice(at, die) {
            return self.element_member(element);
        }
        let element = match containers::elements(die.name)? {
            containers::Elements::Parameter(number) => self.parameter(at, number)?,
            containers::Elements::Node(names, number) => {
                let of = self.parameter(at, number)?;
                let nodes = self.nodes(at.0);
                *names.iter().find_map(|&name| nodes.get(&(name, of)))?
            }
            containers::Elements::Pointer(name) => {
                let children = self.children(at);
                let (place, member) = children.iter().find(|(_, child)| child.name == name.as_bytes())?;
                let pointer = self.all.resolve(place.0, member.of?)?;
                self.all.resolve(pointer.0, self.die(pointer).of?)?
            }
        };
        self.element_member(element)
    }

    /// The type of the elements of D's slices, and of Ada's arrays without fixed bounds, which have
    /// two bounds of four bytes. Both are structs of a pointer and one more word.
    fn element_of_slice(&self, at: Place, die: &Die<'d>) -> Option<Place> {
        let language = self.all.units[at.0 as usize].language?;
        let is_ada = matches!(
            language,
            dw::DW_LANG_Ada83 | dw::DW_LANG_Ada95 | dw::DW_LANG_Ada2005 | dw::DW_LANG_Ada2012
        );
        if !is_ada && language != dw::DW_LANG_D || die.size != Some(16) {
            return None;
        }
        let children = self.children(at);
        let named = |name: &[u8]| {
            let mut members = children.iter().filter(|(_, child)| child.tag == dw::DW_TAG_member);
            let (place, member) = members.find(|(_, member)| member.name == name)?;
            self.all.resolve(place.0, member.of?)
        };
        let pointed = |at: Place| self.all.resolve(at.0, self.die(at).of?);
        if !is_ada {
            named(b"length")?;
            return pointed(named(b"ptr")?);
        }
        let bounds = pointed(named(b"P_BOUNDS")?)?;
        let array = pointed(named(b"P_ARRAY")?)?;
        let dimensions = self.children(array).into_iter();
        let mut dimensions = dimensions.filter(|(_, child)| child.tag == dw::DW_TAG_subrange_type);
        let (place, dimension) = dimensions.next().filter(|_| dimensions.next().is_none())?;
        // Of enums, bounds are no numbers of elements.
        let index = self.die(self.all.resolve(place.0, dimension.of?)?).tag;
        let is_number = matches!(index, dw::DW_TAG_base_type | dw::DW_TAG_subrange_type);
        let is_known = is_number && self.die(bounds).size == Some(8);
        (is_known && self.die(array).tag == dw::DW_TAG_array_type).then(|| pointed(array))?
    }

    /// Separates the unit's structs that share a name.
    pub(super) fn separate(&mut self) {
        separate(&mut self.graph);
    }

    fn element_member(&mut self, element: Place) -> Option<StructMember<'d>> {
        let element = self.element(element)?;
        let contents = self.graph.add_nameless(Body::Reference(Kind::Pointer, element));
        let array = Array {
            contents,
            index: contents,
            count: 0,
        };
        Some(StructMember {
            name: &[],
            offset: 0,
            id: self.graph.add_nameless(Body::Array(array)),
        })
    }

    /// The target of an owning pointer: a struct with its name, which only has the member of its
    /// element. Unlike a nameless target, it may lead back to itself.
    pub(super) fn boxed(&mut self, at: Place, die: &Die<'d>) -> Option<TypeId> {
        if !is_box(die.name) {
            return None;
        }
        let target = self.all.resolve(at.0, die.of?)?;
        if let Some(&known) = self.elements.copies.get(&at) {
            return Some(known);
        }
        let id = self.graph.add_nameless(Body::Unknown);
        self.elements.copies.insert(at, id);
        let member = self.element_member(target);
        let members = self.graph.add_members(member);
        let body = Body::Aggregate(Kind::Struct, 0, members);
        let name = die.name;
        self.graph.replace(id, Node { name, root: true, body });
        Some(id)
    }

    /// The type that a class's type parameter with this number has.
    fn parameter(&self, at: Place, number: usize) -> Option<Place> {
        let children = self.children(at).into_iter();
        let mut parameters = children.filter(|(_, child)| child.tag == dw::DW_TAG_template_type_parameter);
        let (place, parameter) = parameters.nth(number)?;
        self.all.resolve(place.0, parameter.of?)
    }

    fn nodes(&mut self, unit: u32) -> &FxHashMap<(&'static str, Place), Place> {
        if !self.elements.nodes.contains_key(&unit) {
            let dies = self.all.units[unit as usize].dies.iter().enumerate();
            let nodes = dies.filter_map(|(index, die)| {
                let at = (unit, index as u32);
                let name = node(die.name).filter(|_| !die.declaration)?;
                Some(((name, self.parameter(at, 0)?), at))
            });
            let nodes = nodes.collect();
            self.elements.nodes.insert(unit, nodes);
        }
        &self.elements.nodes[&unit]
    }

    /// The type of elements. `None` if it is only declared.
    fn element(&mut self, mut at: Place) -> Option<TypeId> {
        for _ in 0..MOST_NAMES {
            let die = *self.die(at);
            let further = match (die.tag, die.origin) {
                (_, Some(signature @ Ref::Signature(_))) => signature,
                (dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type, _) => die.of?,
                (dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type, _) => {
                    if die.declaration {
                        return None;
                    }
                    if containers(die.name).next().is_some() {
                        return Some(self.type_at(at));
                    }
                    if let Some(&known) = self.elements.copies.get(&at) {
                        return Some(known);
                    }
                    let id = self.nameless_at(at);
                    self.elements.copies.insert(at, id);
                    return Some(id);
                }
                _ => return Some(self.type_at(at)),
            };
            at = self.all.resolve(at.0, further)?;
        }
        None
    }
}

/// Separates the structs of a unit that share a name, as those of several namespaces do: references
/// to structs are by name. They lose their names, and containers that share one lose the types of
/// their elements.
fn separate(graph: &mut Graph<'_>) {
    let mut named: FxHashMap<(Option<Kind>, &[u8]), Vec<usize>> = FxHashMap::default();
    for (index, node) in graph.nodes().iter().enumerate() {
        if matches!(node.body, Body::Aggregate(..)) && !node.name.is_empty() {
            named.entry((node.body.namespace(), node.name)).or_default().push(index);
        }
    }
    let groups = named.into_values().filter(|group| group.len() > 1);
    let groups = groups.filter(|group| {
        group
            .iter()
            .any(|&index| !is_same(graph, group[0], index, 0, &mut { MOST_COMPARED }))
    });
    let mut groups: Vec<Vec<usize>> = groups.collect();
    groups.sort_unstable();
    let separated: FxHashSet<usize> = groups.iter().flatten().copied().collect();
    let cyclic: FxHashSet<usize> = separated
        .iter()
        .copied()
        .filter(|&index| leads_to_itself(graph, index, &separated))
        .collect();
    for index in groups.into_iter().flatten() {
        let Node { name, root, body } = graph.nodes()[index];
        let Body::Aggregate(kind, size, members) = body else {
            continue;
        };
        let (name, body) = match (containers(name).next(), cyclic.contains(&index)) {
            (None, true) => (name, Body::Unknown),
            (None, false) => (&[][..], body),
            (Some(_), false) if is_hash_table(graph, name, members) => (&[][..], body),
            (Some(_), _) => {
                let members = graph.members(members).to_vec();
                let members = members.into_iter().filter(|member| !shows_elements(graph, member));
                let members: Vec<_> = members.collect();
                (name, Body::Aggregate(kind, size, graph.add_members(members)))
            }
        };
        graph.replace(graph.id(index), Node { name, root, body });
    }
}

/// Whether this is a map or a set of the crate that Rust's library makes its own ones of, under the
/// same names.
fn is_hash_table(graph: &Graph<'_>, name: &[u8], members: Span) -> bool {
    let is_base = |member: &StructMember<'_>| member.name == b"base";
    name.starts_with(b"Hash") && !graph.members(members).iter().any(is_base)
}

fn shows_elements(graph: &Graph<'_>, member: &StructMember<'_>) -> bool {
    let array = graph.get(member.id).map(|node| node.body);
    member.name.is_empty() && matches!(array, Some(Body::Array(array)) if array.count == 0)
}

/// Whether two types of a graph are equal, as far as they are compared.
fn is_same(graph: &Graph<'_>, one: usize, other: usize, depth: u32, left: &mut usize) -> bool {
    if one == other || depth > DEEPEST || *left == 0 {
        return one == other;
    }
    *left -= 1;
    let [first, second] = [one, other].map(|index| graph.nodes()[index]);
    let mut of = |one: TypeId, other: TypeId| match (graph.index(one), graph.index(other)) {
        (Some(one), Some(other)) => is_same(graph, one, other, depth + 1, left),
        (one, other) => one == other,
    };
    first.name == second.name
        && match (first.body, second.body) {
            (Body::Reference(kind, to), Body::Reference(other, also)) => kind == other && of(to, also),
            (Body::Array(one), Body::Array(other)) => one.count == other.count && of(one.contents, other.contents),
            (Body::Aggregate(kind, size, members), Body::Aggregate(other, also, others)) => {
                let (members, others) = (graph.members(members), graph.members(others));
                let mut is_equal = |(one, other): (&StructMember<'_>, &StructMember<'_>)| {
                    (one.name, one.offset) == (other.name, other.offset) && of(one.id, other.id)
                };
                (kind, size, members.len()) == (other, also, others.len())
                    && members.iter().zip(others).all(&mut is_equal)
            }
            (Body::Enum(size, values), Body::Enum(other, others)) => {
                size == other && graph.values(values) == graph.values(others)
            }
            (Body::Slice(size, one), Body::Slice(also, other)) => {
                (size, one.offset, one.bits) == (also, other.offset, other.bits) && of(one.of, other.of)
            }
            (one, other) => one == other,
        }
}

/// Whether a type leads back to itself, other than through structs that are referred to by name.
fn leads_to_itself(graph: &Graph<'_>, start: usize, separated: &FxHashSet<usize>) -> bool {
    let (mut pending, mut seen) = (vec![start], FxHashSet::default());
    let mut found = false;
    while let Some(index) = pending.pop() {
        if seen.len() > MOST_COMPARED {
            return true;
        }
        graph.references(&graph.nodes()[index], |id| {
            let Some(to) = graph.index(id) else { return };
            found |= to == start;
            let node = &graph.nodes()[to];
            let is_by_name = matches!(node.body, Body::Aggregate(..)) && !node.name.is_empty();
            let keeps_name = containers(node.name).next().is_some() && !node.name.starts_with(b"Hash");
            let ends = is_by_name && (keeps_name || !separated.contains(&to));
            if !ends && seen.insert(to) {
                pending.push(to);
            }
        });
    }
    found
}
