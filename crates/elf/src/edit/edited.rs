//! An edited file: parts of the old one, and new ones.

use std::io::Write;

use super::view::{Part, Source, View};

/// An edited file: its old bytes, with some replaced, and new bytes before and after them.
#[derive(Clone, Debug)]
pub struct Edited<'a> {
    pub(super) lead: Vec<u8>,
    pub(super) view: View<'a>,
    pub(super) tail: Vec<u8>,
}

impl<'a> Edited<'a> {
    /// Nothing but what is left of the old file.
    pub(super) fn of(view: View<'a>) -> Edited<'a> {
        Edited {
            lead: Vec::new(),
            view,
            tail: Vec::new(),
        }
    }
}

impl Edited<'_> {
    /// All parts of the file, in order.
    pub fn parts(&self) -> Vec<Part<'_>> {
        let mut parts = vec![Part::new(&self.lead)];
        parts.extend(self.view.parts());
        parts.push(Part::new(&self.tail));
        parts
    }

    /// Writes the whole file.
    ///
    /// Fails if `out` does, or if the file that was edited no longer has bytes that are kept.
    pub fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let write = |part: &Part<'_>| match part.bytes() {
            Some(bytes) => out.write_all(bytes),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        };
        self.parts().iter().try_for_each(write)
    }

    /// Whether the whole file has the bytes of `other`.
    pub fn is_same_as<'b>(&self, other: impl Into<Source<'b>>) -> bool {
        let other = other.into();
        if other.len() as u64 != self.len() {
            return false;
        }
        let mut at = 0;
        self.parts().iter().all(|part| {
            let start = at;
            at += part.len();
            let same = part.bytes().zip(other.get(start..at));
            same.is_some_and(|(one, other)| std::ptr::eq(one, other) || one == other)
        })
    }

    /// Size of the whole file in bytes.
    pub fn len(&self) -> u64 {
        (self.lead.len() + self.view.len() + self.tail.len()) as u64
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole file as bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() as usize);
        // Writing to memory does not fail.
        let _ = self.write_to(&mut out);
        out
    }
}
