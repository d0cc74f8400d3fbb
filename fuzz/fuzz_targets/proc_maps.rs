#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_process::perf::fuzz::maps(data));
