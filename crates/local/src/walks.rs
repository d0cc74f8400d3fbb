//! Walks frame by frame, for libraries that stand in for other unwinders. Everything here may be
//! called in signal handlers.

pub use backtrail_arch::{Register, Registers};
pub use backtrail_unwind::local::{
    ARCH, Captured, FrameRegisters, Function, Outer, end_of, frames_of, function_at, is_signal_frame, loaded_range,
    position_of, step_once,
};
pub use backtrail_unwind::{AddressKind, Position, Stop};
