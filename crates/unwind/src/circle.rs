//! Walks that come back to a frame.

/// Notices that a walk goes in a circle: a stack was overwritten, and the frame of a signal leads
/// back into code that runs now. The kernel does so to an alternate stack that has overflown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circle {
    frames: u32,
    /// The frame that the following ones are compared with: by Brent's algorithm, the 1st, 2nd,
    /// 4th, 8th...
    pc: u64,
    sp: u64,
}

impl Circle {
    /// Whether a frame whose stack pointer is not above its callee's is one where the walk was
    /// before. Every circle has such a frame.
    pub(crate) fn is_closed_by(&mut self, pc: u64, sp: u64) -> bool {
        if (self.pc, self.sp) == (pc, sp) {
            return true;
        }
        self.frames = self.frames.saturating_add(1);
        if self.frames.is_power_of_two() {
            (self.pc, self.sp) = (pc, sp);
        }
        false
    }
}
