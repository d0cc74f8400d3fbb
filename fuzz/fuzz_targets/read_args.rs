#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_args::fuzz::read_args(data));
