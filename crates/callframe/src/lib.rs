//! Call frame information of the running process, read in place: restores every register that a
//! callee has saved, and works in a signal handler.
//!
//! SFrame restores the program counter, the stack pointer and the frame pointer. If a frame's CFA
//! depends on another register, the `.eh_frame` rules of all its callees are needed. This crate
//! follows them one frame at a time.
//!
//! It does not allocate, lock or panic, and reads memory only through [`Source`] and the function
//! that reads the stack. Damaged sections cause an error after a bounded number of instructions.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod caller;
mod describe;
mod entry;
mod expression;
mod reader;
mod rows;

pub use caller::{Caller, Frame, Missing, caller};
pub use describe::{Description, Function, Place, describe, function};
pub use entry::{Entries, Search, is_searchable};
pub use reader::Source;
