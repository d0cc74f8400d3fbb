//! Where each function's rows go.
//!
//! A block of rows that is the first part of another one needs no bytes of its own: how many rows count is said in
//! the FDE (versions 1 and 2), or in the block itself, so that there only equal ones can be shared (version 3). In the
//! order of their bytes, a block that begins another one also begins the next one: so one walk from the end finds all.

use alloc::vec;
use alloc::vec::Vec;

use super::Encoded;

pub(super) struct Layout {
    /// Where each function's block begins in the FRE sub-section.
    pub(super) offsets: Vec<u64>,
    /// The functions whose blocks are written, in this order.
    pub(super) emitted: Vec<usize>,
    /// Bytes of all blocks that are written.
    pub(super) size: u64,
}

impl Layout {
    pub(super) fn new(functions: &[Encoded], arena: &[u8], share: bool) -> Layout {
        let blocks: Vec<&[u8]> = functions
            .iter()
            .map(|function| &arena[function.block.bytes.clone()])
            .collect();
        let holders = if share {
            holders(&blocks)
        } else {
            (0..blocks.len()).collect()
        };
        let mut layout = Layout {
            offsets: Vec::with_capacity(blocks.len()),
            emitted: Vec::new(),
            size: 0,
        };
        // Near functions have near rows: a block is written where the first function that uses it stands.
        let mut placed = vec![None; blocks.len()];
        for &holder in &holders {
            let offset = *placed[holder].get_or_insert_with(|| {
                let offset = layout.size;
                layout.emitted.push(holder);
                layout.size += blocks[holder].len() as u64;
                offset
            });
            layout.offsets.push(offset);
        }
        layout
    }
}

/// For each block, the one that begins with it: itself where no other does.
fn holders(blocks: &[&[u8]]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_unstable_by(|&one, &other| blocks[one].cmp(blocks[other]).then(one.cmp(&other)));
    let mut holders: Vec<usize> = (0..blocks.len()).collect();
    for pair in order.windows(2).rev() {
        let [index, next] = [pair[0], pair[1]];
        if blocks[next].starts_with(blocks[index]) {
            holders[index] = holders[next];
        }
    }
    holders
}
