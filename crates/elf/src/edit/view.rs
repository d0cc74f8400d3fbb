//! A file with some of its bytes replaced, without copying it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::FileBytes;
use crate::header::to_usize;

/// A file that is edited.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// All its bytes.
    Bytes(&'a [u8]),
    /// A file of which only what the edit needs is read.
    File(&'a FileBytes),
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Source<'a> {
        Source::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Source<'a> {
        Source::Bytes(bytes)
    }
}

impl<'a> From<&'a FileBytes> for Source<'a> {
    fn from(file: &'a FileBytes) -> Source<'a> {
        Source::File(file)
    }
}

impl<'a> Source<'a> {
    pub(super) fn len(self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::File(file) => file.len(),
        }
    }

    /// The bytes of a range; `None` if the file does not have or does not give them.
    pub(super) fn get(self, range: Range<usize>) -> Option<&'a [u8]> {
        match self {
            Source::Bytes(bytes) => bytes.get(range),
            Source::File(file) => file.slice(range.start, range.end.checked_sub(range.start)?).ok(),
        }
    }
}

/// A part of an edited file.
#[derive(Clone, Debug)]
pub struct Part<'p> {
    content: Content<'p>,
    /// Offset of these bytes in the file before the edit; `None` if they are new.
    pub offset: Option<u64>,
}

#[derive(Clone, Debug)]
enum Content<'p> {
    New(&'p [u8]),
    Old(Source<'p>, Range<usize>),
}

impl<'p> Part<'p> {
    pub(super) fn new(bytes: &'p [u8]) -> Part<'p> {
        let content = Content::New(bytes);
        Part { content, offset: None }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::New(bytes) => bytes.len(),
            Content::Old(_, range) => range.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, which are read if they are not known yet; `None` if the file no longer has them.
    pub fn bytes(&self) -> Option<&'p [u8]> {
        match &self.content {
            Content::New(bytes) => Some(bytes),
            Content::Old(source, range) => source.get(range.clone()),
        }
    }
}

/// A file, or a part of it, and replacements for some of its bytes.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    source: Source<'a>,
    /// The part of the file that is viewed.
    window: Range<usize>,
    /// Replacements by their start; none overlap or touch.
    patches: BTreeMap<usize, Vec<u8>>,
}

impl<'a> View<'a> {
    pub(super) fn new(source: impl Into<Source<'a>>) -> View<'a> {
        let source = source.into();
        View::within(source, 0..source.len())
    }

    /// A view of the bytes in `window`, which must lie within the file.
    pub(super) fn within(source: Source<'a>, window: Range<usize>) -> View<'a> {
        View {
            source,
            window,
            patches: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.window.len()
    }

    /// `len` bytes from `offset`; `None` if there are fewer.
    pub(super) fn read(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        let start = to_usize(offset);
        let end = start.checked_add(to_usize(len))?;
        let within = end <= self.len();
        let plain = within.then(|| self.source.get(self.window.start + start..self.window.start + end))??;
        let mut read = Cow::Borrowed(plain);
        for (at, patch) in self.patches.range(..end) {
            let common = start.max(*at)..end.min(at + patch.len());
            if !common.is_empty() {
                let from = &patch[common.start - at..common.end - at];
                read.to_mut()[common.start - start..common.end - start].copy_from_slice(from);
            }
        }
        Some(read)
    }

    /// Whether all bytes from `start` to `end` are zero.
    pub(super) fn is_zero(&self, start: u64, end: u64) -> bool {
        self.is_made_of(start, end, |byte| byte == 0)
    }

    /// Whether `is` holds for all bytes from `start` to `end`.
    pub(super) fn is_made_of(&self, start: u64, end: u64, is: impl Fn(u8) -> bool) -> bool {
        let read = end.checked_sub(start).and_then(|len| self.read(start, len));
        read.is_some_and(|bytes| bytes.iter().all(|byte| is(*byte)))
    }

    /// Replaces bytes with `new`; nothing can be written past the end.
    pub(super) fn patch(&mut self, offset: u64, new: &[u8]) {
        let start = to_usize(offset).min(self.len());
        let new = &new[..new.len().min(self.len() - start)];
        if new.is_empty() {
            return;
        }
        let end = start + new.len();
        let touched: Vec<usize> = self
            .patches
            .range(..=end)
            .filter(|(at, patch)| **at + patch.len() >= start)
            .map(|(at, _)| *at)
            .collect();
        let first = touched.first().map_or(start, |at| start.min(*at));
        let mut whole = vec![0; end - first];
        for at in touched {
            let patch = self.patches.remove(&at).unwrap_or_default();
            let to = at - first;
            whole.resize(whole.len().max(to + patch.len()), 0);
            whole[to..to + patch.len()].copy_from_slice(&patch);
        }
        whole[start - first..end - first].copy_from_slice(new);
        self.patches.insert(first, whole);
    }

    /// Drops all bytes from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        let len = len.min(self.len());
        self.window.end = self.window.start + len;
        self.patches.retain(|at, patch| {
            patch.truncate(len.saturating_sub(*at));
            !patch.is_empty()
        });
    }

    /// The replaced ranges and their new bytes.
    pub(super) fn patched(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        self.patches
            .iter()
            .map(|(at, patch)| (*at as u64..(at + patch.len()) as u64, &patch[..]))
    }

    /// The whole view, in order.
    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        let kept = |range: Range<usize>| Part {
            offset: Some((self.window.start + range.start) as u64),
            content: Content::Old(
                self.source,
                self.window.start + range.start..self.window.start + range.end,
            ),
        };
        let mut parts = Vec::with_capacity(2 * self.patches.len() + 1);
        let mut told = 0;
        for (at, patch) in &self.patches {
            parts.push(kept(told..*at));
            parts.push(Part::new(patch));
            told = at + patch.len();
        }
        parts.push(kept(told..self.len()));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(view: &View<'_>) -> Vec<u8> {
        for part in view.parts() {
            let kept = part.offset.map(|offset| offset as usize - 7);
            let source = view.source.get(view.window.clone()).unwrap();
            assert!(kept.is_none_or(|start| source[start..start + part.len()] == *part.bytes().unwrap()));
        }
        view.parts()
            .iter()
            .flat_map(|part| part.bytes().unwrap())
            .copied()
            .collect()
    }

    /// Compares with a copy that is modified in place.
    #[test]
    fn patches_in_any_order() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % limit as u64) as usize
        };
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..71).collect();
            let source = Source::Bytes(&bytes);
            let (mut view, mut copy) = (View::within(source, 7..71), bytes[7..].to_vec());
            for round in 0..12 {
                let start = below(70);
                let new = vec![100 + round; below(20)];
                view.patch(start as u64, &new);
                for (index, byte) in new.iter().enumerate() {
                    if let Some(place) = copy.get_mut(start + index) {
                        *place = *byte;
                    }
                }
                assert_eq!(whole(&view), copy);
                let from = below(64);
                let len = below(64 - from);
                assert_eq!(*view.read(from as u64, len as u64).unwrap(), copy[from..from + len]);
            }
            let len = below(64);
            view.truncate(len);
            assert_eq!(whole(&view), copy[..len]);
            assert_eq!(view.read(0, 65), None);
        }
    }

    #[test]
    fn zeros() {
        let mut view = View::new(&[1, 0, 0, 2][..]);
        assert!(view.is_zero(1, 3) && view.is_zero(2, 2));
        assert!(!view.is_zero(1, 4) && !view.is_zero(1, 5) && !view.is_zero(3, 1));
        view.patch(3, &[0]);
        assert!(view.is_zero(1, 4));
    }
}
