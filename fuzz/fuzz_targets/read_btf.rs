#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_ctype::fuzz::read_btf(data));
