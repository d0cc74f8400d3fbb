//! Containers of libstdc++ with nodes: lists, trees and hash tables.
//!
//! Memory may be anything, so walks have limits, and what a node says of its neighbours has to
//! agree with what they say. Otherwise, a container is not shown as one.

use backtrail_ctype::{Kind, Type, TypeId};
use backtrail_debuginfo::containers::Form;

use super::contents::{MOST_ELEMENT_BYTES, WORD};
use super::show::{Byte, LEFT_OUT, MOST_MEMBERS, Show, known};
use crate::process::Hidden;

/// Maximum height of a tree: as many nodes as there are addresses have less than twice 64.
const HIGHEST: usize = 128;
/// The number of elements that are enough to show that there are more than are shown.
pub(super) const ENOUGH: usize = MOST_MEMBERS + 1;

/// Elements one after the other, as far as they are known.
pub(super) struct Elements {
    /// The type of each; of pairs, that of the key, and where it is.
    pub(super) key: (usize, TypeId),
    /// Of pairs, where the value is, and its type.
    pub(super) value: Option<(usize, TypeId)>,
    /// Bytes of each.
    pub(super) size: usize,
    pub(super) bytes: Vec<Byte>,
}

/// Where a node has its links and its value.
pub(super) struct Nodes<const N: usize> {
    links: [usize; N],
    /// Bytes of a node.
    size: u64,
    /// Where its value is.
    at: usize,
}

impl<'d> Show<'_, 'd> {
    /// Elements of this type, of which none is known yet.
    pub(super) fn no_elements(&mut self, id: TypeId, form: Form) -> Option<Elements> {
        let size = usize::try_from(self.size(id)?).ok()?;
        let (key, value) = match form {
            Form::Values => ((0, id), None),
            Form::Pairs => {
                let (key, value) = self.pair(id)?;
                (key, Some(value))
            }
        };
        let bytes = Vec::new();
        (size > 0 && size as u64 <= MOST_ELEMENT_BYTES).then_some(Elements {
            key,
            value,
            size,
            bytes,
        })
    }

    /// The members of a pair.
    fn pair(&self, id: TypeId) -> Option<((usize, TypeId), (usize, TypeId))> {
        let pair = self.resolve(id).ok()?;
        let member = |names: [&[u8]; 2]| {
            let mut members = pair.members().ok()?.filter_map(Result::ok);
            let member = members.find(|member| names.contains(&member.name))?;
            Some((usize::try_from(member.offset / 8).ok()?, member.id))
        };
        Some((member([b"first", b"__0"])?, member([b"second", b"__1"])?))
    }

    /// Appends elements, of which there are this many.
    pub(super) fn listed(&mut self, elements: &Elements, count: u64, depth: u32) -> Option<()> {
        let count = usize::try_from(count).ok()?;
        let Some((at_value, value)) = elements.value else {
            return self.elements(elements.key.1, count, &elements.bytes, depth);
        };
        let (at_key, key) = elements.key;
        let mut pairs = elements.bytes.chunks_exact(elements.size);
        self.out.push('{');
        for index in 0..count {
            if index > 0 {
                self.out.push_str(", ");
            }
            let pair = pairs.next().filter(|_| index < MOST_MEMBERS);
            let Some(pair) = pair else {
                self.out.push_str(LEFT_OUT);
                break;
            };
            self.out.push('[');
            let before = self.out.len();
            self.part(key, pair.get(at_key..)?, depth);
            let is_hidden = self.shown.hides(self.out[before..].trim_matches('"'));
            self.out.push_str("] = ");
            match is_hidden {
                true => self.leave_out(Hidden::Name),
                false => self.part(value, pair.get(at_value..)?, depth),
            }
        }
        self.out.push('}');
        Some(())
    }

    fn part(&mut self, id: TypeId, bytes: &[Byte], depth: u32) {
        let before = self.out.len();
        if self.value(id, bytes, depth + 1).is_none() {
            self.cut(before);
            self.out.push_str(LEFT_OUT);
        }
    }

    /// Appends a `std::list`: a ring of nodes, of which one is in the list itself.
    pub(super) fn ring(&mut self, found: &Type<'d>, length: &str, bytes: &[Byte], depth: u32) -> Option<()> {
        let count = self.word(found, length, Kind::Integer, bytes)?;
        let ends = self.pointers(found, ["_M_next", "_M_prev"], bytes)?;
        let nodes = self.nodes(found, ["_M_next", "_M_prev"], Form::Values)?;
        self.around(ends, nodes, count, depth)
    }

    /// Appends the elements of a ring, of which these are the first and the last one.
    pub(super) fn around(
        &mut self,
        [first, last]: [u64; 2],
        (nodes, mut elements): (Nodes<2>, Elements),
        count: u64,
        depth: u32,
    ) -> Option<()> {
        let (mut at, mut before, mut end) = (first, 0, 0);
        for index in 0..count.min(ENOUGH as u64) {
            let [next, previous] = self.node(at, &nodes, &mut elements)?;
            match index {
                0 => end = previous,
                _ => (previous == before).then_some(())?,
            }
            if index + 1 == count {
                (next == end && at == last).then_some(())?;
            }
            (before, at) = (at, next);
        }
        (count > 0 || first == last).then_some(())?;
        self.listed(&elements, count, depth)
    }

    /// Appends a `std::forward_list`, or a hash table, whose elements are in such a list.
    pub(super) fn chain(
        &mut self,
        found: &Type<'d>,
        next: &str,
        length: &str,
        form: Form,
        bytes: &[Byte],
        depth: u32,
    ) -> Option<()> {
        let [first] = self.pointers(found, [next], bytes)?;
        let nodes = self.nodes(found, [next], form)?;
        let count = match length {
            "" => None,
            length => Some(self.word(found, length, Kind::Integer, bytes)?),
        };
        self.along(first, nodes, count, depth)
    }

    /// Appends the elements of a list that ends with a null pointer.
    pub(super) fn along(
        &mut self,
        first: u64,
        (nodes, mut elements): (Nodes<1>, Elements),
        count: Option<u64>,
        depth: u32,
    ) -> Option<()> {
        let mut at = first;
        let mut walked = 0;
        while at != 0 && walked < ENOUGH as u64 {
            [at] = self.node(at, &nodes, &mut elements)?;
            walked += 1;
        }
        let is_whole = at == 0;
        let is_right = |&count: &u64| if is_whole { count == walked } else { count > walked };
        let count = match count {
            Some(count) => Some(count).filter(is_right)?,
            None => walked,
        };
        self.listed(&elements, count, depth)
    }

    /// Appends the elements of a red-black tree in their order.
    pub(super) fn tree(&mut self, found: &Type<'d>, form: Form, bytes: &[Byte], depth: u32) -> Option<()> {
        const LINKS: [&str; 3] = ["_M_left", "_M_right", "_M_parent"];
        let count = self.word(found, "_M_node_count", Kind::Integer, bytes)?;
        let (at, header) = self.nearest(found, "_M_header", |of| of.kind() == Kind::Struct)?;
        let [first, last, root] = self.pointers(&header, LINKS, bytes.get(at..)?)?;
        let (nodes, mut elements) = self.nodes(found, LINKS, form)?;
        let mut at = first;
        for index in 0..count.min(ENOUGH as u64) {
            self.node(at, &nodes, &mut elements)?;
            if index + 1 == count {
                (at == last).then_some(())?;
            } else {
                at = self.successor(at, &nodes)?;
            }
        }
        ((count == 0) == (root == 0)).then_some(())?;
        self.listed(&elements, count, depth)
    }

    /// The next node of a tree.
    pub(super) fn successor(&self, at: u64, nodes: &Nodes<3>) -> Option<u64> {
        let [_, right, mut parent] = self.links(at, nodes)?;
        let mut child = at;
        if right == 0 {
            for _ in 0..HIGHEST {
                let [left, right, above] = self.links(parent, nodes)?;
                if left == child {
                    return Some(parent);
                }
                (right == child).then_some(())?;
                (child, parent) = (parent, above);
            }
            return None;
        }
        (parent, child) = (at, right);
        for _ in 0..HIGHEST {
            let [left, _, above] = self.links(child, nodes)?;
            (above == parent).then_some(())?;
            if left == 0 {
                return Some(child);
            }
            (parent, child) = (child, left);
        }
        None
    }

    /// Where the nodes of a container have these links and their elements.
    pub(super) fn nodes<const N: usize>(
        &mut self,
        found: &Type<'d>,
        links: [&str; N],
        form: Form,
    ) -> Option<(Nodes<N>, Elements)> {
        let node = self.resolve(self.marked(found)?).ok()?;
        let (at, element) = match self.nearest(&node, "_M_storage", |of| of.kind() == Kind::Struct) {
            Some((at, storage)) => (at, self.marked(&storage)?),
            None => self.value_of_node(&node, form)?,
        };
        let elements = self.no_elements(element, form)?;
        let mut offsets = [0; N];
        for (offset, name) in offsets.iter_mut().zip(links) {
            (*offset, _) = self.nearest(&node, name, |of| of.kind() == Kind::Pointer)?;
        }
        let size = Some(node.size()).filter(|&size| size <= 2 * MOST_ELEMENT_BYTES)?;
        let links = offsets;
        Some((Nodes { links, size, at }, elements))
    }

    /// Adds the element of the node at an address, and returns the node's links.
    pub(super) fn node<const N: usize>(&self, at: u64, nodes: &Nodes<N>, elements: &mut Elements) -> Option<[u64; N]> {
        let bytes = self.memory(at, nodes.size)?;
        let value = bytes.get(nodes.at..nodes.at.checked_add(elements.size)?)?;
        elements.bytes.extend_from_slice(value);
        self.links_of(&bytes, nodes)
    }

    pub(super) fn links<const N: usize>(&self, at: u64, nodes: &Nodes<N>) -> Option<[u64; N]> {
        // The header, which is no whole node, has its links where nodes have them.
        let size = nodes.links.iter().max()? + WORD;
        self.links_of(&self.memory(at, size as u64)?, nodes)
    }

    fn links_of<const N: usize>(&self, bytes: &[Byte], nodes: &Nodes<N>) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, &at) in words.iter_mut().zip(&nodes.links) {
            *word = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
        }
        Some(words)
    }

    /// The pointers with these names that are nested least in a struct.
    pub(super) fn pointers<const N: usize>(
        &self,
        found: &Type<'d>,
        names: [&str; N],
        bytes: &[Byte],
    ) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, name) in words.iter_mut().zip(names) {
            let (at, _) = self.nearest(found, name, |of| of.kind() == Kind::Pointer)?;
            *word = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
        }
        Some(words)
    }
}
