//! A 128-bit hash of a type, equal in every unit that has the same type.
//!
//! The hash covers the type's kind, name and numbers, and the hashes of the types it refers to. A
//! reference to a named or only declared struct or union covers just its name. That breaks circles,
//! and makes a pointer to a struct the same type whether or not the unit has the struct's members.
//! The name of a function type is that of some function, and not part of the type.
//!
//! A unit may have several structs of one name, inside functions. Then the name is not enough for
//! types that are ambiguous with such a struct, like an array of it: they cover its hash, too.

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_128;

use super::LinkErrorKind;
use crate::constants::Kind;
use crate::graph::{Body, Graph, Node};
use crate::read::{MAX_REFERENCES, TypeId};

/// Represents no type; `BY_NAME` precedes a type that counts only by its name.
const NONE: u8 = 0xff;
const BY_NAME: u8 = 0xfe;

/// The kind, if references to the type mean only its name.
pub(super) fn counts_by_name(node: &Node<'_>) -> Option<Kind> {
    match node.body {
        Body::Aggregate(kind, ..) | Body::Forward(kind) if !node.name.is_empty() => Some(kind),
        _ => None,
    }
}

/// The hashes of all types of a graph, in their order.
pub(super) fn hashes(graph: &Graph<'_>) -> Result<Vec<u128>, LinkErrorKind> {
    let mut hasher = Hasher {
        graph,
        states: vec![State::New; graph.len()],
        hashes: vec![0; graph.len()],
        pending: Vec::new(),
        buffer: Vec::new(),
        parts: FxHashMap::default(),
    };
    hasher.all()?;
    hasher.parts = parts(graph, &hasher.hashes);
    if !hasher.parts.is_empty() {
        hasher.states.fill(State::New);
        hasher.all()?;
    }
    Ok(hasher.hashes)
}

/// For types that take their alignment from a struct whose name the graph has several definitions
/// of, and for the types in between: the hashes of these structs.
fn parts(graph: &Graph<'_>, hashes: &[u128]) -> FxHashMap<usize, Vec<u128>> {
    let mut named: FxHashMap<(Kind, &[u8]), Option<u128>> = FxHashMap::default();
    let mut parts: FxHashMap<usize, Vec<u128>> = FxHashMap::default();
    let mut has_several = false;
    for (node, &hash) in graph.nodes().iter().zip(hashes) {
        if let Body::Aggregate(kind, ..) = node.body
            && !node.name.is_empty()
        {
            let known = named.entry((kind, node.name)).or_insert(Some(hash));
            *known = known.filter(|&known| known == hash);
            has_several |= known.is_none();
        }
    }
    if !has_several {
        return parts;
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        aligned_by(graph, node, &mut |part, way| {
            let of = &graph.nodes()[part];
            if named.get(&(of.body.kind(), of.name)) == Some(&None) {
                for &index in way.iter().chain([&index]) {
                    parts.entry(index).or_default().push(hashes[part]);
                }
            }
        });
    }
    for parts in parts.values_mut() {
        parts.sort_unstable();
        parts.dedup();
    }
    parts
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Begun,
    Done,
}

struct Hasher<'a, 'g> {
    graph: &'g Graph<'a>,
    states: Vec<State>,
    hashes: Vec<u128>,
    /// Types that have been started, and the types that they wait for.
    pending: Vec<usize>,
    buffer: Vec<u8>,
    /// What else the hashes of some types cover.
    parts: FxHashMap<usize, Vec<u128>>,
}

impl<'a> Hasher<'a, '_> {
    fn all(&mut self) -> Result<(), LinkErrorKind> {
        (0..self.graph.len()).try_for_each(|index| self.hash(index))
    }

    fn hash(&mut self, first: usize) -> Result<(), LinkErrorKind> {
        if self.states[first] == State::Done {
            return Ok(());
        }
        self.pending.push(first);
        while let Some(&index) = self.pending.last() {
            let before = self.pending.len();
            if self.states[index] == State::New {
                self.states[index] = State::Begun;
                self.wait_for_others(index)?;
            }
            if self.pending.len() == before {
                self.pending.pop();
                if self.states[index] != State::Done {
                    self.hashes[index] = self.finish(index);
                    self.states[index] = State::Done;
                }
            }
        }
        Ok(())
    }

    fn wait_for_others(&mut self, index: usize) -> Result<(), LinkErrorKind> {
        let node = &self.graph.nodes()[index];
        let mut wrong = None;
        self.graph.references(node, |id| {
            if id.is_none() {
                return;
            }
            let to = self
                .graph
                .index(id)
                .and_then(|to| Some((to, self.graph.nodes().get(to)?)));
            let Some((to, other)) = to else {
                wrong.get_or_insert(LinkErrorKind::NoType(id));
                return;
            };
            match self.states[to] {
                _ if counts_by_name(other).is_some() => {}
                State::Done => {}
                State::New => self.pending.push(to),
                State::Begun => {
                    wrong.get_or_insert(LinkErrorKind::Cycle(id));
                }
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    fn finish(&mut self, index: usize) -> u128 {
        let node = &self.graph.nodes()[index];
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.push(node.body.kind() as u8);
        if !matches!(node.body, Body::Function(_)) {
            string(&mut buffer, node.name);
        }
        match node.body {
            Body::Unknown => {}
            Body::Number(_, size, encoding) => {
                buffer.extend(size.to_le_bytes());
                buffer.push(encoding.format);
                buffer.extend(encoding.offset.to_le_bytes());
                buffer.extend(encoding.bits.to_le_bytes());
            }
            Body::Reference(_, to) => self.reference(&mut buffer, to),
            Body::Array(array) => {
                self.reference(&mut buffer, array.contents);
                self.reference(&mut buffer, array.index);
                buffer.extend(array.count.to_le_bytes());
            }
            Body::Function(function) => {
                self.reference(&mut buffer, function.returns);
                for &argument in self.graph.arguments(function.arguments) {
                    self.reference(&mut buffer, argument);
                }
                buffer.push(function.variadic.into());
            }
            Body::Aggregate(_, size, members) => {
                buffer.extend(size.to_le_bytes());
                for member in self.graph.members(members) {
                    string(&mut buffer, member.name);
                    buffer.extend(member.offset.to_le_bytes());
                    self.reference(&mut buffer, member.id);
                }
            }
            Body::Enum(size, values) => {
                buffer.extend(size.to_le_bytes());
                for value in self.graph.values(values) {
                    string(&mut buffer, value.name);
                    buffer.extend(value.value.to_le_bytes());
                }
            }
            Body::Forward(kind) => buffer.push(kind as u8),
            Body::Slice(size, slice) => {
                buffer.extend(size.to_le_bytes());
                buffer.extend(slice.offset.to_le_bytes());
                buffer.extend(slice.bits.to_le_bytes());
                self.reference(&mut buffer, slice.of);
            }
        }
        for part in self.parts.get(&index).into_iter().flatten() {
            buffer.extend(part.to_le_bytes());
        }
        let hash = xxh3_128(&buffer);
        self.buffer = buffer;
        hash
    }

    fn reference(&self, buffer: &mut Vec<u8>, id: TypeId) {
        let to = self.graph.index(id).filter(|_| !id.is_none());
        let Some(to) = to else { return buffer.push(NONE) };
        let other = &self.graph.nodes()[to];
        match counts_by_name(other) {
            Some(kind) => {
                buffer.extend([BY_NAME, kind as u8]);
                string(buffer, other.name);
            }
            None => buffer.extend(self.hashes[to].to_le_bytes()),
        }
    }
}

/// Writes the length first, so that no two lists of strings have equal bytes.
fn string(buffer: &mut Vec<u8>, string: &[u8]) {
    buffer.extend((string.len() as u32).to_le_bytes());
    buffer.extend_from_slice(string);
}

/// The named structs and unions from which readers derive a type's alignment: an array's elements,
/// a union's members, a struct's first member. `each` receives the index in the graph, and the
/// types in between (arrays, typedefs, qualifiers).
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
