//! Assembling functions into a section.

use alloc::vec::Vec;
use core::ops::Range;

use super::encode::{Encoded, Encoder};
use super::function::FunctionRows;
use super::options::Options;
use super::output::{Output, Skipped, WriteError};
use super::restrict::Restricted;
use super::{merge, share};
use crate::constants::{Flags, HEADER_SIZE, SFRAME_MAGIC, Version};
use crate::layout::{Entry, Sink, fde_size, push_fde};

/// Writes a section. The functions need not be sorted.
///
/// Functions that the version can't express are left out and listed in [`Output::skipped`].
pub fn section(functions: &[FunctionRows], options: &Options) -> Result<Output, WriteError> {
    section_around(functions, &[], options)
}

/// Writes a section, and treats `barriers` as code without rows rather than as padding between
/// joined functions ([`Options::merge`]).
///
/// A function that overlaps a barrier is not joined with another. Neither functions nor barriers
/// need to be sorted.
pub fn section_around(
    functions: &[FunctionRows],
    barriers: &[Range<u64>],
    options: &Options,
) -> Result<Output, WriteError> {
    if options.pcrel && options.version == Version::V1 {
        return Err(WriteError::PcrelInV1);
    }
    let mut restricted = Restricted::new(functions, options);
    let mut skipped = core::mem::take(&mut restricted.skipped);
    let functions = &restricted.functions[..];
    let mut encoder = Encoder::new(options, functions.len());
    let mut encoded = Vec::with_capacity(functions.len());
    for (index, function) in functions.iter().enumerate() {
        match encoder.function(index, function) {
            Ok(function) => encoded.push(function),
            Err(reason) => skipped.push(Skipped {
                index: restricted.origin(index),
                start: function.start,
                size: function.size.into(),
                reason,
            }),
        }
    }
    // Relative to the section, because readers search like that. Functions of size 0 come before
    // a function with code at the same start.
    encoded.sort_by_key(|function| (function.start, function.size));
    let mut layout = share::Layout::new(&encoded, encoder.arena(), options);
    if options.merge > 1 {
        let left_out = skipped.iter();
        let left_out = left_out.map(|skipped| skipped.start..skipped.start.saturating_add(skipped.size));
        let barriers = disjoint(barriers.iter().cloned().chain(left_out), options.address);
        let joined = merge::join(functions, &encoded, &barriers, encoder.arena(), options);
        if let Some(joined) = encode_joined(&encoded, joined, &mut encoder) {
            let joined_layout = share::Layout::new(&joined, encoder.arena(), options);
            let size = |count: usize, layout: &share::Layout| (count * fde_size(options.version)) as u64 + layout.size;
            if size(joined.len(), &joined_layout) < size(encoded.len(), &layout) {
                (encoded, layout) = (joined, joined_layout);
            }
        }
    }
    skipped.sort_by_key(|skipped| skipped.index);
    let rows = encoded.iter().map(|function| u64::from(function.block.num_fres)).sum();
    let bytes = assemble(&encoded, &layout, rows, encoder.arena(), options)?;
    Ok(Output {
        bytes,
        functions: fits(encoded.len() as u64)?,
        rows: fits(rows)?,
        skipped,
    })
}

/// The ranges relative to the section, sorted, with overlapping ranges merged.
fn disjoint(ranges: impl Iterator<Item = Range<u64>>, address: u64) -> Vec<Range<i64>> {
    let relative = |address_in: u64| address_in.wrapping_sub(address) as i64;
    let mut ranges: Vec<Range<i64>> = ranges.map(|range| relative(range.start)..relative(range.end)).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let overlap = next.start <= range.end;
        if overlap {
            range.end = range.end.max(next.end);
        }
        overlap
    });
    ranges
}

/// `None` if the version can express the functions separately but not joined.
fn encode_joined(encoded: &[Encoded], joined: Vec<merge::Joined>, encoder: &mut Encoder) -> Option<Vec<Encoded>> {
    let encode = |joined: merge::Joined| match joined {
        merge::Joined::Whole(place) => encoded.get(place).cloned(),
        merge::Joined::Range(range) => encoder.function(0, &range).ok(),
    };
    joined.into_iter().map(encode).collect()
}

fn fits(number: u64) -> Result<u32, WriteError> {
    u32::try_from(number).map_err(|_| WriteError::TooLarge(number))
}

fn assemble(
    functions: &[Encoded],
    layout: &share::Layout,
    rows: u64,
    arena: &[u8],
    options: &Options,
) -> Result<Vec<u8>, WriteError> {
    let fde_size = fde_size(options.version);
    let table_size = functions.len() as u64 * fde_size as u64;
    let mut flags = Flags::FDE_SORTED.0;
    if options.pcrel {
        flags |= Flags::FDE_FUNC_START_PCREL.0;
    }
    let mut sink = Sink::new(options.abi.endian());
    sink.u16(SFRAME_MAGIC);
    sink.u8(options.version as u8);
    sink.u8(flags);
    sink.u8(options.abi as u8);
    sink.u8(0);
    sink.u8(options.abi.fixed_ra_offset() as u8);
    sink.u8(0);
    sink.u32(fits(functions.len() as u64)?);
    sink.u32(fits(rows)?);
    sink.u32(fits(layout.size)?);
    sink.u32(0);
    sink.u32(fits(table_size)?);
    for (index, (function, &(fre_off, fre_type))) in functions.iter().zip(&layout.places).enumerate() {
        let field = if options.pcrel {
            (HEADER_SIZE + index * fde_size) as i64
        } else {
            0
        };
        let entry = Entry {
            start: function.start.wrapping_sub(field),
            size: function.size,
            // Less than the layout's size, which fits.
            fre_off: fre_off as u32,
            info: function.block.info.with_fre_type(fre_type),
            block: &function.block,
        };
        push_fde(options.version, &mut sink, &entry);
    }
    for &index in &layout.emitted {
        sink.bytes(&arena[functions[index].block.bytes.clone()]);
    }
    Ok(sink.into_bytes())
}
