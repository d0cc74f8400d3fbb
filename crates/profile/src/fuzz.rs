//! Fuzz targets as plain functions, run briefly by the tests and for long by cargo-fuzz.

use crate::{Kallsyms, PerfMap};

/// Any bytes as a perf map: every line's start and end can be asked for, and what is found lies where it was written.
pub fn perf_map(data: &[u8]) {
    let map = PerfMap::parse(data);
    assert!(map.skipped_lines() <= data.len());
    for address in addresses(data) {
        if let Some((name, offset)) = map.lookup(address) {
            assert!(!name.is_empty() && !name.contains('\n'));
            assert!(offset <= address);
        }
    }
}

/// Any bytes as `/proc/kallsyms`: as for perf maps.
pub fn kallsyms(data: &[u8]) {
    let kallsyms = Kallsyms::parse(data);
    for address in addresses(data) {
        if let Some(function) = kallsyms.lookup(address) {
            assert!(!kallsyms.is_empty());
            assert!(!function.name.is_empty() && !function.module.is_empty());
            assert!(function.offset <= address);
        }
        kallsyms.is_loaded_at(address);
    }
}

/// Addresses worth asking for: all hexadecimal numbers of the text and their neighbours, and the ends of the space.
fn addresses(data: &[u8]) -> Vec<u64> {
    let text = String::from_utf8_lossy(data);
    text.split_ascii_whitespace()
        .filter_map(|word| u64::from_str_radix(word, 16).ok())
        .flat_map(|address| [address.wrapping_sub(1), address, address.wrapping_add(1)])
        .chain([0, u64::MAX])
        .collect()
}
