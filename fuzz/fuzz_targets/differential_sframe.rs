#![no_main]
#![allow(dead_code)]

#[path = "../../crates/sframe/tests/common/differential.rs"]
mod differential;
#[path = "../../crates/sframe/tests/common/naive.rs"]
mod naive;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    differential::compare(data);
});
