//! The integration tests of `backtrail-trace-rfc`.

mod bytes;
mod convert_damaged;
mod convert_rfc;
#[path = "../../../../fuzz/targets/src/trace_rfc.rs"]
pub mod fuzz;
mod fuzz_trace;
mod rfc;
mod rfc_write;
#[path = "../../../trace/tests/it/support/mod.rs"]
mod support;
