#![no_main]

#[path = "../../crates/cbf/tests/targets/cif.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::cif(data));
