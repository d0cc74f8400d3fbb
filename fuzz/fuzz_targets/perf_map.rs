#![no_main]

use backtrail_profile::fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::perf_map(data));
