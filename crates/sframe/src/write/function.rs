//! The functions to write.

use alloc::vec::Vec;

use crate::read::Fde;
use crate::row::Row;

/// A function to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRows {
    /// Address of its first byte, in the address space of
    /// [`Options::address`](super::Options::address).
    pub start: u64,
    /// The size of its code in bytes.
    pub size: u32,
    /// Its rows: at least one, with ascending starts.
    pub rows: Vec<Row>,
    /// The code is repeated blocks of this many bytes, each with the same rows (PCMASK).
    pub repeat: Option<u8>,
    /// The function is a trampoline to which signal handlers return; version 3 only.
    pub signal_frame: bool,
    /// AArch64: return addresses are signed with key B.
    pub pauth_key_b: bool,
}

impl FunctionRows {
    /// An ordinary function.
    pub fn new(start: u64, size: u32, rows: Vec<Row>) -> FunctionRows {
        FunctionRows {
            start,
            size,
            rows,
            repeat: None,
            signal_frame: false,
            pauth_key_b: false,
        }
    }

    /// Reads a function from an existing section, to write it again.
    pub fn read(fde: &Fde<'_>) -> crate::Result<FunctionRows> {
        let function = fde.function();
        Ok(FunctionRows {
            start: function.start,
            size: function.size,
            rows: fde.rows().collect::<crate::Result<_>>()?,
            repeat: function.repeat,
            signal_frame: function.signal_frame,
            pauth_key_b: function.pauth_key_b,
        })
    }
}
