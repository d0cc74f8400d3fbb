//! Encoding one function.

use alloc::vec::Vec;

use super::function::FunctionRows;
use super::options::Options;
use crate::constants::{FdeInfo, FdeType, FreInfo, FreType, HEADER_SIZE, V1_REPEAT, V3_MAX_ROWS, Version, WordSize};
use crate::layout::{Block, Context, Sink, WordList, default, fde_size, flex, push_attribute};
use crate::reason::Reason;
use crate::row::{Row, Rule};

/// An encoded function.
#[derive(Clone)]
pub(super) struct Encoded {
    /// Its index in the input.
    pub(super) index: usize,
    /// Bytes from the section's start.
    pub(super) start: i64,
    pub(super) size: u32,
    pub(super) block: Block,
}

/// A row with encoded words; the width of its start is not yet known.
struct EncodedRow {
    start: u32,
    base_sp: bool,
    mangled_ra: bool,
    words: WordList,
}

/// Encodes functions into one arena, one after another.
pub(super) struct Encoder {
    context: Context,
    address: u64,
    /// The largest offset in the section of a start field that is relative to itself.
    reach: i64,
    arena: Sink,
    rows: Vec<EncodedRow>,
}

impl Encoder {
    pub(super) fn new(options: &Options, functions: usize) -> Self {
        let table_end = HEADER_SIZE as u64 + functions as u64 * fde_size(options.version) as u64;
        Encoder {
            context: options.context(),
            address: options.address,
            reach: if options.pcrel { table_end as i64 } else { 0 },
            arena: Sink::new(options.abi.endian()),
            rows: Vec::new(),
        }
    }

    pub(super) fn arena(&self) -> &[u8] {
        self.arena.as_bytes()
    }

    /// Encodes the function; `index` is its index in the input.
    pub(super) fn function(&mut self, index: usize, function: &FunctionRows) -> Result<Encoded, Reason> {
        let before = self.arena.len();
        let start = self.start(function.start)?;
        let rep_size = self.repeat(function.repeat)?;
        if function.signal_frame && self.context.version != Version::V3 {
            return Err(Reason::SignalFrame);
        }
        let fde_type = self.encode_rows(&function.rows)?;
        let last = self.rows.last().ok_or(Reason::NoRows)?.start;
        let fre_type = FreType::for_start(last);
        let info = FdeInfo::new(
            fre_type,
            function.repeat.is_some(),
            function.pauth_key_b,
            function.signal_frame,
        );
        let mut block = Block {
            num_fres: u32::try_from(self.rows.len()).map_err(|_| Reason::TooManyRows)?,
            info,
            fre_type,
            fde_type,
            rep_size,
            bytes: before..before,
        };
        push_attribute(self.context.version, &mut self.arena, &block);
        for row in &self.rows {
            push_row(&mut self.arena, fre_type, row);
        }
        block.bytes.end = self.arena.len();
        Ok(Encoded {
            index,
            start,
            size: function.size,
            block,
        })
    }

    /// A function's start, in bytes from the section's start.
    fn start(&self, address: u64) -> Result<i64, Reason> {
        let start = address.wrapping_sub(self.address) as i64;
        let narrow = |value: i64| i32::try_from(value).is_ok();
        // Its entry in the table is not known yet, so the start must fit into every entry.
        if self.context.version == Version::V3 || (narrow(start) && narrow(start - self.reach)) {
            Ok(start)
        } else {
            Err(Reason::StartOutOfRange)
        }
    }

    fn repeat(&self, repeat: Option<u8>) -> Result<u8, Reason> {
        match (repeat, self.context.version) {
            (None, _) => Ok(0),
            (Some(0), _) => Err(Reason::Repeat),
            (Some(size), Version::V1) if size != V1_REPEAT => Err(Reason::Repeat),
            (Some(size), _) => Ok(size),
        }
    }

    /// Fills `self.rows`: as DEFAULT if that can express every row, else, in version 3, as FLEX.
    fn encode_rows(&mut self, rows: &[Row]) -> Result<FdeType, Reason> {
        if rows.is_empty() {
            return Err(Reason::NoRows);
        }
        if !rows.is_sorted_by(|one, next| one.start < next.start) {
            return Err(Reason::RowOrder);
        }
        let fde_type = match self.encode_rows_as(rows, FdeType::Default) {
            Ok(()) => FdeType::Default,
            Err(_) if self.context.version == Version::V3 => {
                self.encode_rows_as(rows, FdeType::Flex)?;
                FdeType::Flex
            }
            Err(reason) => return Err(reason),
        };
        if self.context.version == Version::V3 && self.rows.len() > V3_MAX_ROWS {
            return Err(Reason::TooManyRows);
        }
        Ok(fde_type)
    }

    fn encode_rows_as(&mut self, rows: &[Row], fde_type: FdeType) -> Result<(), Reason> {
        self.rows.clear();
        let mut before: Option<Option<Rule>> = None;
        for row in rows {
            if before == Some(row.rule) {
                continue;
            }
            before = Some(row.rule);
            let (words, base_sp) = match &row.rule {
                None if self.context.version == Version::V1 => return Err(Reason::Outermost),
                None => (WordList::new(), false),
                Some(rule) => match fde_type {
                    FdeType::Default => default::encode(&self.context, rule)?,
                    FdeType::Flex => (flex::encode(&self.context, rule)?, false),
                },
            };
            self.rows.push(EncodedRow {
                start: row.start,
                base_sp,
                mangled_ra: row.rule.is_some_and(|rule| rule.mangled_ra),
                words,
            });
        }
        Ok(())
    }
}

fn push_row(sink: &mut Sink, fre_type: FreType, row: &EncodedRow) {
    match fre_type {
        FreType::Addr1 => sink.u8(row.start as u8),
        FreType::Addr2 => sink.u16(row.start as u16),
        FreType::Addr4 => sink.u32(row.start),
    }
    let size: WordSize = row.words.size();
    sink.u8(FreInfo::new(row.base_sp, row.words.len(), size, row.mangled_ra).0);
    row.words.write(sink);
}
