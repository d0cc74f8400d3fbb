//! Encoding both ends of a stack that is too deep to keep whole.

use super::{Encoder, End};
use crate::{EncodeError, Frame, WordSize};

/// Writes the first and last frames of a stack whose depth is unknown until it has been walked.
///
/// An `omit` between them holds the number of missing frames. A stack that fits is written whole.
///
/// The last frames wait in a borrowed ring until [`EndsEncoder::finish`]. The buffer reserves room
/// for them from the start, so a short buffer loses frames in the middle, never the outermost
/// ones.
///
/// No call allocates, locks or panics.
#[derive(Debug)]
pub struct EndsEncoder<'a> {
    encoder: Encoder<'a>,
    /// How many more frames may join the first ones.
    head: u64,
    tail: &'a mut [Frame],
    /// The number of frames in `tail`; `next` is the slot of the next one.
    kept: usize,
    next: usize,
    omitted: u64,
}

impl<'a> EndsEncoder<'a> {
    /// Keeps the first `head` frames and the last `tail.len()`. The contents of `tail` are ignored.
    ///
    /// # Errors
    /// [`EncodeError::BufferTooShort`] unless `out` has room for `tail.len()` frames and the
    /// omission.
    pub fn new(
        out: &'a mut [u8],
        word: WordSize,
        head: u64,
        tail: &'a mut [Frame],
    ) -> Result<EndsEncoder<'a>, EncodeError> {
        let omission_and_tail = tail.len().saturating_add(1).saturating_mul(word.max_frame_bytes());
        Ok(EndsEncoder {
            encoder: Encoder::with_reserve(out, word, omission_and_tail.saturating_add(1))?,
            head,
            tail,
            kept: 0,
            next: 0,
            omitted: 0,
        })
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// [`EncodeError::WiderThanWord`] if the frame, or the count of omitted frames, does not fit
    /// into the word. The frame is then not kept.
    pub fn push(&mut self, frame: Frame) -> Result<(), EncodeError> {
        if self.head > 0 {
            match self.encoder.push(frame) {
                Err(EncodeError::BufferFull) => self.head = 0,
                done => {
                    self.head = self.head.saturating_sub(u64::from(done.is_ok()));
                    return done;
                }
            }
        }
        self.keep(frame)
    }

    /// Ends the backtrace and returns its length in bytes. There is always room for the end.
    pub fn finish(mut self, end: End) -> usize {
        self.encoder.reserved = 1;
        let (newer, older) = self.tail.split_at_checked(self.next).unwrap_or((&[], &[]));
        let older = if self.kept == self.tail.len() { older } else { &[] };
        let omission = (self.omitted > 0).then_some(Frame::Omit(self.omitted));
        for &frame in omission.iter().chain(older).chain(newer) {
            // There is room for every frame. Should that ever be wrong, the backtrace must not
            // claim to be complete.
            if self.encoder.push(frame).is_err() {
                return self.encoder.finish(End::Truncated);
            }
        }
        self.encoder.finish(end)
    }

    /// Puts a frame into the ring. If the ring is full, the oldest frame in it is omitted.
    fn keep(&mut self, frame: Frame) -> Result<(), EncodeError> {
        let word = self.encoder.word;
        if !frame.fits(word) {
            return Err(EncodeError::WiderThanWord { frame, word });
        }
        if self.kept < self.tail.len() {
            self.kept = self.kept.saturating_add(1);
        } else {
            let oldest = self.tail.get(self.next).copied().unwrap_or(frame);
            let omitted = self.omitted.saturating_add(frames(oldest));
            if !Frame::Omit(omitted).fits(word) {
                return Err(EncodeError::WiderThanWord {
                    frame: Frame::Omit(omitted),
                    word,
                });
            }
            self.omitted = omitted;
        }
        if let Some(slot) = self.tail.get_mut(self.next) {
            *slot = frame;
            self.next = self.next.saturating_add(1);
        }
        if self.next >= self.tail.len() {
            self.next = 0;
        }
        Ok(())
    }
}

/// How many frames of the stack a frame represents.
fn frames(frame: Frame) -> u64 {
    match frame {
        Frame::Omit(count) => count,
        Frame::Pc(_) | Frame::Ra(_) | Frame::Async(_) => 1,
    }
}
