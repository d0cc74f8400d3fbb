//! Call frame information of the running process, read where it lies: every register that a callee
//! has saved, in a signal handler.
//!
//! SFrame restores the program counter, the stack pointer and the frame pointer. A frame whose CFA
//! rests on another register needs what `.eh_frame` says of all its callees. This crate follows
//! that, one frame at a time.
//!
//! It allocates nothing, takes no lock, does not panic, and reads memory only through [`Source`]
//! and the function that reads the stack. Damaged sections end in an error, after a bounded number
//! of instructions.
#![no_std]
#![forbid(unsafe_code)]

mod caller;
mod entry;
mod expression;
#[doc(hidden)]
pub mod fuzz;
mod reader;
mod rows;

pub use caller::{Caller, Frame, Missing, caller};
pub use entry::{Entries, Search, is_searchable};
pub use reader::Source;
