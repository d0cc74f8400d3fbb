//! Receivers of a walk's frames.

use crate::frame::Frame;
use crate::record::MemoStep;
#[cfg(feature = "local")]
use crate::step::Stop;

/// Receives the frames of a walk, the innermost first.
pub(crate) trait Sink {
    fn push(&mut self, step: &MemoStep);

    /// The walk has ended.
    #[cfg(feature = "local")]
    fn end(&mut self, _stop: Stop) {}

    /// Whether the walk may be the last one again; false if that was tried.
    #[inline(always)]
    fn may_repeat(&self) -> bool {
        true
    }

    /// The walk is remembered under this number.
    #[cfg(feature = "local")]
    fn remembered(&mut self, _walk: (u64, u64)) {}

    /// Receives frames of the last walk, the outermost first.
    #[inline(always)]
    fn push_kept(&mut self, steps: &[MemoStep]) {
        steps.iter().rev().for_each(|step| self.push(step));
    }
}

/// Passes each frame to a function.
pub(crate) struct Each<F> {
    pub(crate) visit: F,
    #[cfg(feature = "local")]
    pub(crate) stop: Stop,
}

impl<F: FnMut(Frame)> Each<F> {
    pub(crate) fn new(visit: F) -> Each<F> {
        Each {
            visit,
            #[cfg(feature = "local")]
            stop: Stop::Limit,
        }
    }
}

impl<F: FnMut(Frame)> Sink for Each<F> {
    #[inline(always)]
    fn push(&mut self, step: &MemoStep) {
        (self.visit)(step.frame());
    }

    #[cfg(feature = "local")]
    fn end(&mut self, stop: Stop) {
        self.stop = stop;
    }
}
