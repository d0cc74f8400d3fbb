//! Fuzz targets as plain functions, run briefly by the tests and for long by cargo-fuzz.

use std::sync::Arc;

use backtrail_profile::internals::{JitCode, JitDump};
use backtrail_profile::{Kallsyms, MAX_NAME_LENGTH, PerfMap};

/// Any bytes as a perf map: every line's start and end can be asked for, and what is found lies
/// where it was written.
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

/// Any text as a symbol: its name is not much longer than names may be.
pub fn demangle(data: &[u8]) {
    if let Ok(name) = std::str::from_utf8(data) {
        let shown = backtrail_profile::demangle(name);
        assert!(shown.len() <= MAX_NAME_LENGTH + '…'.len_utf8());
    }
}

/// Any bytes as a jitdump: every address in it can be asked for at every of its times.
pub fn jit_dump(data: &[u8]) {
    let Some(dump) = JitDump::parse(data) else {
        return;
    };
    assert!(dump.count() * 16 <= data.len());
    let words = data.chunks_exact(8).take(512);
    let words: Vec<u64> = words
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
        .collect();
    let mut code = JitCode::new(Arc::new(dump));
    let mut times: Vec<u64> = words.iter().copied().chain([u64::MAX]).collect();
    times.sort_unstable();
    for time in times.into_iter().step_by(1 + words.len() / 8) {
        code.advance(time);
        for &address in &words {
            if let Some((change, offset)) = code.find(address) {
                assert!(offset <= address && code.function(change, offset).is_some());
            }
        }
    }
    assert!(!code.advance(0));
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

/// Addresses worth asking for: all hexadecimal numbers of the text and their neighbours, and the
/// ends of the space.
fn addresses(data: &[u8]) -> Vec<u64> {
    let text = String::from_utf8_lossy(data);
    text.split_ascii_whitespace()
        .filter_map(|word| u64::from_str_radix(word, 16).ok())
        .flat_map(|address| [address.wrapping_sub(1), address, address.wrapping_add(1)])
        .chain([0, u64::MAX])
        .collect()
}
