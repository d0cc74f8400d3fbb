//! Encoding into a borrowed buffer.

mod ends;
mod instruction;

use crate::constants::{ASYNC, END, OMIT, PC, RA, TRUNC, VERSION, VERSION_SHIFT};
use crate::{EncodeError, Frame, WordSize};
pub use ends::EndsEncoder;
use instruction::Instruction;

/// The most copies that one `rep` adds: Swift's reader accepts no more. Longer runs use several.
pub const MAX_REP: u64 = 1 << 20;

/// How the backtrace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// With `end`: the stack is complete.
    Complete,
    /// With `trunc`: the stack goes on.
    Truncated,
}

/// Writes a backtrace, frame by frame, from the leaf outwards.
///
/// The buffer always holds a valid backtrace of the frames so far that lacks only its end
/// instruction, for which one byte is reserved. So a full buffer loses no written frame: call
/// [`Encoder::finish`] with [`End::Truncated`]. To keep the outermost frames as well, use
/// [`EndsEncoder`].
///
/// Instructions are copied as a whole, which is faster than byte by byte: up to seven bytes of the
/// buffer after the backtrace's end are overwritten.
///
/// No call allocates, locks or panics. Each call's time is bounded by the bytes that it writes.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut [u8],
    len: usize,
    /// The number of bytes at the end of `out` that frames must leave free.
    reserved: usize,
    word: WordSize,
    /// The last written address; `None` before the first, which must be written as absolute.
    base: Option<u64>,
    last: Option<Frame>,
    rep: Rep,
}

/// The `rep` at the end of the written bytes; further copies lengthen it.
#[derive(Clone, Copy, Debug)]
struct Rep {
    start: usize,
    count: u64,
}

impl<'a> Encoder<'a> {
    /// Begins a backtrace at the start of `out`, which must hold at least two bytes.
    /// [`WordSize::max_encoded_len`] returns a length that always suffices.
    #[inline]
    pub fn new(out: &'a mut [u8], word: WordSize) -> Result<Encoder<'a>, EncodeError> {
        Self::with_reserve(out, word, 1)
    }

    /// Like [`Encoder::new`], but frames leave `reserved` bytes free.
    #[inline]
    fn with_reserve(out: &'a mut [u8], word: WordSize, reserved: usize) -> Result<Encoder<'a>, EncodeError> {
        let needed = reserved.saturating_add(1);
        if out.len() < needed {
            return Err(EncodeError::BufferTooShort { needed });
        }
        if let Some(information) = out.first_mut() {
            *information = VERSION << VERSION_SHIFT | word as u8;
        }
        Ok(Encoder {
            out,
            len: 1,
            reserved,
            word,
            base: None,
            last: None,
            rep: Rep { start: 1, count: 0 },
        })
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// [`EncodeError::BufferFull`] and [`EncodeError::WiderThanWord`]. The frame is not written;
    /// after `WiderThanWord`, other frames may still be pushed.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), EncodeError> {
        self.check(frame)?;
        match self.last == Some(frame) {
            true => self.write_copies(1).map(|_| ()),
            false => self.write_frame(frame),
        }
    }

    /// Adds `count` copies of a frame; does nothing if `count` is 0. Up to [`MAX_REP`] copies take
    /// as long as a single frame.
    ///
    /// # Errors
    /// As [`Encoder::push`]. If the buffer gets full, the copies that fit have been written.
    pub fn push_repeated(&mut self, frame: Frame, count: u64) -> Result<(), EncodeError> {
        self.check(frame)?;
        let mut left = count;
        if left > 0 && self.last != Some(frame) {
            self.write_frame(frame)?;
            left = left.saturating_sub(1);
        }
        while left > 0 {
            left = left.saturating_sub(self.write_copies(left)?);
        }
        Ok(())
    }

    /// Ends the backtrace and returns its length in bytes. There is always room for the end.
    #[inline]
    pub fn finish(self, end: End) -> usize {
        if let Some(last) = self.out.get_mut(self.len) {
            *last = match end {
                End::Complete => END,
                End::Truncated => TRUNC,
            };
        }
        self.len.saturating_add(1)
    }

    #[inline]
    fn check(&self, frame: Frame) -> Result<(), EncodeError> {
        match frame.fits(self.word) {
            true => Ok(()),
            false => Err(EncodeError::WiderThanWord { frame, word: self.word }),
        }
    }

    /// Adds a frame that fits into the word and differs from the last one.
    #[inline]
    fn write_frame(&mut self, frame: Frame) -> Result<(), EncodeError> {
        let opcode = match frame {
            Frame::Pc(_) => PC,
            Frame::Ra(_) => RA,
            Frame::Async(_) => ASYNC,
            Frame::Omit(_) => OMIT,
        };
        let instruction = match frame {
            Frame::Pc(address) | Frame::Ra(address) | Frame::Async(address) => {
                Instruction::address(opcode, address, self.base, self.word)
            }
            Frame::Omit(count) => Instruction::omit(count),
        };
        self.write(self.len, instruction)?;
        self.base = frame.address().or(self.base);
        self.last = Some(frame);
        self.rep = Rep {
            start: self.len,
            count: 0,
        };
        Ok(())
    }

    /// Adds up to `wanted` copies of the last frame, as many as one `rep` can hold, and returns
    /// their number.
    #[inline]
    fn write_copies(&mut self, wanted: u64) -> Result<u64, EncodeError> {
        let most = MAX_REP.min(self.word.max());
        let before = if self.rep.count < most {
            self.rep
        } else {
            Rep {
                start: self.len,
                count: 0,
            }
        };
        let added = wanted.min(most.saturating_sub(before.count));
        let rep = Rep {
            start: before.start,
            count: before.count.saturating_add(added),
        };
        self.write(rep.start, Instruction::rep(rep.count))?;
        self.rep = rep;
        Ok(added)
    }

    /// Writes an instruction at `start`, as the last one, if there is room.
    #[inline]
    fn write(&mut self, start: usize, instruction: Instruction) -> Result<(), EncodeError> {
        let end = start.saturating_add(instruction.len());
        if end > self.out.len().saturating_sub(self.reserved) {
            return Err(EncodeError::BufferFull);
        }
        instruction.put(self.out.get_mut(start..).unwrap_or_default());
        self.len = end;
        Ok(())
    }
}
