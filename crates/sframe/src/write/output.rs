//! What comes of it.

use alloc::vec::Vec;
use core::fmt;

use crate::reason::Reason;

/// A written section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The section's bytes; its alignment is 8.
    pub bytes: Vec<u8>,
    /// FDEs in it: functions, or ranges ([`Options::merge`](super::Options::merge)). GNU readers
    /// refuse a section with none.
    pub functions: u32,
    /// Rows in it; shared ones count for each function.
    pub rows: u32,
    /// Functions that this version can't express, in the order of the input.
    pub skipped: Vec<Skipped>,
}

/// A function that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its index in the input.
    pub index: usize,
    /// Its start.
    pub start: u64,
    /// Why.
    pub reason: Reason,
}

/// Why no section can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteError {
    /// Version 1 has no flag for start fields that count from themselves.
    PcrelInV1,
    /// The header can't count this many functions, rows, or bytes of a sub-section.
    TooLarge(u64),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::PcrelInV1 => f.write_str("SFrame version 1 has no start fields that count from themselves"),
            WriteError::TooLarge(size) => write!(f, "an SFrame header can't hold the number {size}"),
        }
    }
}

impl core::error::Error for WriteError {}
