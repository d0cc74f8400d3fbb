#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_unwind::fuzz::walk_stack(data));
