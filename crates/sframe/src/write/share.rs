//! Where each function's rows go.
//!
//! A block of rows that is the first part of another one needs no bytes of its own: how many rows count is said in
//! the FDE (versions 1 and 2), or in the block itself, so that there only equal ones can be shared (version 3). In the
//! order of their bytes, a block that begins another one also begins the next one: so one walk from the end finds all.
//!
//! Starts of rows as wide as those of a larger function let a block begin that one's, and then take no bytes at all.

use alloc::vec;
use alloc::vec::Vec;

use backtrail_wire::Endian;

use super::{Encoded, Options};
use crate::constants::{FreInfo, FreType, WordSize};
use crate::layout::attribute_size;

pub(super) struct Layout {
    /// Where each function's block begins in the FRE sub-section, and how wide its starts are there.
    pub(super) places: Vec<(u64, FreType)>,
    /// The functions whose blocks are written, in this order.
    pub(super) emitted: Vec<usize>,
    /// Bytes of all blocks that are written.
    pub(super) size: u64,
}

impl Layout {
    pub(super) fn new(functions: &[Encoded], arena: &[u8], options: &Options) -> Layout {
        let blocks: Vec<&[u8]> = functions
            .iter()
            .map(|function| &arena[function.block.bytes.clone()])
            .collect();
        let types: Vec<FreType> = functions.iter().map(|function| function.block.fre_type).collect();
        let mut holders: Vec<(usize, FreType)> = match options.share {
            true => holders(&blocks),
            false => (0..blocks.len()).collect(),
        }
        .into_iter()
        .zip(types.iter().copied())
        .collect();
        // Version 3 has the number of rows in the block, so that none begins another.
        if options.share && attribute_size(options.version) == 0 {
            for (narrow, wide) in [(FreType::Addr1, FreType::Addr2), (FreType::Addr2, FreType::Addr4)] {
                widen(&blocks, &types, &mut holders, (narrow, wide), options.abi.endian());
            }
        }
        let mut layout = Layout {
            places: Vec::with_capacity(blocks.len()),
            emitted: Vec::new(),
            size: 0,
        };
        // Near functions have near rows: a block is written where the first function that uses it stands.
        let mut placed = vec![None; blocks.len()];
        for &(holder, fre_type) in &holders {
            let offset = *placed[holder].get_or_insert_with(|| {
                let offset = layout.size;
                layout.emitted.push(holder);
                layout.size += blocks[holder].len() as u64;
                offset
            });
            layout.places.push((offset, fre_type));
        }
        layout
    }
}

/// Gives blocks with `narrow` starts to one that they begin when their starts are `wide`.
fn widen(
    blocks: &[&[u8]],
    types: &[FreType],
    holders: &mut [(usize, FreType)],
    (narrow, wide): (FreType, FreType),
    endian: Endian,
) {
    let is_holder = |index: usize| holders[index] == (index, types[index]);
    let mut larger: Vec<usize> = (0..blocks.len())
        .filter(|&index| is_holder(index) && types[index] == wide)
        .collect();
    larger.sort_unstable_by_key(|&index| blocks[index]);
    let mut new_holders: Vec<Option<usize>> = vec![None; blocks.len()];
    let mut widened = Vec::new();
    for index in (0..blocks.len()).filter(|&index| is_holder(index) && types[index] == narrow) {
        with_starts(blocks[index], narrow, wide, endian, &mut widened);
        let at = larger.partition_point(|&index| blocks[index] < &widened[..]);
        new_holders[index] = larger
            .get(at)
            .copied()
            .filter(|&found| blocks[found].starts_with(&widened));
    }
    // Equal bytes can have starts of different widths, and must stay where they are then.
    for (holder, fre_type) in holders.iter() {
        if *fre_type != narrow {
            new_holders[*holder] = None;
        }
    }
    for (holder, fre_type) in holders {
        if let Some(found) = new_holders[*holder] {
            (*holder, *fre_type) = (found, wide);
        }
    }
}

/// Rows as the encoder writes them, with wider starts.
fn with_starts(rows: &[u8], narrow: FreType, wide: FreType, endian: Endian, widened: &mut Vec<u8>) {
    let zeros = &[0; 4][..wide.bytes() - narrow.bytes()];
    widened.clear();
    let mut rest = rows;
    while let Some((start, tail)) = rest.split_at_checked(narrow.bytes())
        && let Some(&info) = tail.first()
    {
        let info = FreInfo(info);
        let body = 1 + info.count() * info.word_size().map_or(0, WordSize::bytes);
        match endian {
            Endian::Little => widened.extend_from_slice(start),
            Endian::Big => widened.extend_from_slice(zeros),
        }
        match endian {
            Endian::Little => widened.extend_from_slice(zeros),
            Endian::Big => widened.extend_from_slice(start),
        }
        let (body, next) = tail.split_at_checked(body).unwrap_or((tail, &[]));
        widened.extend_from_slice(body);
        rest = next;
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
