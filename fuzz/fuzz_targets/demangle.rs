#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backtrail_fuzz_targets::run("demangle", data));
