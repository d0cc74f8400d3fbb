//! Placing each function's rows, so that functions share them.
//!
//! In versions 1 and 2, the FDE holds the number of rows, so a block of rows that is a prefix of
//! another block needs no bytes of its own. In version 3, the block itself holds that number, so
//! only equal blocks can be shared. If blocks are sorted by their bytes, a prefix of any other
//! block is also a prefix of the next one, so one pass from the end finds all of them.
//!
//! A block whose row starts are widened can become a prefix of a larger function's block, and then
//! takes no bytes at all.

use alloc::vec;
use alloc::vec::Vec;

use core::hash::BuildHasher;

use backtrail_wire::Endian;
use rustc_hash::FxBuildHasher;

use super::encode::Encoded;
use super::options::Options;
use crate::constants::{FreInfo, FreType, WordSize};
use crate::layout::attribute_size;

pub(super) struct Layout {
    /// The offset of each function's block in the FRE sub-section, and the width of its row starts
    /// there.
    pub(super) places: Vec<(u64, FreType)>,
    /// The functions whose blocks are written, in the order of writing.
    pub(super) emitted: Vec<usize>,
    /// The total size of all written blocks.
    pub(super) size: u64,
}

impl Layout {
    pub(super) fn new(functions: &[Encoded], arena: &[u8], options: &Options) -> Layout {
        let blocks: Vec<&[u8]> = functions
            .iter()
            .map(|function| &arena[function.block.bytes.clone()])
            .collect();
        let types: Vec<FreType> = functions.iter().map(|function| function.block.fre_type).collect();
        // In version 3, the block holds its number of rows, so no block is a prefix of another.
        let has_prefixes = attribute_size(options.version) == 0;
        let holders = match (options.share, has_prefixes) {
            (true, true) => holders(&blocks),
            (true, false) => equals(&blocks),
            (false, _) => (0..blocks.len()).collect(),
        };
        let mut holders: Vec<(usize, FreType)> = holders.into_iter().zip(types.iter().copied()).collect();
        if options.share && has_prefixes {
            for (narrow, wide) in [(FreType::Addr1, FreType::Addr2), (FreType::Addr2, FreType::Addr4)] {
                widen(&blocks, &types, &mut holders, (narrow, wide), options.abi.endian());
            }
        }
        let mut layout = Layout {
            places: Vec::with_capacity(blocks.len()),
            emitted: Vec::new(),
            size: 0,
        };
        // Nearby functions get nearby rows: a block is written when the first function needs it.
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

/// Places blocks with `narrow` starts in a block of which they are a prefix with `wide` starts.
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
    // Blocks with equal bytes but starts of different widths must stay where they are.
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

/// For each block, the first block with the same bytes, which may be itself.
fn equals(blocks: &[&[u8]]) -> Vec<usize> {
    // Hashes first, so that few comparisons have to load the bytes.
    let hashes = blocks.iter().map(|block| FxBuildHasher.hash_one(block));
    let mut order: Vec<(u64, usize)> = hashes.zip(0..).collect();
    order.sort_unstable();
    let mut equals: Vec<usize> = (0..blocks.len()).collect();
    for of_hash in order.chunk_by_mut(|(hash, _), (other, _)| hash == other) {
        // Blocks that share only the hash are too rare to deserve a faster sort.
        of_hash.sort_by_key(|&(_, index)| blocks[index]);
        for same in of_hash.chunk_by(|&(_, one), &(_, other)| blocks[one] == blocks[other]) {
            for &(_, index) in same {
                equals[index] = same[0].1;
            }
        }
    }
    equals
}

/// For each block, a block that begins with it, which may be itself.
fn holders(blocks: &[&[u8]]) -> Vec<usize> {
    let equals = equals(blocks);
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&index| equals[index] == index).collect();
    order.sort_unstable_by_key(|&index| blocks[index]);
    let mut holders: Vec<usize> = (0..blocks.len()).collect();
    for pair in order.windows(2).rev() {
        let [index, next] = [pair[0], pair[1]];
        if blocks[next].starts_with(blocks[index]) {
            holders[index] = holders[next];
        }
    }
    equals.into_iter().map(|equal| holders[equal]).collect()
}
