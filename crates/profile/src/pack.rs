//! Adds names to a recording, so that reports of it need nothing else.

use std::fmt;
use std::path::Path;

use backtrail_recording::{AddError, ReadError, Reader, add_symbols};

use crate::profile::{Options, Profile};
use crate::symbolize::Symbolizer;

/// What was added to a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packed {
    /// Distinct addresses with names.
    pub addresses: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Why functions will be shown without names, as reports of the recording say it.
    pub notes: Vec<String>,
}

/// Why names could not be added to a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum PackError {
    /// The recording cannot be read.
    Read(ReadError),
    /// It cannot be written.
    Write(AddError),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Read(error) => error.fmt(f),
            PackError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PackError {}

impl From<ReadError> for PackError {
    fn from(error: ReadError) -> Self {
        PackError::Read(error)
    }
}

impl From<AddError> for PackError {
    fn from(error: AddError) -> Self {
        PackError::Write(error)
    }
}

/// Looks up the names of all addresses of the recording in a directory, and adds them to it. Names
/// that it had before are kept where nothing else is found now. The recording must not be in use by
/// its recorder.
///
/// # Errors
///
/// If the recording cannot be read or written.
pub fn pack(directory: &Path, options: Options) -> Result<Packed, PackError> {
    let mut reader = Reader::open(directory)?;
    let options = Options {
        clock_offset: reader.clock_offset(),
        ..options
    };
    let mut profile = Profile::collecting(options, reader.take_symbols());
    while let Some(entry) = reader.next_entry()? {
        profile.add_entry(&entry);
    }
    let symbols = profile.into_symbols();
    let addresses = symbols.spaces.iter().map(|space| space.entries.len() as u64).sum();
    let bytes = add_symbols(directory, &symbols)?;
    Ok(Packed {
        addresses,
        bytes,
        notes: symbols.notes,
    })
}

impl Profile {
    /// Counts a whole recording, with the names that it has in itself, or else with those of this
    /// machine's files.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read.
    pub fn of_recording(reader: &mut Reader, options: Options) -> Result<Profile, ReadError> {
        let options = Options {
            clock_offset: reader.clock_offset(),
            ..options
        };
        let symbolizer = Symbolizer::of_recording(reader, options.system.clone()).below(options.sysroot.clone());
        let mut profile = Profile::with_symbolizer(options, symbolizer).of_origin(reader.origin());
        while let Some(entry) = reader.next_entry()? {
            profile.add_entry(&entry);
        }
        Ok(profile)
    }
}
