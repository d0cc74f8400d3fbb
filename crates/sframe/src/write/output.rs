//! The results and errors of writing.

use alloc::vec::Vec;
use core::fmt;

use crate::reason::Reason;

/// A written section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The section's contents; its alignment is 8.
    pub bytes: Vec<u8>,
    /// The number of FDEs: functions, or merged ranges
    /// ([`Options::merge`](super::Options::merge)). GNU readers reject a section without FDEs.
    pub functions: u32,
    /// The number of rows; shared rows count for each function.
    pub rows: u32,
    /// Functions that this version can't express, in the order of the input.
    pub skipped: Vec<Skipped>,
}

/// A function that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its index in the input.
    pub index: usize,
    /// The address of its first byte, or of the piece of it that was left out.
    pub start: u64,
    /// The size in bytes of the code that was left out.
    pub size: u64,
    /// Why it was left out.
    pub reason: Reason,
}

/// Why a section can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteError {
    /// Version 1 has no flag for start fields that are relative to themselves.
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
