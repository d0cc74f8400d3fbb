//! The system calls: one of the five places of the project where unsafe code is allowed.
#![allow(unsafe_code)]

mod bpf;
mod descriptors;
mod heap;
mod perf_event;
mod process_vm;
pub mod ptrace;
mod ring;
mod signals;
#[cfg(target_arch = "aarch64")]
mod signatures;

pub use bpf::{BpfMap, Function, MapKind, load_program};
pub use descriptors::only_standard_input;
pub use heap::give_back_memory;
pub use perf_event::{
    Attributes, Clock, Counted, Event, enable_for, event_id, lost_by_output, open_event, open_program_output,
    open_watchpoint, redirect_output, set_enabled, set_program,
};
pub use process_vm::{read_process, robust_list, touch_pages, touch_pages_below};
pub use ring::Ring;
pub use signals::{Signal, SignalSource};
#[cfg(target_arch = "aarch64")]
pub(crate) use signatures::signed_bits;
