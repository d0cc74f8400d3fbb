#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    backtrail_tracer::fuzz::class(data);
    backtrail_tracer::fuzz::rules(data);
});
