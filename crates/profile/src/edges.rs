//! An index of a tree's edges: from a parent and a label to the child, in about 8 bytes for each.

/// Marks a free slot; no tree has this many nodes.
const FREE: u32 = u32::MAX;

/// Children by hash, in a table that is at most three quarters full. The tree's own arrays hold
/// what is compared.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    slots: Vec<u32>,
    used: usize,
}

impl Edges {
    /// The child with this parent and label, if `is_it` finds it.
    pub(crate) fn find(&self, parent: u32, label: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash(parent, label) & mask;
        loop {
            match self.slots[slot] {
                FREE => return None,
                child if is_it(child) => return Some(child),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Adds a child that is not there yet. `edge` returns the parent and the label of any child.
    pub(crate) fn insert(&mut self, child: u32, edge: impl Fn(u32) -> (u32, u32)) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let larger = vec![FREE; (self.slots.len() * 2).max(64)];
            let old = std::mem::replace(&mut self.slots, larger);
            for child in old.into_iter().filter(|&child| child != FREE) {
                self.put(child, edge(child));
            }
        }
        self.put(child, edge(child));
        self.used += 1;
    }

    fn put(&mut self, child: u32, (parent, label): (u32, u32)) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(parent, label) & mask;
        while self.slots[slot] != FREE {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = child;
    }
}

fn hash(parent: u32, label: u32) -> usize {
    let key = u64::from(parent) << 32 | u64::from(label);
    let mixed = (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_is_found_and_no_other() {
        let nodes: Vec<(u32, u32)> = (0..5_000_u32).map(|n| (n / 7, n.wrapping_mul(77) % 1_000)).collect();
        let mut edges = Edges::default();
        let find = |edges: &Edges, edge: (u32, u32)| edges.find(edge.0, edge.1, |child| nodes[child as usize] == edge);
        for child in 0..nodes.len() as u32 {
            if find(&edges, nodes[child as usize]).is_none() {
                edges.insert(child, |child| nodes[child as usize]);
            }
        }
        assert!(nodes.iter().all(|&edge| find(&edges, edge).is_some()));
        assert_eq!(find(&edges, (3, 1_001)), None);
        assert_eq!(find(&Edges::default(), (0, 0)), None);
    }
}
