//! Compact Backtrace Format: a stack in a few bytes a frame.
//!
//! A backtrace is an information byte (version and word size) followed by instructions. Each
//! instruction is a frame, a repetition of the previous frame, or the end. An address is written
//! either as it is or as its distance from the previous address, whichever is shorter. A recursion
//! of any depth takes two to nine bytes more than its first frame.
//!
//! ```
//! use backtrail_cbf::{Decoder, Encoder, End, Ended, Frame, WordSize};
//!
//! let mut buffer = [0; 64];
//! let mut encoder = Encoder::new(&mut buffer, WordSize::Bits64)?;
//! encoder.push(Frame::Pc(0x40_1000))?;
//! encoder.push_repeated(Frame::Ra(0x40_1010), 300)?;
//! let len = encoder.finish(End::Complete);
//! assert_eq!(buffer[..len], [0x02, 0x1a, 0x40, 0x10, 0x00, 0x20, 0x10, 0x89, 0x01, 0x2b, 0x00]);
//!
//! let mut decoder = Decoder::new(&buffer[..len])?;
//! let deepest = decoder.by_ref().last().unwrap()?;
//! assert_eq!((deepest.frame, deepest.repeat), (Frame::Ra(0x40_1010), 300));
//! assert_eq!(decoder.outcome(), Some(Ok(Ended::End)));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Promises
//! Encoder and decoder never allocate, lock, call the system or panic, whatever the bytes and
//! frames are: this crate does not use `alloc`, and both may run in a signal handler. The decoder's
//! time is bounded by the bytes it is given, not by the frames that they represent: it never
//! expands a repetition. It also stops at a limit of frames (by default [`FRAME_LIMIT`]), so that
//! callers may expand repetitions.
//!
//! The `cif` feature adds the module `cif` for the companion format, a list of modules. It does
//! allocate.
//!
//! # Limits of the format
//! The format does not record the module, thread or time of a stack, nor which frame a signal
//! interrupted, though two [`Frame::Pc`] in one backtrace hint at that. A cycle of mutual recursion
//! is not a repetition.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

#[cfg(feature = "cif")]
extern crate alloc;

#[cfg(feature = "cif")]
pub mod cif;
pub mod constants;
mod error;
mod frame;
mod read;
mod word;
mod write;

pub use error::{EncodeError, Error, ErrorKind, Result};
pub use frame::{Frame, ParseFrameError, Repeated};
pub use read::{Decoder, Ended, FRAME_LIMIT};
pub use word::WordSize;
pub use write::{Encoder, End, EndsEncoder, MAX_REP};
