//! `_Unwind_Backtrace`.

use std::ffi::{c_int, c_void};

use backtrail_local::walks::{self, Captured, FrameRegisters, Position, Stop};
use backtrail_local::with_callers_registers;

use crate::context::{Context, Origin};

/// `_Unwind_Reason_Code`.
const NO_REASON: c_int = 0;
const FATAL_PHASE1_ERROR: c_int = 3;
const END_OF_STACK: c_int = 5;

type Callback = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;

with_callers_registers! {
    /// Calls `callback` for each frame, the caller's own first, until it returns anything but 0.
    ///
    /// As libgcc's: the return value is 5 at the end of the stack and 3 if the callback ended the
    /// walk, and after the outermost frame the callback gets one whose address is 0.
    ///
    /// # Safety
    /// `callback` may be called with a context and `argument`.
    #[unsafe(no_mangle)]
    _Unwind_Backtrace(callback: Callback, argument: *mut c_void) -> c_int, backtrace, "rdx", "x2"
}

/// Frames that are walked at once: callbacks run between walks, since they may throw, jump, or walk
/// themselves.
const AT_ONCE: usize = 128;

/// Beyond this depth a walk goes on from the last frame. Up to it, it is repeated from the first,
/// which costs little while the last walk is remembered, and keeps it.
const REPEATED: usize = 1024;

unsafe extern "C-unwind" fn backtrace(callback: Callback, argument: *mut c_void, caller: *const Captured) -> c_int {
    // SAFETY: the registers were saved at the entry.
    let from = Origin::new(unsafe { &*caller }.position());
    let mut frames = [FrameRegisters::default(); AT_ONCE];
    let mut walk = Walk {
        from: &from.position,
        seen: 0,
        last: None,
    };
    loop {
        let (count, stop) = walk.next(&mut frames);
        for (index, frame) in frames.iter().take(count).enumerate() {
            let mut context = Context::new(*frame, &from, walk.seen + index);
            // SAFETY: as our caller promises.
            if unsafe { callback(context.as_pointer(), argument) } != NO_REASON {
                return FATAL_PHASE1_ERROR;
            }
            walk.last = Some(*frame);
        }
        walk.seen += count;
        let Some(stop) = stop else { continue };
        if stop == Stop::EndOfStack {
            let end = FrameRegisters {
                sp: walk.last.and_then(|last| walks::end_of(&last)).unwrap_or(0),
                is_return_address: true,
                ..FrameRegisters::default()
            };
            let mut context = Context::new(end, &from, walk.seen);
            // SAFETY: as our caller promises.
            if unsafe { callback(context.as_pointer(), argument) } != NO_REASON {
                return FATAL_PHASE1_ERROR;
            }
        }
        return END_OF_STACK;
    }
}

struct Walk<'p> {
    from: &'p Position,
    seen: usize,
    last: Option<FrameRegisters>,
}

impl Walk<'_> {
    fn next(&self, frames: &mut [FrameRegisters]) -> (usize, Option<Stop>) {
        if self.seen >= REPEATED
            && let Some(last) = self.last
        {
            let (count, stop) = walks::frames_of(&last.position(), 1, frames);
            // Registers of frames further inside may be needed.
            if matches!(stop, None | Some(Stop::EndOfStack)) {
                return (count, stop);
            }
        }
        walks::frames_of(self.from, self.seen, frames)
    }
}
