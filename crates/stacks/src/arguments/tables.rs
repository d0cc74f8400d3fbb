//! Double-ended queues, and the maps of Rust's library.

use backtrail_ctype::{Kind, Type, TypeId};
use backtrail_debuginfo::containers::Form;

use super::contents::{MOST_ELEMENT_BYTES, WORD};
use super::lists::{ENOUGH, Elements};
use super::show::{Byte, Show, known};

/// Bytes of a block of `std::deque`, unless an element is larger.
const BLOCK: u64 = 512;
/// Maximum number of a hash table's buckets that are searched for elements.
const MOST_BUCKETS: u64 = 1 << 16;
/// Bytes of control that are read at a time.
const CONTROL: u64 = 4096;
/// Maximum height of a B-tree.
const HIGHEST: u64 = 24;

/// The nodes of a B-tree.
struct Branches {
    /// Bytes of a leaf, after which other nodes have the addresses of those below.
    size: u64,
    /// Where a node has the number of its elements.
    len: usize,
    /// The maximum number.
    most: usize,
    /// Where the first key is, and its bytes.
    keys: (usize, usize),
    values: (usize, usize),
}

impl<'d> Show<'_, 'd> {
    /// Appends a `std::deque`.
    pub(super) fn blocks(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let mut elements = self.no_elements(self.marked(found)?, Form::Values)?;
        let size = elements.size as u64;
        let block = (BLOCK / size).max(1) * size;
        let iterator = |name: &str| {
            let (at, of) = self.nearest(found, name, |of| of.kind() == Kind::Struct)?;
            self.pointers(&of, ["_M_cur", "_M_first", "_M_last", "_M_node"], bytes.get(at..)?)
        };
        let [start, finish] = [iterator("_M_start")?, iterator("_M_finish")?];
        for [at, first, last, _] in [start, finish] {
            let is_inside = first <= at && at <= last && (at - first).is_multiple_of(size);
            (is_inside && last - first == block).then_some(())?;
        }
        let blocks = finish[3]
            .checked_sub(start[3])
            .filter(|len| len.is_multiple_of(WORD as u64))?
            / WORD as u64;
        let all = blocks.checked_mul(block)?.checked_add(finish[0] - finish[1])?;
        let count = all.checked_sub(start[0] - start[1])? / size;
        let wanted = count.min((MOST_ELEMENT_BYTES / size).max(1)) * size;
        let (mut node, mut at, mut end) = (start[3], start[0], start[2]);
        while (elements.bytes.len() as u64) < wanted {
            let len = (end - at).min(wanted - elements.bytes.len() as u64);
            elements.bytes.extend(self.memory(at, len)?);
            node = node.checked_add(WORD as u64)?;
            if (elements.bytes.len() as u64) < wanted {
                at = self.number(&known(&self.memory(node, WORD as u64)?)?)?;
                end = at.checked_add(block)?;
            }
        }
        self.listed(&elements, count, depth)
    }

    /// Appends a `VecDeque`.
    pub(super) fn buffer(
        &mut self,
        found: &Type<'d>,
        length: &str,
        first: &str,
        bytes: &[Byte],
        depth: u32,
    ) -> Option<()> {
        let mut elements = self.no_elements(self.marked(found)?, Form::Values)?;
        let size = elements.size as u64;
        let start = self.word(found, "pointer", Kind::Pointer, bytes)?;
        let [count, first] = [length, first].map(|name| self.word(found, name, Kind::Integer, bytes));
        let (count, first) = (count?, first?);
        // Its type is one of a limited range.
        let (at, _) = self.nearest(found, "cap", |of| of.size() == WORD as u64)?;
        let capacity = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
        (count <= capacity && (first < capacity || first == 0)).then_some(())?;
        let wanted = count.min((MOST_ELEMENT_BYTES / size).max(1));
        let to_end = wanted.min(capacity - first);
        for (index, len) in [(first, to_end), (0, wanted - to_end)] {
            if len > 0 {
                let at = start.checked_add(index.checked_mul(size)?)?;
                elements.bytes.extend(self.memory(at, len * size)?);
            }
        }
        self.listed(&elements, count, depth)
    }

    /// Appends a `HashMap` or `HashSet`: its elements are before their bytes of control, the first
    /// one last. The byte of a bucket with an element has a highest bit of 0.
    pub(super) fn buckets(&mut self, found: &Type<'d>, form: Form, bytes: &[Byte], depth: u32) -> Option<()> {
        let of = self.marked(found)?;
        let mut elements = self.no_elements(of, Form::Pairs)?;
        // A set is a map to nothing.
        if form == Form::Values {
            elements.value = None;
        }
        let [count, mask] = ["items", "bucket_mask"].map(|name| self.word(found, name, Kind::Integer, bytes));
        let (count, mask) = (count?, mask?);
        let (at, _) = self.nearest(found, "ctrl", |of| of.size() == WORD as u64)?;
        let control = self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)?;
        let buckets = mask.checked_add(1).filter(|buckets| buckets.is_power_of_two())?;
        (count <= buckets).then_some(())?;
        let size = elements.size as u64;
        let (mut seen, mut bucket) = (0, 0);
        while count > 0 && bucket < buckets.min(MOST_BUCKETS) && seen < ENOUGH as u64 {
            let len = (buckets - bucket).min(CONTROL);
            for byte in known(&self.memory(control.checked_add(bucket)?, len)?)? {
                bucket += 1;
                if byte & 0x80 == 0 && seen < ENOUGH as u64 {
                    let at = control.checked_sub(bucket.checked_mul(size)?)?;
                    elements.bytes.extend(self.memory(at, size)?);
                    seen += 1;
                }
            }
        }
        let is_right = if bucket < buckets {
            seen < count || seen == ENOUGH as u64
        } else {
            seen == count.min(ENOUGH as u64)
        };
        (count == 0 || is_right).then_some(())?;
        if elements.value.is_none() {
            // Without the nothing after each key.
            let (at, key) = elements.key;
            let len = usize::try_from(self.size(key)?).ok()?;
            let keys = elements.bytes.chunks_exact(elements.size);
            let keys: Option<Vec<&[Byte]>> = keys.map(|pair| pair.get(at..at.checked_add(len)?)).collect();
            elements.bytes = keys?.concat();
        }
        self.listed(&elements, count, depth)
    }

    /// Appends a `BTreeMap` or `BTreeSet`.
    pub(super) fn branches(&mut self, found: &Type<'d>, form: Form, bytes: &[Byte], depth: u32) -> Option<()> {
        let count = self.word(found, "length", Kind::Integer, bytes)?;
        if count == 0 {
            self.out.push_str("{}");
            return Some(());
        }
        let word = |name: &str| {
            let (at, _) = self.nearest(found, name, |of| of.size() == WORD as u64)?;
            self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)
        };
        let (height, root) = (word("height")?, word("node")?);
        let leaf = self.resolve(self.marked(found)?).ok()?;
        let (len, _) = self.nearest(&leaf, "len", |of| of.size() == 2)?;
        let (keys, key) = self.slots(&leaf, "keys")?;
        let (most, key) = (key.0, key.1);
        let key_size = usize::try_from(self.size(key)?).ok()?;
        let value = match form {
            Form::Values => None,
            Form::Pairs => Some(self.slots(&leaf, "vals")?),
        };
        let value_size = match value {
            Some((_, (_, value))) => usize::try_from(self.size(value)?).ok()?,
            None => 0,
        };
        let branches = Branches {
            size: Some(leaf.size()).filter(|&size| size <= 16 * MOST_ELEMENT_BYTES)?,
            len,
            most,
            keys: (keys, key_size),
            values: (value.map_or(0, |(at, _)| at), value_size),
        };
        let mut elements = Elements {
            key: (0, key),
            value: value.map(|(_, (_, value))| (key_size, value)),
            size: key_size + value_size,
            bytes: Vec::new(),
        };
        (elements.size > 0 && height <= HIGHEST).then_some(())?;
        self.branch(root, height, &branches, &mut elements)?;
        let seen = (elements.bytes.len() / elements.size) as u64;
        (seen == count.min(ENOUGH as u64)).then_some(())?;
        self.listed(&elements, count, depth)
    }

    /// Where a leaf has its keys or values; how many it has room for, and their type.
    fn slots(&self, leaf: &Type<'d>, name: &str) -> Option<(usize, (usize, TypeId))> {
        let (at, slots) = self.nearest(leaf, name, |of| of.kind() == Kind::Array)?;
        let array = slots.array().ok()?;
        let of = self.resolve(array.contents).ok()?;
        Some((at, (usize::try_from(array.count).ok()?, self.marked(&of)?)))
    }

    /// Adds the elements of a node and of those below it, in their order, until there are enough.
    fn branch(&self, at: u64, height: u64, branches: &Branches, elements: &mut Elements) -> Option<()> {
        let bytes = self.memory(at, branches.size)?;
        let len = self.number(&known(bytes.get(branches.len..branches.len.checked_add(2)?)?)?)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= branches.most)?;
        let part = |(start, size): (usize, usize), index: usize| {
            let at = start.checked_add(index.checked_mul(size)?)?;
            bytes.get(at..at.checked_add(size)?)
        };
        for index in 0..=len {
            if height > 0 {
                let edge = at.checked_add(branches.size)?.checked_add((index * WORD) as u64)?;
                let below = self.number(&known(&self.memory(edge, WORD as u64)?)?)?;
                self.branch(below, height - 1, branches, elements)?;
            }
            if elements.bytes.len() >= ENOUGH.checked_mul(elements.size)? {
                break;
            }
            if index < len {
                elements.bytes.extend_from_slice(part(branches.keys, index)?);
                elements.bytes.extend_from_slice(part(branches.values, index)?);
            }
        }
        Some(())
    }
}
