//! Bytes that live as long as a recording.

use std::cell::OnceCell;

/// Owns byte strings and hands out borrows for its own lifetime, so that tables are parsed once and
/// kept with their modules. Grows by one entry per distinct module.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    head: OnceCell<Box<Node>>,
}

#[derive(Debug)]
struct Node {
    bytes: Vec<u8>,
    next: OnceCell<Box<Node>>,
}

impl Arena {
    /// Keeps `bytes`.
    pub(crate) fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        let mut place = &self.head;
        while let Some(node) = place.get() {
            place = &node.next;
        }
        let node = place.get_or_init(|| {
            Box::new(Node {
                bytes,
                next: OnceCell::new(),
            })
        });
        &node.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Drops the entries in a loop: the derived drop would recurse once per entry.
        let mut next = self.head.take();
        while let Some(mut node) = next {
            next = node.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_many() {
        let arena = Arena::default();
        let kept: Vec<&[u8]> = (0..2_000u32).map(|i| arena.keep(i.to_le_bytes().to_vec())).collect();
        for (i, bytes) in (0..2_000u32).zip(kept) {
            assert_eq!(bytes, i.to_le_bytes());
        }
    }
}
