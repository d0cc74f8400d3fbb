//! Converting a section to another version or byte order: reads and rewrites every function.

use alloc::vec::Vec;
use core::fmt;

use super::assemble::section;
use super::function::FunctionRows;
use super::options::Options;
use super::output::{Output, WriteError};
use crate::error::{Error, ErrorKind};
use crate::read::Section;

/// The most rows accepted per byte of a section. Functions may share rows, so a small section can
/// claim any number of them; in real sections, a few functions share a row.
const ROWS_A_BYTE: usize = 4;

/// Why a section can't be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvertError {
    /// Part of it can't be read.
    Read(Error),
    /// The target has another CPU. Rows name registers, which other CPUs don't have.
    OtherCpu,
    /// It can't be written.
    Write(WriteError),
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConvertError::Read(error) => error.fmt(f),
            ConvertError::OtherCpu => f.write_str("a table of one CPU can't be made one of another"),
            ConvertError::Write(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConvertError {}

impl FunctionRows {
    /// All functions of a section, in the order of its table.
    ///
    /// Fails at the first FDE or row that can't be read, or if the functions claim far more rows
    /// than a section of this length can plausibly have.
    pub fn read_all(section: &Section<'_>) -> crate::Result<Vec<FunctionRows>> {
        let most = section.size().saturating_mul(ROWS_A_BYTE);
        let mut left = most;
        let mut functions = Vec::with_capacity(section.functions().len());
        for fde in section.functions() {
            let fde = fde?;
            let rows = fde.function().rows as usize;
            left = left
                .checked_sub(rows)
                .ok_or(Error::new(ErrorKind::TooManyRows(most as u64), fde.offset()))?;
            functions.push(FunctionRows::read(&fde)?);
        }
        Ok(functions)
    }
}

/// Writes the functions of `from` with `options`, which may specify another version, address or
/// byte order, but not another CPU.
///
/// Functions that the version can't express are left out and listed in [`Output::skipped`].
pub fn convert(from: &Section<'_>, options: &Options) -> Result<Output, ConvertError> {
    if from.abi().arch() != options.abi.arch() {
        return Err(ConvertError::OtherCpu);
    }
    let functions = FunctionRows::read_all(from).map_err(ConvertError::Read)?;
    section(&functions, options).map_err(ConvertError::Write)
}
