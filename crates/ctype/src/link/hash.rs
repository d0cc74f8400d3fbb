//! A 128-bit hash of a type, equal in every unit that has the same type.
//!
//! The hash covers the type's kind, name and numbers, and the hashes of the types it refers to. A
//! reference to a named or only declared struct or union covers just its name. That breaks circles,
//! and makes a pointer to a struct the same type whether or not the unit has the struct's members.
//! The name of a function type is that of some function, and not part of the type.

use xxhash_rust::xxh3::xxh3_128;

use super::LinkErrorKind;
use crate::constants::Kind;
use crate::graph::{Body, Graph, Node};
use crate::read::TypeId;

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
    };
    for index in 0..graph.len() {
        hasher.hash(index)?;
    }
    Ok(hasher.hashes)
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
}

impl<'a> Hasher<'a, '_> {
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
