//! Writing: functions and their rows into a section.
//!
//! What the format allows to be small is small: the narrowest start and word widths, no consecutive rows with the
//! same rule, and functions with the same rows share them ([`Options::share`]).

mod convert;
mod encode;
mod merge;
mod relocatable;
mod share;
mod sink;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use backtrail_wire::Endian;

use crate::constants::{Abi, FdeInfo, FdeType, Flags, FreType, HEADER_SIZE, SFRAME_MAGIC, Version};
use crate::layout::{Context, fde_size, push_fde};
use crate::read::Fde;
use crate::row::Row;

pub use convert::{ConvertError, convert};
pub use relocatable::{StartField, relocatable};
pub(crate) use sink::Sink;

/// A function to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRows {
    /// Address of its first byte, in the address space of [`Options::address`].
    pub start: u64,
    /// Bytes of code.
    pub size: u32,
    /// Its rows; at least one, their starts ascending.
    pub rows: Vec<Row>,
    /// The code is repeated blocks of this many bytes, each with the same rows (PCMASK).
    pub repeat: Option<u8>,
    /// A trampoline to which signal handlers return; version 3 only.
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

    /// A function as another section tells it, to be written again.
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

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The version.
    pub version: Version,
    /// The ABI; it gives the byte order.
    pub abi: Abi,
    /// Where the section's first byte will lie.
    pub address: u64,
    /// Whether start fields count from themselves, and the flag says so. Not in version 1.
    pub pcrel: bool,
    /// Whether functions with the same rows share them. libsframe can't decode shared rows in a byte order that is not
    /// the machine's.
    pub share: bool,
    /// Up to how many neighbouring functions may stand under one FDE where that is smaller; 0 and 1: each has its own. If
    /// more than one, functions are also cut where the pieces share rows with others, and padding between functions under
    /// one FDE gets the row before it. What the rows say of every other address stays the same.
    pub merge: u8,
}

impl Options {
    /// The usual way of the version's producers; rows are shared where the byte order is this machine's.
    pub fn new(version: Version, abi: Abi, address: u64) -> Options {
        Options {
            version,
            abi,
            address,
            pcrel: version == Version::V3,
            share: abi.endian() == Endian::NATIVE,
            merge: 1,
        }
    }
}

/// A written section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The section's bytes; its alignment is 8.
    pub bytes: Vec<u8>,
    /// FDEs in it: functions, or ranges ([`Options::merge`]). GNU readers refuse a section with none.
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

/// Why a function can't be said in the chosen version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// It has no rows; in version 3 that would say "outermost frame".
    NoRows,
    /// The rows' starts don't ascend.
    RowOrder,
    /// More rows than the version can count (65,535 in version 3).
    TooManyRows,
    /// It lies farther from the section than the start field reaches.
    StartOutOfRange,
    /// The size of its repeated blocks has no place in the version, or is 0.
    Repeat,
    /// A signal frame; only version 3 can mark it.
    SignalFrame,
    /// A row marks the outermost frame, which version 1 can't.
    Outermost,
    /// The CFA counts from a register other than SP and FP, which needs version 3.
    CfaRegister,
    /// The CFA is read from memory, which needs version 3.
    CfaInMemory,
    /// The CFA is said to count from the CFA.
    CfaFromCfa,
    /// The CFA's offset is not one that s390x's scaling can hold.
    CfaOffset,
    /// The return address is where the version can't say it is.
    RaPlace,
    /// The frame pointer is where the version can't say it is.
    FpPlace,
    /// The frame pointer is saved and the return address is not, which needs version 3.
    FpWithoutRa,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 14] = [
        Reason::NoRows,
        Reason::RowOrder,
        Reason::TooManyRows,
        Reason::StartOutOfRange,
        Reason::Repeat,
        Reason::SignalFrame,
        Reason::Outermost,
        Reason::CfaRegister,
        Reason::CfaInMemory,
        Reason::CfaFromCfa,
        Reason::CfaOffset,
        Reason::RaPlace,
        Reason::FpPlace,
        Reason::FpWithoutRa,
    ];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NoRows => "no_rows",
            Reason::RowOrder => "row_order",
            Reason::TooManyRows => "too_many_rows",
            Reason::StartOutOfRange => "start_out_of_range",
            Reason::Repeat => "repeat",
            Reason::SignalFrame => "signal_frame",
            Reason::Outermost => "outermost",
            Reason::CfaRegister => "cfa_register",
            Reason::CfaInMemory => "cfa_in_memory",
            Reason::CfaFromCfa => "cfa_from_cfa",
            Reason::CfaOffset => "cfa_offset",
            Reason::RaPlace => "ra_place",
            Reason::FpPlace => "fp_place",
            Reason::FpWithoutRa => "fp_without_ra",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoRows => "it has no rows",
            Reason::RowOrder => "its rows are not in ascending order",
            Reason::TooManyRows => "it has too many rows",
            Reason::StartOutOfRange => "it lies too far from the section",
            Reason::Repeat => "the size of its repeated blocks can't be expressed",
            Reason::SignalFrame => "a signal frame can't be marked",
            Reason::Outermost => "the outermost frame can't be marked",
            Reason::CfaRegister => "the CFA counts from a register other than SP and FP",
            Reason::CfaInMemory => "the CFA is read from memory",
            Reason::CfaFromCfa => "the CFA counts from itself",
            Reason::CfaOffset => "the CFA's offset can't be expressed",
            Reason::RaPlace => "the place of the return address can't be expressed",
            Reason::FpPlace => "the place of the frame pointer can't be expressed",
            Reason::FpWithoutRa => "the frame pointer is saved without the return address",
        })
    }
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

/// The rows of a function, encoded, and what stands with them.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) num_fres: u32,
    pub(crate) info: FdeInfo,
    pub(crate) fre_type: FreType,
    pub(crate) fde_type: FdeType,
    pub(crate) rep_size: u8,
    /// The bytes in the FRE sub-section, in the encoder's arena.
    pub(crate) bytes: core::ops::Range<usize>,
}

/// An entry of the FDE table.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) fre_off: u32,
    /// The block's, but for the width of starts where that differs.
    pub(crate) info: FdeInfo,
    pub(crate) block: &'a Block,
}

/// A function that could be encoded.
#[derive(Clone)]
struct Encoded {
    /// Its number in the input.
    index: usize,
    /// Bytes from the section's start.
    start: i64,
    size: u32,
    block: Block,
}

/// Writes a section. The functions need not be sorted.
///
/// What can't be expressed is left out and listed in [`Output::skipped`].
pub fn section(functions: &[FunctionRows], options: &Options) -> Result<Output, WriteError> {
    section_around(functions, &[], options)
}

/// Writes a section in which `barriers` is not taken for padding between functions that are joined ([`Options::merge`]):
/// code of which nothing is to be said. No function with a byte in one is joined with another. Neither functions nor barriers need be sorted.
pub fn section_around(
    functions: &[FunctionRows],
    barriers: &[Range<u64>],
    options: &Options,
) -> Result<Output, WriteError> {
    if options.pcrel && options.version == Version::V1 {
        return Err(WriteError::PcrelInV1);
    }
    let mut encoder = encode::Encoder::new(options, functions.len());
    let mut encoded = Vec::with_capacity(functions.len());
    let mut skipped = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        match encoder.function(index, function) {
            Ok(function) => encoded.push(function),
            Err(reason) => skipped.push(Skipped {
                index,
                start: function.start,
                reason,
            }),
        }
    }
    // Relative to the section, as the reader searches. Those without a size stand before the one that has it.
    encoded.sort_by_key(|function| (function.start, function.size));
    let mut layout = share::Layout::new(&encoded, encoder.arena(), options);
    if options.merge > 1 {
        let left_out = skipped.iter().map(|skipped| &functions[skipped.index]);
        let left_out = left_out.map(|function| function.start..function.start.saturating_add(function.size.into()));
        let barriers = disjoint(barriers.iter().cloned().chain(left_out), options.address);
        let joined = merge::join(functions, &encoded, &barriers, encoder.arena(), options);
        if let Some(joined) = encode_joined(&encoded, joined, &mut encoder) {
            let joined_layout = share::Layout::new(&joined, encoder.arena(), options);
            let size = |count: usize, layout: &share::Layout| (count * fde_size(options.version)) as u64 + layout.size;
            if size(joined.len(), &joined_layout) < size(encoded.len(), &layout) {
                (encoded, layout) = (joined, joined_layout);
            }
        }
    }
    let rows = encoded.iter().map(|function| u64::from(function.block.num_fres)).sum();
    let bytes = assemble(&encoded, &layout, rows, encoder.arena(), options)?;
    Ok(Output {
        bytes,
        functions: fits(encoded.len() as u64)?,
        rows: fits(rows)?,
        skipped,
    })
}

/// The ranges relative to the section, in order, those that overlap as one.
fn disjoint(ranges: impl Iterator<Item = Range<u64>>, address: u64) -> Vec<Range<i64>> {
    let relative = |address_in: u64| address_in.wrapping_sub(address) as i64;
    let mut ranges: Vec<Range<i64>> = ranges.map(|range| relative(range.start)..relative(range.end)).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let overlap = next.start <= range.end;
        if overlap {
            range.end = range.end.max(next.end);
        }
        overlap
    });
    ranges
}

/// `None` where what could be said of functions can't be said of them together.
fn encode_joined(
    encoded: &[Encoded],
    joined: Vec<merge::Joined>,
    encoder: &mut encode::Encoder,
) -> Option<Vec<Encoded>> {
    let encode = |joined: merge::Joined| match joined {
        merge::Joined::Whole(place) => encoded.get(place).cloned(),
        merge::Joined::Range(range) => encoder.function(0, &range).ok(),
    };
    joined.into_iter().map(encode).collect()
}

fn fits(number: u64) -> Result<u32, WriteError> {
    u32::try_from(number).map_err(|_| WriteError::TooLarge(number))
}

fn assemble(
    functions: &[Encoded],
    layout: &share::Layout,
    rows: u64,
    arena: &[u8],
    options: &Options,
) -> Result<Vec<u8>, WriteError> {
    let fde_size = fde_size(options.version);
    let table_size = functions.len() as u64 * fde_size as u64;
    let mut flags = Flags::FDE_SORTED.0;
    if options.pcrel {
        flags |= Flags::FDE_FUNC_START_PCREL.0;
    }
    let mut sink = Sink::new(options.abi.endian());
    sink.u16(SFRAME_MAGIC);
    sink.u8(options.version as u8);
    sink.u8(flags);
    sink.u8(options.abi as u8);
    sink.u8(0);
    sink.u8(options.abi.fixed_ra_offset() as u8);
    sink.u8(0);
    sink.u32(fits(functions.len() as u64)?);
    sink.u32(fits(rows)?);
    sink.u32(fits(layout.size)?);
    sink.u32(0);
    sink.u32(fits(table_size)?);
    for (index, (function, &(fre_off, fre_type))) in functions.iter().zip(&layout.places).enumerate() {
        let field = if options.pcrel {
            (HEADER_SIZE + index * fde_size) as i64
        } else {
            0
        };
        let entry = Entry {
            start: function.start.wrapping_sub(field),
            size: function.size,
            // Below the layout's size, which fits.
            fre_off: fre_off as u32,
            info: function.block.info.with_fre_type(fre_type),
            block: &function.block,
        };
        push_fde(options.version, &mut sink, &entry);
    }
    for &index in &layout.emitted {
        sink.bytes(&arena[functions[index].block.bytes.clone()]);
    }
    Ok(sink.into_bytes())
}

/// The properties of a section written with `options`.
fn context(options: &Options) -> Context {
    Context {
        version: options.version,
        abi: options.abi,
        fixed_fp: 0,
        fixed_ra: options.abi.fixed_ra_offset(),
    }
}
