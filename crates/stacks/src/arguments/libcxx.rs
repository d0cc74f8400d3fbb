//! Containers of libc++ with nodes or blocks, its tuples, and bits in words.

use backtrail_ctype::{Kind, Type, TypeId};
use backtrail_debuginfo::containers::{Form, Libcxx};
use backtrail_wire::Endian;

use super::contents::{MOST_ELEMENT_BYTES, WORD};
use super::lists::ENOUGH;
use super::show::{Byte, LEAST_REPEATS, LEFT_OUT, MOST_MEMBERS, Show, known};

/// Bytes of a deque's block, unless its elements are so large that it has `FEWEST` of them.
const BLOCK: u64 = 4096;
const FEWEST: u64 = 16;
/// The most bits that are read: more are not shown, unless they are equal.
const MOST_BITS: u64 = 1 << 12;

impl<'d> Show<'_, 'd> {
    /// Appends the contents of a container of libc++.
    pub(super) fn libcxx(&mut self, which: Libcxx, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        match which {
            Libcxx::List => {
                let count = self.in_pair(found, "__size_alloc_", "__value_", Kind::Integer, bytes)?;
                let (at, end) = self.nearest(found, "__end_", |of| of.kind() == Kind::Struct)?;
                let ends = self.pointers(&end, ["__next_", "__prev_"], bytes.get(at..)?)?;
                let nodes = self.nodes(found, ["__next_", "__prev_"], Form::Values)?;
                self.around(ends, nodes, count, depth)
            }
            Libcxx::ForwardList => {
                let first = self.in_pair(found, "__before_begin_", "__next_", Kind::Pointer, bytes)?;
                let nodes = self.nodes(found, ["__next_"], Form::Values)?;
                self.along(first, nodes, None, depth)
            }
            Libcxx::Hash(form) => {
                let count = self.in_pair(found, "__p2_", "__value_", Kind::Integer, bytes)?;
                let first = self.in_pair(found, "__p1_", "__next_", Kind::Pointer, bytes)?;
                let nodes = self.nodes(found, ["__next_"], form)?;
                self.along(first, nodes, Some(count), depth)
            }
            Libcxx::Tree(form) => self.tree_of_libcxx(found, form, bytes, depth),
            Libcxx::Deque => self.deque_of_libcxx(found, bytes, depth),
            Libcxx::Bits => {
                let is_word = |of: &Type<'_>| of.kind() == Kind::Integer && of.size() == WORD as u64;
                let [start] = self.pointers(found, ["__begin_"], bytes)?;
                let (at, _) = self.nearest(found, "__size_", is_word)?;
                let count = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
                self.bits(start, 0, count)
            }
            Libcxx::Tuple => self.leaves(found, bytes, depth),
        }
    }

    /// A word of a pair of which one part may have no members.
    fn in_pair(&self, found: &Type<'d>, pair: &str, name: &str, kind: Kind, bytes: &[Byte]) -> Option<u64> {
        let (at, pair) = self.nearest(found, pair, |of| of.kind() == Kind::Struct)?;
        let is_word = |of: &Type<'_>| of.kind() == kind && (kind == Kind::Pointer || of.size() == WORD as u64);
        let (within, _) = self.nearest(&pair, name, is_word)?;
        let at = at.checked_add(within)?;
        self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)
    }

    /// Where a node has its value, and the type of that. Maps have pairs in a class of their own.
    pub(super) fn value_of_node(&self, node: &Type<'d>, form: Form) -> Option<(usize, TypeId)> {
        let (at, value) = self.nearest(node, "__value_", |_| true)?;
        if form == Form::Values {
            return Some((at, value.id()));
        }
        let pair = |name| self.nearest(&value, name, |of| of.kind() == Kind::Struct);
        let (within, pair) = pair("__cc").or_else(|| pair("__cc_"))?;
        Some((at.checked_add(within)?, pair.id()))
    }

    /// Appends the elements of a tree in their order. The root's parent is in the container itself.
    fn tree_of_libcxx(&mut self, found: &Type<'d>, form: Form, bytes: &[Byte], depth: u32) -> Option<()> {
        const LINKS: [&str; 3] = ["__left_", "__right_", "__parent_"];
        let count = self.in_pair(found, "__pair3_", "__value_", Kind::Integer, bytes)?;
        let root = self.in_pair(found, "__pair1_", "__left_", Kind::Pointer, bytes)?;
        let [mut at] = self.pointers(found, ["__begin_node_"], bytes)?;
        let (nodes, mut elements) = self.nodes(found, LINKS, form)?;
        ((count == 0) == (root == 0)).then_some(())?;
        if count > 0 {
            let [.., end] = self.links(root, &nodes)?;
            for index in 0..count.min(ENOUGH as u64) {
                self.node(at, &nodes, &mut elements)?;
                at = self.successor(at, &nodes)?;
                ((index + 1 == count) == (at == end)).then_some(())?;
            }
        }
        self.listed(&elements, count, depth)
    }

    fn deque_of_libcxx(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let mut elements = self.no_elements(self.marked(found)?, Form::Values)?;
        let size = elements.size as u64;
        let in_block = if size < BLOCK / FEWEST { BLOCK / size } else { FEWEST };
        let is_word = |of: &Type<'_>| of.kind() == Kind::Integer && of.size() == WORD as u64;
        let count = self.in_pair(found, "__size_", "__value_", Kind::Integer, bytes)?;
        let (at, _) = self.nearest(found, "__start_", is_word)?;
        let first = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
        let (at, map) = self.nearest(found, "__map_", |of| of.kind() == Kind::Struct)?;
        let [start, end] = self.pointers(&map, ["__begin_", "__end_"], bytes.get(at..)?)?;
        let blocks = end.checked_sub(start)? / WORD as u64;
        let is_inside = first.checked_add(count)? <= blocks.checked_mul(in_block)?;
        is_inside.then_some(())?;
        let read = count.min((MOST_ELEMENT_BYTES / size).max(1));
        for next in first..first.checked_add(read)? {
            let block = start.checked_add(next / in_block * WORD as u64)?;
            let block = self.number(&known(&self.memory(block, WORD as u64)?)?)?;
            let at = block.checked_add(next % in_block * size)?;
            elements.bytes.extend(self.memory(at, size)?);
        }
        self.listed(&elements, count, depth)
    }

    /// Appends the values of a tuple: each is a base class of one.
    fn leaves(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let (start, base) = self.nearest(found, "__base_", |of| of.kind() == Kind::Struct)?;
        let mut leaves = Vec::new();
        for member in base.members().ok()? {
            let member = member.ok()?;
            if member.name.starts_with(b"__tuple_leaf<") {
                let at = start.checked_add(usize::try_from(member.offset / 8).ok()?)?;
                let (within, id) = self.held(self.resolve(member.id).ok()?, "__value_");
                leaves.push((at.checked_add(within)?, id));
            }
        }
        self.parts(leaves, bytes, depth)
    }

    /// Appends the bits between two iterators of libstdc++: each is a word's address and a bit in
    /// the word.
    pub(super) fn bits_between(&mut self, found: &Type<'d>, names: [&str; 2], bytes: &[Byte]) -> Option<()> {
        let [mut words, mut bits] = [[0; 2]; 2];
        for (index, name) in names.into_iter().enumerate() {
            let (at, iterator) = self.nearest(found, name, |of| of.kind() == Kind::Struct)?;
            let bytes = bytes.get(at..)?;
            [words[index]] = self.pointers(&iterator, ["_M_p"], bytes)?;
            let (at, _) = self.nearest(&iterator, "_M_offset", |of| {
                of.kind() == Kind::Integer && of.size() == 4
            })?;
            bits[index] = self.number(&known(bytes.get(at..at.checked_add(4)?)?)?)?;
        }
        let whole = words[1].checked_sub(words[0])?.checked_mul(8)?;
        let count = whole.checked_add(bits[1])?.checked_sub(bits[0])?;
        (bits[0] < 64 && bits[1] < 64).then_some(())?;
        self.bits(words[0], bits[0], count)
    }

    /// Appends this many bits from one of memory on, the lowest of each byte first.
    fn bits(&mut self, start: u64, first: u64, count: u64) -> Option<()> {
        (self.endian == Endian::Little).then_some(())?;
        let known = count.min(MOST_BITS);
        let memory = match known {
            0 => Vec::new(),
            _ => self.memory(start, (first + known).div_ceil(8))?,
        };
        let bit = |index: u64| {
            let at = first + index;
            let byte = memory.get((at / 8) as usize).copied().flatten()?;
            Some(byte >> (at % 8) & 1 != 0)
        };
        self.out.push('{');
        let (mut index, mut shown) = (0, 0);
        while index < count {
            if index > 0 {
                self.out.push_str(", ");
            }
            if shown == MOST_MEMBERS || index >= known {
                self.out.push_str(LEFT_OUT);
                break;
            }
            let value = bit(index)?;
            let repeats = (index..known).take_while(|&other| bit(other) == Some(value)).count();
            self.out += &value.to_string();
            index += match repeats >= LEAST_REPEATS {
                true => {
                    self.out += &format!(" <repeats {repeats} times>");
                    repeats as u64
                }
                false => 1,
            };
            shown += 1;
        }
        self.out.push('}');
        Some(())
    }
}
