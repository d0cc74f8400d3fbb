//! Containers of the C++ libraries that have their contents in themselves.

use backtrail_ctype::{Encoding, Kind, Type};

use super::contents::{DEEPEST_MEMBER, MOST_SEARCHED};
use super::show::{Byte, Show, known};
use crate::process::Hidden;
use crate::shown::Amount;

/// Maximum number of a variant's alternatives.
const MOST_ALTERNATIVES: u64 = 64;
/// Bytes of libc++'s string, of which a short one uses the first for its length.
const SHORT: usize = 24;

impl<'d> Show<'_, 'd> {
    /// Appends a string of libc++: a long one has a pointer to its text, `data`, and its length; in
    /// a short one, the length is in the upper seven bits of the first byte, and its text follows.
    pub(super) fn short_text(&mut self, found: &Type<'d>, data: &str, length: &str, bytes: &[Byte]) -> Option<()> {
        let is_word = |of: &Type<'_>| of.kind() == Kind::Integer && of.size() == 8;
        let is_text = |of: &Type<'_>| of.array().is_ok_and(|array| array.count as usize == SHORT - 1);
        let (pointer, _) = self.nearest(found, data, |of| of.kind() == Kind::Pointer)?;
        let (length, _) = self.nearest(found, length, is_word)?;
        let (text, _) = self.nearest(found, data, is_text)?;
        // The other layout, which Apple uses, has the short length at the end.
        if (pointer, length, text) != (16, 8, 1) {
            return None;
        }
        let bytes = known(bytes.get(..SHORT)?)?;
        let (first, rest) = bytes.split_first()?;
        if first & 1 != 0 {
            let word = |at: usize| self.number(bytes.get(at..at + 8)?);
            let (pointer, length) = (word(pointer)?, word(length)?);
            return self.text_in_memory(pointer, length, true);
        }
        let (text, end) = rest.split_at_checked(usize::from(first >> 1))?;
        if *end.first()? != 0 {
            return None;
        }
        if self.shown.amount < Amount::All {
            self.leave_out(Hidden::Text);
            return Some(());
        }
        let shown = &text[..text.len().min(self.longest_text())];
        self.quoted(shown, shown.len() < text.len());
        Some(())
    }

    /// Appends the value that a container has if a boolean says so.
    pub(super) fn maybe(
        &mut self,
        found: &Type<'d>,
        value: &str,
        is_there: &str,
        bytes: &[Byte],
        depth: u32,
    ) -> Option<()> {
        let is_bool = |of: &Type<'_>| {
            let format = of.encoding().map_or(0, |encoding| encoding.format);
            of.size() == 1 && format & Encoding::BOOL != 0
        };
        let (flag, _) = self.nearest(found, is_there, is_bool)?;
        let (at, of) = self.nearest(found, value, |_| true)?;
        self.out.push('{');
        match bytes.get(flag)?.as_ref()? {
            0 => {}
            1 => self.value(of.id(), bytes.get(at..)?, depth + 1)?,
            _ => return None,
        }
        self.out.push('}');
        Some(())
    }

    /// Appends the number of the alternative that a variant has, and its value. Each
    /// union has an alternative, and the union of those after it.
    pub(super) fn alternative(
        &mut self,
        found: &Type<'d>,
        alternatives: &str,
        index: &str,
        bytes: &[Byte],
        depth: u32,
    ) -> Option<()> {
        let is_number = |of: &Type<'_>| of.kind() == Kind::Integer && matches!(of.size(), 1 | 2 | 4 | 8);
        let (at, number) = self.nearest(found, index, is_number)?;
        let size = usize::try_from(number.size()).ok()?;
        let index = self.number(&known(bytes.get(at..at.checked_add(size)?)?)?)?;
        // Without a value after an exception.
        if index == u64::MAX >> (64 - 8 * size) {
            self.out.push_str("{}");
            return Some(());
        }
        let (mut at, mut of) = self.nearest(found, alternatives, |of| of.kind() == Kind::Union)?;
        let [tail, head, content] = match alternatives {
            "__data" => ["__tail", "__head", "__value"],
            _ => ["_M_rest", "_M_first", "_M_storage"],
        };
        for _ in 0..Some(index).filter(|&index| index < MOST_ALTERNATIVES)? {
            let (further, rest) = self.nearest(&of, tail, |of| of.kind() == Kind::Union)?;
            (at, of) = (at.checked_add(further)?, rest);
        }
        let (further, first) = self.nearest(&of, head, |_| true)?;
        at = at.checked_add(further)?;
        let (further, value) = self.nearest(&first, content, |_| true)?;
        at = at.checked_add(further)?;
        let name = value.name().ok()?;
        let id = match name.starts_with(b"__aligned_membuf<") {
            true => self.marked(&value).or_else(|| self.element(name))?,
            false => value.id(),
        };
        self.out += &format!("{{[{index}] = ");
        self.value(id, bytes.get(at..)?, depth + 1)?;
        self.out.push('}');
        Some(())
    }

    /// The member of this name that is nested least, if it is the only such one that fits: where it
    /// is in bytes, and its type.
    pub(super) fn nearest(
        &self,
        found: &Type<'d>,
        name: &str,
        fits: impl Fn(&Type<'d>) -> bool,
    ) -> Option<(usize, Type<'d>)> {
        let mut level = vec![(0u64, *found)];
        let mut searched = 0;
        for _ in 0..DEEPEST_MEMBER {
            let (mut next, mut fitting) = (Vec::new(), Vec::new());
            for (start, of) in level {
                for member in of.members().ok()? {
                    let member = member.ok()?;
                    searched += 1;
                    if searched > MOST_SEARCHED {
                        return None;
                    }
                    let Ok(of) = self.resolve(member.id) else {
                        continue;
                    };
                    let at = start.checked_add(member.offset / 8)?;
                    if member.name == name.as_bytes() && fits(&of) {
                        fitting.push((usize::try_from(at).ok()?, of));
                    } else if matches!(of.kind(), Kind::Struct | Kind::Union) {
                        next.push((at, of));
                    }
                }
            }
            match fitting[..] {
                [] => level = next,
                [one] => return Some(one),
                _ => return None,
            }
        }
        None
    }
}
