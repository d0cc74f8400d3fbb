#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = backtrail_stacks::fuzz::arguments(data);
});
