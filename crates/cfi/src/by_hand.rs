//! Rows for hand-written functions that have a symbol and no call frame information, such as the
//! kernels of linear algebra libraries: their instructions show the frame; x86-64 only.

use backtrail_arch::Cpu;
use std::collections::HashSet;
use std::ops::Range;

use backtrail_elf::{Image, Symbols};
use backtrail_sframe::write::FunctionRows;

use crate::code::{self, Convention, Input};
use crate::eh_frame::Converted;
use crate::undescribed::{self, described};

/// The largest function that is read, and the limit for all functions together, in bytes.
const LONGEST: u64 = 1 << 18;
const MOST: u64 = 1 << 26;

/// The builtins of V8, which pop their arguments; some of them make their callers' frames.
const V8: &str = "Builtins_";
/// Code of GHC, whose stack pointer is another register: names of its compiler, and of its run-time
/// system. See `haskell`.
const GHC: (&str, &str) = ("_info", "stg_");

/// Adds the rows of functions that nothing else describes.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    if image.arch().cpu != Cpu::X86_64 || converted.functions.is_empty() {
        return;
    }
    let known = described(converted);
    let found: Vec<FunctionRows> = undescribed(image, &known)
        .into_iter()
        .filter_map(|range| {
            let bytes = image.data_in(range.clone())?;
            let bytes = bytes.get(..(range.end - range.start) as usize)?;
            Some(code::rows(&Input {
                entries: &[range.start],
                range,
                bytes,
                convention: Convention::C,
            }))
        })
        .flatten()
        .collect();
    undescribed::add(converted, found, &known, image);
}

fn has_own_convention(name: &str) -> bool {
    name.starts_with(V8) || name.ends_with(GHC.0) || name.trim_start_matches('_').starts_with(GHC.1)
}

/// The functions that `known` does not cover, up to a limit of bytes in total.
pub(crate) fn undescribed(image: &Image<'_>, known: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_known = |range: &Range<u64>| {
        let first = known.partition_point(|known| known.end <= range.start);
        known.get(first).is_some_and(|known| known.start < range.end)
    };
    let mut typed: HashSet<u64> = HashSet::new();
    for function in Symbols::named(image, None, |name| !has_own_convention(name)) {
        typed.insert(function.address);
    }
    let symbols = Symbols::new(image);
    let mut left = MOST;
    symbols
        .iter()
        .filter(|symbol| typed.contains(&symbol.address) && (1..=LONGEST).contains(&symbol.size))
        .map(|symbol| symbol.address..symbol.address.saturating_add(symbol.size))
        .filter(|range| !is_known(range))
        .take_while(|range| {
            left = left.saturating_sub(range.end - range.start);
            left > 0
        })
        .collect()
}
