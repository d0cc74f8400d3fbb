#![no_main]

#[path = "../../crates/cbf/tests/targets/cbf_decode.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::cbf_decode(data));
