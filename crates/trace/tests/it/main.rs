//! The integration tests of `backtrail-trace`.

mod convert;
mod corpus;
mod crash;
mod differential;
mod format;
#[path = "../../../../fuzz/targets/src/trace.rs"]
pub mod fuzz;
mod fuzz_trace;
mod json;
mod json2_fields;
mod parallel;
mod peers;
mod push;
mod range;
mod ring;
mod support;
mod tracers;
mod verdicts;
mod verdicts_json2;
mod verdicts_tsdl;
