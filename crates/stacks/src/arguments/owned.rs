//! Values that containers own by a pointer, and tuples of C++.

use backtrail_ctype::{Kind, Type, TypeId};
use backtrail_debuginfo::containers::is_box;

use super::LARGEST_VALUE;
use super::show::{Byte, LEFT_OUT, MOST_MEMBERS, Show};

/// How deep values are nested whose owned values are shown: lists of such pointers would be long.
const DEEPEST_OWNED: u32 = 2;
/// Maximum number of bases of a tuple in a row.
const MOST_BASES: usize = 64;

impl<'d> Show<'_, 'd> {
    /// Whether this is what an owning pointer leads to: a struct with the pointer's name.
    pub(super) fn is_box(&self, to: &Type<'d>) -> bool {
        matches!(to.kind(), Kind::Struct) && to.size() == 0 && to.name().is_ok_and(is_box)
    }

    /// Appends the value of this type at an address, after the address. Appends nothing if it
    /// cannot be read.
    pub(super) fn owned(&mut self, id: TypeId, address: u64, depth: u32) {
        if address == 0 || depth > DEEPEST_OWNED {
            return;
        }
        let before = self.out.len();
        self.out.push(' ');
        if self.try_owned(id, address, depth).is_none() {
            self.cut(before);
        }
    }

    fn try_owned(&mut self, id: TypeId, address: u64, depth: u32) -> Option<()> {
        let size = self.size(id).filter(|size| (1..=LARGEST_VALUE).contains(size))?;
        let bytes = self.memory(address, size)?;
        self.value(id, &bytes, depth + 1)
    }

    /// Appends the address of a value after its counters, and the value.
    pub(super) fn counted(&mut self, found: &Type<'d>, value: &str, start: u64, depth: u32) -> Option<()> {
        let counted = self.resolve(self.marked(found)?).ok()?;
        let (at, of) = self.nearest(&counted, value, |_| true)?;
        // Where a value of unknown type is depends on that type.
        self.size(of.id()).filter(|&size| size > 0)?;
        let address = start.checked_add(at as u64)?;
        self.out += &format!("{address:#x}");
        self.owned(of.id(), address, depth);
        Some(())
    }

    /// Appends the values of a tuple of libstdc++: each class has one, and a base with the rest.
    pub(super) fn tuple(&mut self, found: &Type<'d>, value: &str, bytes: &[Byte], depth: u32) -> Option<()> {
        let is_named = |name: &[u8], start: &[u8]| name.starts_with(start);
        let mut values: Vec<(usize, TypeId)> = Vec::new();
        let mut next = Some((0, *found));
        for _ in 0..MOST_BASES {
            let Some((start, of)) = next.take() else { break };
            for member in of.members().ok()? {
                let member = member.ok()?;
                let at = start + usize::try_from(member.offset / 8).ok()?;
                if is_named(member.name, b"_Tuple_impl<") {
                    next = Some((at, self.resolve(member.id).ok()?));
                } else if is_named(member.name, b"_Head_base<") {
                    let (within, id) = self.held(self.resolve(member.id).ok()?, value);
                    values.push((at + within, id));
                }
            }
        }
        if next.is_some() {
            return None;
        }
        self.parts(values, bytes, depth)
    }

    /// What a base class of a tuple holds under this name, and where in the class: classes without
    /// members are bases themselves.
    pub(super) fn held(&self, base: Type<'d>, value: &str) -> (usize, TypeId) {
        let (within, value) = self.nearest(&base, value, |_| true).unwrap_or((0, base));
        (within, value.id())
    }

    /// Appends the values of a tuple, by their places in its bytes.
    pub(super) fn parts(&mut self, values: Vec<(usize, TypeId)>, bytes: &[Byte], depth: u32) -> Option<()> {
        if values.is_empty() {
            return None;
        }
        self.out.push('{');
        for (index, (at, id)) in values.into_iter().enumerate() {
            if index > 0 {
                self.out.push_str(", ");
            }
            if index == MOST_MEMBERS {
                self.out.push_str(LEFT_OUT);
                break;
            }
            let before = self.out.len();
            if bytes
                .get(at..)
                .and_then(|bytes| self.value(id, bytes, depth + 1))
                .is_none()
            {
                self.cut(before);
                self.out.push_str(LEFT_OUT);
            }
        }
        self.out.push('}');
        Some(())
    }
}
