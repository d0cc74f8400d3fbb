//! Decoding.

mod instruction;

use backtrail_wire::{Bytes, Cursor, Endian};

use crate::constants::{SIZE_MASK, VERSION, VERSION_SHIFT};
use crate::{Error, ErrorKind, Frame, Repeated, Result, WordSize};
use instruction::{Count, Instruction};

/// The most frames that a [`Decoder`] gives unless it is told otherwise: as many as Swift's reader
/// allows, and more than the 8 MB stack of a Linux thread holds. It protects callers that expand
/// repetitions from twelve bytes that stand for 10^12 frames.
pub const FRAME_LIMIT: u64 = 1 << 20;

/// How a backtrace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// With `end`: the stack is complete.
    End,
    /// With `trunc`: the stack went on.
    Truncated,
    /// With the data, between two instructions: as `end`, for data whose length is known.
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

/// An iterator over the frames of one backtrace, from the leaf outwards. Copies of a frame are one
/// item, however many.
///
/// Errors come as the last item: the frames before it are as sure as they would be without it. To a
/// strict reader (what [`Decoder::new`] makes) they should count for nothing,
/// `collect::<Result<…>>()` does that. A [lenient](Self::lenient) one may use them; it also accepts
/// values that are longer than the word. Both accept values in more bytes than needed, and a first
/// address that is relative (to 0), which the description forbids and Swift writes.
///
/// The backtrace need not fill the data: [`Decoder::consumed`] tells where the next one may begin.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    cursor: Cursor<'a>,
    word: WordSize,
    lenient: bool,
    limit: u64,
    /// Frames that were given, each copy counted.
    frames: u64,
    /// The last computed address.
    base: u64,
    /// Found in a `rep` after the frame that was given last.
    pending: Option<Error>,
    outcome: Option<Result<Ended>>,
}

impl<'a> Decoder<'a> {
    /// Reads the information byte; strict, and with a limit of [`FRAME_LIMIT`] frames.
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

    /// Accepts values that are longer than the word: addresses are cut to the word, counts to 64
    /// bits.
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Gives at most `frames` frames, each copy and each omission counted; one more is an error.
    pub fn limit(mut self, frames: u64) -> Self {
        self.limit = frames;
        self
    }

    /// The word that the information byte tells.
    pub fn word(&self) -> WordSize {
        self.word
    }

    /// Bytes that were read, from the information byte. After the last item: all of the backtrace,
    /// up to its `end` or `trunc` and with it; after an error, what comes before the
    /// instruction at fault.
    pub fn consumed(&self) -> usize {
        self.cursor.offset()
    }

    /// How it ended, or why it could not be read; `None` before [`Iterator::next`] has returned
    /// `None` or an error.
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
        self.frames += repeat;
        Ok(Some(Repeated { frame, repeat }))
    }

    /// How many copies of a frame there are: 1, and what the `rep` instructions that follow add.
    /// An error in them waits for its turn, so that the frame itself is given.
    fn repeat(&mut self) -> u64 {
        let room = self.limit - self.frames;
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
                Ok(more) if more <= room - repeat => repeat += more,
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

    /// The error of the instruction that begins `at`, to which the cursor goes back.
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

    /// The address whose value is in the next bytes.
    fn address(&mut self, absolute: bool, bytes: usize) -> Result<u64, Failure> {
        let value = self.value(bytes)?;
        if bytes > self.word.bytes() && !self.lenient {
            return Err(Failure::Instruction(ErrorKind::AddressTooLong {
                bytes: bytes as u8,
                word: self.word,
            }));
        }
        let value = backtrail_wire::sign_extend(value, bytes as u32 * 8) as u64;
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

/// What is wrong with an instruction: as a whole, or at a place inside it.
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
