//! Slices of D and arrays of Ada whose bounds only the value has.

use backtrail_ctype::{Kind, Type};

use super::contents::WORD;
use super::show::{Byte, Show, is_char, known};

/// Bytes of each of the two bounds of an array in Ada.
const BOUND: usize = 4;

impl<'d> Show<'_, 'd> {
    /// Appends the elements of a slice; `None`, and nothing is appended, if it is not one, or if
    /// they cannot be read.
    pub(super) fn slice(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let before = self.out.len();
        let shown = self.try_slice(found, bytes, depth);
        if shown.is_none() {
            self.cut(before);
        }
        shown
    }

    fn try_slice(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        if found.kind() != Kind::Struct || found.size() != 2 * WORD as u64 {
            return None;
        }
        // The last member shows the type of the elements.
        let mut members = found.members().ok()?;
        let mut next = || Some(members.next()?.ok()?.name);
        let (first, second, last) = (next()?, next()?, next()?);
        let word = |at: usize| self.number(&known(bytes.get(at..at + WORD)?)?);
        let (start, count) = match (first, second, last) {
            (b"length", b"ptr", b"") => (word(WORD)?, word(0)?),
            (b"P_ARRAY", b"P_BOUNDS", b"") => {
                let bounds = known(&self.memory(word(WORD)?, 2 * BOUND as u64)?)?;
                let bound = |at: usize| Some(i64::from(self.number(bounds.get(at..at + BOUND)?)? as u32 as i32));
                let count = bound(BOUND)? - bound(0)? + 1;
                (word(0)?, u64::try_from(count).unwrap_or(0))
            }
            _ => return None,
        };
        let element = self.marked(found)?;
        let element = self.resolve(element).ok()?;
        match is_char(&element) {
            true => self.text_of(start, count),
            false => self.sequence(found, found.name().ok()?, start, count, depth),
        }
    }
}
