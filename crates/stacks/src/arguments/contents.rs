//! Shows containers of the C++ and Rust libraries by their contents.

use backtrail_ctype::{Encoding, Kind, Type, TypeId};
use backtrail_debuginfo::containers::{Container, Contents, End, containers, element};

use super::LARGEST_VALUE;
use super::show::{Byte, DEEPEST, Show, known};
use crate::process::Hidden;
use crate::shown::Amount;

/// Size of a pointer and of a length in bytes.
pub(super) const WORD: usize = 8;
/// How deep the members of a container are nested; in real ones, up to six.
pub(super) const DEEPEST_MEMBER: u32 = 10;
/// Maximum number of members that are searched.
pub(super) const MOST_SEARCHED: u32 = 100;
/// Maximum number of bytes read of a sequence's elements.
pub(super) const MOST_ELEMENT_BYTES: u64 = 4096;

impl<'d> Show<'_, 'd> {
    /// Appends the contents of a container; `None`, and nothing is appended, if it is not one, or
    /// its contents cannot be read.
    pub(super) fn container(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let name = found.name().ok()?;
        let before = self.out.len();
        let shown = containers(name).find_map(|container| {
            self.cut(before);
            self.contents(container, found, name, bytes, depth)
        });
        if shown.is_none() {
            self.cut(before);
        }
        shown
    }

    /// Appends the contents of a container that a pointer leads to. Appends nothing if they are
    /// unknown.
    pub(super) fn container_at(&mut self, declared: &Type<'d>, address: u64, depth: u32) {
        let before = self.out.len();
        self.out.push(' ');
        if self.try_container_at(declared, address, depth).is_none() {
            self.cut(before);
        }
    }

    fn try_container_at(&mut self, declared: &Type<'d>, address: u64, depth: u32) -> Option<()> {
        let name = declared.name().ok()?;
        containers(name).next().filter(|_| depth < DEEPEST)?;
        let found = self.resolve(declared.id()).ok()?;
        let size = Some(found.size()).filter(|&size| size <= LARGEST_VALUE)?;
        let bytes = self.memory(address, size)?;
        self.container(&found, &bytes, depth + 1)
    }

    fn contents(
        &mut self,
        container: &Container,
        found: &Type<'d>,
        name: &[u8],
        bytes: &[Byte],
        depth: u32,
    ) -> Option<()> {
        let start = || self.word(found, container.start, Kind::Pointer, bytes);
        match container.end {
            End::Text { length, zero } => {
                let (start, length) = (start()?, self.word(found, length, Kind::Integer, bytes)?);
                self.text_in_memory(start, length, zero)
            }
            End::Length(length) => {
                let (start, count) = (start()?, self.word(found, length, Kind::Integer, bytes)?);
                self.sequence(found, name, start, count, depth)
            }
            End::Pointer(end) => {
                let start = start()?;
                let len = self.word(found, end, Kind::Pointer, bytes)?.checked_sub(start)?;
                let size = self.size(self.element_of(found, name)?);
                let size = size.filter(|&size| size > 0)?;
                let count = len.is_multiple_of(size).then(|| len / size)?;
                self.sequence(found, name, start, count, depth)
            }
            End::Owned => {
                let start = start()?;
                self.out += &format!("{start:#x}");
                if let Some(element) = self.marked(found) {
                    self.owned(element, start, depth);
                }
                Some(())
            }
            End::Counted(value) => self.counted(found, value, start()?, depth),
            End::Value => {
                let (at, of) = self.nearest(found, container.start, |_| true)?;
                self.value(of.id(), bytes.get(at..)?, depth)
            }
            End::Pair(second) => {
                self.nearest(found, container.start, |_| true)?;
                self.nearest(found, second, |_| true)?;
                self.enclosed(found, bytes, depth)
            }
            End::Tuple => self.tuple(found, container.start, bytes, depth),
            End::Ring(length) => self.ring(found, length, bytes, depth),
            End::Chain(length, form) => self.chain(found, container.start, length, form, bytes, depth),
            End::Tree(form) => self.tree(found, form, bytes, depth),
            End::Blocks => self.blocks(found, bytes, depth),
            End::Buffer { length, first } => self.buffer(found, length, first, bytes, depth),
            End::Buckets(form) => self.buckets(found, form, bytes, depth),
            End::Branches(form) => self.branches(found, form, bytes, depth),
            End::Short { length } => self.short_text(found, container.start, length, bytes),
            End::Maybe(is_there) => self.maybe(found, container.start, is_there, bytes, depth),
            End::Alternative(index) => self.alternative(found, container.start, index, bytes, depth),
            End::Libcxx(which) => self.libcxx(which, found, bytes, depth),
            End::Bits(end) => self.bits_between(found, [container.start, end], bytes),
            End::CountedLength(length, contents) => {
                let (start, count) = (start()?, self.word(found, length, Kind::Integer, bytes)?);
                // Two counters; what follows them is not aligned to more than they take.
                let start = start.checked_add(2 * WORD as u64)?;
                self.out += &format!("{start:#x} ");
                match contents {
                    Contents::Text => self.text_of(start, count),
                    // The type that a member shows is that of the counters and a value.
                    Contents::Elements => self.sequence_of(self.element(name)?, start, count, depth),
                }
            }
        }
    }

    /// Appends a text in memory; with `zero`, it is valid only if a zero byte follows it.
    pub(super) fn text_in_memory(&mut self, start: u64, length: u64, zero: bool) -> Option<()> {
        if zero && self.memory(start.checked_add(length)?, 1)? != [Some(0)] {
            return None;
        }
        self.text_of(start, length)
    }

    /// Appends the elements of a container with this name.
    pub(super) fn sequence(&mut self, found: &Type<'d>, name: &[u8], start: u64, count: u64, depth: u32) -> Option<()> {
        self.sequence_of(self.element_of(found, name)?, start, count, depth)
    }

    fn sequence_of(&mut self, id: TypeId, start: u64, count: u64, depth: u32) -> Option<()> {
        let size = self.size(id).filter(|&size| size > 0)?;
        // Bytes may be a text.
        if size == 1 && self.shown.amount < Amount::All {
            self.leave_out(Hidden::Text);
            return Some(());
        }
        let all = count.checked_mul(size)?;
        let bytes = match all {
            0 => Vec::new(),
            _ => self.memory(start, all.min((MOST_ELEMENT_BYTES / size).max(1) * size))?,
        };
        self.elements(id, usize::try_from(count).ok()?, &bytes, depth)
    }

    /// The type of a sequence's elements.
    fn element_of(&self, found: &Type<'d>, name: &[u8]) -> Option<TypeId> {
        self.marked(found).or_else(|| self.element(name))
    }

    /// The type of elements that a member without a name shows: of arrays of no pointers to them.
    pub(super) fn marked(&self, found: &Type<'d>) -> Option<TypeId> {
        let (_, marker) = self.nearest(found, "", |of| self.is_marker(of))?;
        let pointer = self.resolve(marker.array().ok()?.contents).ok()?;
        let of = self.resolve(pointer.reference().ok()?).ok()?;
        (of.kind() != Kind::Forward).then_some(of.id())
    }

    /// Whether a type without values only shows that of elements.
    pub(super) fn is_marker(&self, of: &Type<'d>) -> bool {
        let contents = of.array().ok().filter(|array| array.count == 0);
        let contents = contents.and_then(|array| self.resolve(array.contents).ok());
        contents.is_some_and(|contents| contents.kind() == Kind::Pointer)
    }

    /// The type of a sequence's elements, from its name: a number, or another container. Structs
    /// of one name may differ, and pointers to elements are in structs that share a name.
    pub(super) fn element(&self, name: &[u8]) -> Option<TypeId> {
        let name = element(name)?;
        let id = (self.named)(name)?;
        let found = self.resolve(id).ok()?;
        let is_shown = match found.kind() {
            Kind::Integer | Kind::Float => true,
            _ => containers(name).next().is_some(),
        };
        is_shown.then_some(id)
    }

    /// The value of the only member of this kind and name in a struct, at any depth; any name, if
    /// `name` is empty.
    pub(super) fn word(&self, found: &Type<'d>, name: &str, kind: Kind, bytes: &[Byte]) -> Option<u64> {
        let mut search = Search {
            name: name.as_bytes(),
            kind,
            searched: 0,
            at: Vec::new(),
        };
        search.members(self, found, 0, 0)?;
        let [at] = search.at[..] else { return None };
        let at = usize::try_from(at).ok()?;
        self.number(&known(bytes.get(at..at.checked_add(WORD)?)?)?)
    }

    /// This many bytes of memory; `None` if not all can be read.
    pub(super) fn memory(&self, address: u64, size: u64) -> Option<Vec<Byte>> {
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        let read = (self.read)(address, &mut bytes);
        (read == bytes.len()).then(|| bytes.into_iter().map(Some).collect())
    }
}

/// A search for members of a name and a kind.
struct Search<'n> {
    name: &'n [u8],
    kind: Kind,
    searched: u32,
    /// Where they are, in bytes.
    at: Vec<u64>,
}

impl Search<'_> {
    /// Searches the members of a struct that is this many bytes from the start; `None` if it is
    /// unlike a container.
    fn members(&mut self, show: &Show<'_, '_>, found: &Type<'_>, start: u64, depth: u32) -> Option<()> {
        for member in found.members().ok()? {
            let member = member.ok()?;
            self.searched += 1;
            if self.searched > MOST_SEARCHED || depth > DEEPEST_MEMBER {
                return None;
            }
            let Ok(of) = show.resolve(member.id) else {
                continue;
            };
            let at = start.checked_add(member.offset / 8)?;
            if of.kind() == Kind::Struct {
                self.members(show, &of, at, depth + 1)?;
            } else if of.kind() == self.kind && (self.name.is_empty() || member.name == self.name) {
                self.at.push(at);
                is_word(&of).then_some(())?;
            }
        }
        Some(())
    }
}

/// Whether this is a pointer or an unsigned number of its size.
fn is_word(found: &Type<'_>) -> bool {
    let is_unsigned = |encoding: Encoding| encoding.format & Encoding::SIGNED == 0;
    match found.kind() {
        Kind::Pointer => true,
        _ => found.size() == WORD as u64 && found.encoding().is_ok_and(is_unsigned),
    }
}
