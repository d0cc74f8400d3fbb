#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_recording::fuzz_symbols(data));
