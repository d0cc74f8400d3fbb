//! Decoding.

mod instruction;

use backtrail_wire::{Bytes, Cursor, Endian};

use crate::constants::{SIZE_MASK, VERSION, VERSION_SHIFT};
use crate::{Error, ErrorKind, Frame, Repeated, Result, WordSize};
use instruction::{Count, Instruction};

/// The default limit on the frames that a [`Decoder`] yields.
///
/// It is the limit of Swift's reader, and more than fit on the 8 MB stack of a Linux thread. It
/// protects callers that expand repetitions: twelve bytes can represent 10^12 frames.
pub const FRAME_LIMIT: u64 = 1 << 20;

/// How a backtrace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// With `end`: the stack is complete.
    End,
    /// With `trunc`: the stack went on.
    Truncated,
    /// With the data, between two instructions: the same as `end` if the data's length is known.
    EndOfData,
}

impl Ended {
    /// The instruction's mnemonic, or `eof`.
    pub const fn name(self) -> &'static str {
        match self {
            Ended::End => "end",
            Ended::Truncated => "trunc",
            Ended::EndOfData => "eof",
        }
    }
}

/// An iterator over the frames of one backtrace, from the leaf outwards. All copies of a frame are
/// one item.
///
/// An error is the last item; the frames before it are as reliable as they would be without it. A
/// strict reader (see [`Decoder::new`]) should discard them, as `collect::<Result<…>>()` does. A
/// [lenient](Self::lenient) reader may use them; it also accepts values that are longer than the
/// word. Both accept values that are longer than necessary, and a first address that is relative
/// (to 0), which the specification forbids and Swift writes.
///
/// The backtrace need not fill the data: the next one may begin at [`Decoder::consumed`].
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    cursor: Cursor<'a>,
    word: WordSize,
    lenient: bool,
    limit: u64,
    /// The number of frames yielded so far, counting each copy.
    frames: u64,
    /// The last computed address.
    base: u64,
    /// The error found in a `rep` after the last frame that was yielded.
    pending: Option<Error>,
    outcome: Option<Result<Ended>>,
}

impl<'a> Decoder<'a> {
    /// Reads the information byte. The decoder is strict and has a limit of [`FRAME_LIMIT`] frames.
    pub fn new(data: &'a [u8]) -> Result<Decoder<'a>> {
        let mut cursor = Bytes::new(data, Endian::Big).cursor(0);
        let failed = |kind| Err(Error { kind, offset: 0 });
        let Ok(information) = cursor.u8() else {
            return failed(ErrorKind::Empty);
        };
        let version = information >> VERSION_SHIFT;
        if version != VERSION {
            return failed(ErrorKind::Version(version));
        }
        let Some(&word) = WordSize::ALL.get(usize::from(information & SIZE_MASK)) else {
            return failed(ErrorKind::ReservedWordSize);
        };
        Ok(Decoder {
            cursor,
            word,
            lenient: false,
            limit: FRAME_LIMIT,
            frames: 0,
            base: 0,
            pending: None,
            outcome: None,
        })
    }

    /// Accepts values that are longer than the word: addresses are truncated to the word, counts to
    /// 64 bits.
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Yields at most `frames` frames, counting each copy and each omission; one more is an error.
    pub fn limit(mut self, frames: u64) -> Self {
        self.limit = frames;
        self
    }

    /// The word size in the information byte.
    pub fn word(&self) -> WordSize {
        self.word
    }

    /// The number of bytes read, counted from the information byte. After the last item, it covers
    /// the whole backtrace including its `end` or `trunc`; after an error, everything before the
    /// faulty instruction.
    pub fn consumed(&self) -> usize {
        self.cursor.offset()
    }

    /// How the backtrace ended, or why it could not be read; `None` until [`Iterator::next`] has
    /// returned `None` or an error.
    pub fn outcome(&self) -> Option<Result<Ended>> {
        self.outcome
    }

    fn step(&mut self) -> Result<Option<Repeated>> {
        if let Some(error) = self.pending.take() {
            return Err(error);
        }
        let at = self.cursor;
        let Ok(opcode) = self.cursor.u8() else {
            return Ok(self.end(Ended::EndOfData));
        };
        let frame = match Instruction::of(opcode) {
            Instruction::End => return Ok(self.end(Ended::End)),
            Instruction::Trunc => return Ok(self.end(Ended::Truncated)),
            Instruction::Address { frame, absolute, bytes } => {
                self.address(absolute, bytes).map(frame).map_err(|e| self.fail(at, e))?
            }
            Instruction::Omit(count) => self.count(count).map(Frame::Omit).map_err(|e| self.fail(at, e))?,
            Instruction::Rep(_) => return Err(self.fail(at, Failure::Instruction(ErrorKind::RepWithoutFrame))),
            Instruction::Reserved => {
                return Err(self.fail(at, Failure::Instruction(ErrorKind::ReservedOpcode(opcode))));
            }
        };
        if self.frames >= self.limit {
            return Err(self.fail(at, Failure::Instruction(ErrorKind::FrameLimit(self.limit))));
        }
        let repeat = self.repeat();
        self.frames = self.frames.saturating_add(repeat);
        Ok(Some(Repeated { frame, repeat }))
    }

    /// The number of copies of a frame: 1 plus what the following `rep` instructions add. An error
    /// in them is kept for the next call, so that the frame itself is still yielded.
    fn repeat(&mut self) -> u64 {
        let room = self.limit.saturating_sub(self.frames);
        let mut repeat = 1u64;
        loop {
            let at = self.cursor;
            let Ok(opcode) = self.cursor.u8() else {
                return repeat;
            };
            let Instruction::Rep(count) = Instruction::of(opcode) else {
                self.cursor = at;
                return repeat;
            };
            match self.count(count) {
                Ok(more) if more <= room.saturating_sub(repeat) => repeat = repeat.saturating_add(more),
                Ok(_) => {
                    let kind = ErrorKind::FrameLimit(self.limit);
                    self.pending = Some(self.fail(at, Failure::Instruction(kind)));
                    return room;
                }
                Err(failure) => {
                    self.pending = Some(self.fail(at, failure));
                    return repeat;
                }
            }
        }
    }

    fn end(&mut self, ended: Ended) -> Option<Repeated> {
        self.outcome = Some(Ok(ended));
        None
    }

    /// The error of the instruction at `at`; moves the cursor back to it.
    #[cold]
    fn fail(&mut self, at: Cursor<'a>, failure: Failure) -> Error {
        self.cursor = at;
        match failure {
            Failure::Instruction(kind) => Error {
                kind,
                offset: at.offset() as u64,
            },
            Failure::Argument(error) => error,
        }
    }

    /// Computes an address from the value in the next bytes.
    fn address(&mut self, absolute: bool, bytes: usize) -> Result<u64, Failure> {
        let value = self.value(bytes)?;
        if bytes > self.word.bytes() && !self.lenient {
            return Err(Failure::Instruction(ErrorKind::AddressTooLong {
                bytes: bytes as u8,
                word: self.word,
            }));
        }
        let value = backtrail_wire::sign_extend(value, (bytes as u32).saturating_mul(8)) as u64;
        let base = if absolute { 0 } else { self.base };
        self.base = self.word.wrap(base.wrapping_add(value));
        Ok(self.base)
    }

    fn count(&mut self, count: Count) -> Result<u64, Failure> {
        match count {
            Count::Internal(count) => Ok(count),
            Count::External { bytes } => {
                let value = self.value(bytes)?;
                if bytes > self.word.bytes() && !self.lenient {
                    return Err(Failure::Instruction(ErrorKind::CountTooLong {
                        bytes: bytes as u8,
                        word: self.word,
                    }));
                }
                Ok(value)
            }
        }
    }

    /// The low 64 bits of the next bytes, the most significant first.
    fn value(&mut self, bytes: usize) -> Result<u64, Failure> {
        let offset = self.cursor.offset() as u64;
        let missing = bytes.saturating_sub(self.cursor.remaining()) as u64;
        let bytes = self.cursor.slice(bytes).map_err(|_| {
            Failure::Argument(Error {
                kind: ErrorKind::Truncated { missing },
                offset,
            })
        })?;
        Ok(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }
}

/// An error in an instruction: in the whole instruction, or at an offset inside it.
enum Failure {
    Instruction(ErrorKind),
    Argument(Error),
}

impl Iterator for Decoder<'_> {
    type Item = Result<Repeated>;

    fn next(&mut self) -> Option<Result<Repeated>> {
        if self.outcome.is_some() {
            return None;
        }
        let item = self.step().transpose();
        if let Some(Err(error)) = item {
            self.outcome = Some(Err(error));
        }
        item
    }
}

impl core::iter::FusedIterator for Decoder<'_> {}
