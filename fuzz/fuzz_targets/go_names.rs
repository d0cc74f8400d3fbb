#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_cfi::fuzz::go_names(data));
