#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_dwarf::fuzz::go_names(data));
