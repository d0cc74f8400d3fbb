//! Functions (section 1.3).

use backtrail_wire::Bytes;

use super::Section;
use crate::constants::{Abi, FdeType, FreType};
use crate::error::Result;
use crate::layout::{Context, RawFde, fde_size, padding, read_fde};
use crate::row::Function;

/// A function descriptor entry: the properties of a function, and access to its rows.
#[derive(Clone, Copy, Debug)]
pub struct Fde<'a> {
    pub(super) context: Context,
    pub(super) raw: RawFde,
    pub(super) fres: Bytes<'a>,
    at: usize,
    start: u64,
}

impl<'a> Fde<'a> {
    /// The function.
    #[inline]
    pub fn function(&self) -> Function {
        Function {
            start: self.start,
            size: self.raw.size,
            rows: self.raw.num_fres,
            repeat: self.raw.info.pcmask().then_some(self.raw.rep_size),
            signal_frame: self.signal_frame(),
            pauth_key_b: self.pauth_key_b(),
        }
    }

    /// Whether the rows are of the FLEX type (version 3).
    pub fn is_flex(&self) -> bool {
        self.raw.fde_type == FdeType::Flex
    }

    /// The width of the rows' start offsets.
    pub fn fre_type(&self) -> FreType {
        self.raw.fre_type
    }

    /// Offset of its entry in the FDE table, in bytes from the section's start.
    pub fn offset(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn raw(&self) -> &RawFde {
        &self.raw
    }

    #[inline]
    fn signal_frame(&self) -> bool {
        // Versions 1 and 2 leave the bit unused.
        self.context.version == crate::Version::V3 && self.raw.info.signal()
    }

    #[inline]
    fn pauth_key_b(&self) -> bool {
        // Other CPUs leave the bit unused.
        matches!(self.context.abi, Abi::Aarch64Big | Abi::Aarch64Little) && self.raw.info.pauth_key_b()
    }

    #[inline]
    pub(crate) fn fde_type(&self) -> FdeType {
        self.raw.fde_type
    }

    /// Whether this marks the outermost frame: in version 3, a DEFAULT FDE without rows does.
    #[inline]
    pub(crate) fn is_outermost(&self) -> bool {
        self.context.version == crate::Version::V3 && self.raw.fde_type == FdeType::Default && self.raw.num_fres == 0
    }
}

/// The functions of a section, in the order of the table.
#[derive(Clone, Debug)]
pub struct Functions<'a> {
    section: Section<'a>,
    next: u32,
}

impl<'a> Iterator for Functions<'a> {
    type Item = Result<Fde<'a>>;

    #[expect(clippy::arithmetic_side_effects, reason = "it is below the number of functions")]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.section.held_fdes {
            return None;
        }
        let fde = self.section.fde(self.next);
        self.next += 1;
        Some(fde)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The header check ensures that the table holds that many, so the data bounds this.
        let left = self.section.held_fdes.saturating_sub(self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Functions<'_> {}

impl<'a> Section<'a> {
    /// The functions in the order of the table. An FDE that can't be read yields an error, and the
    /// iteration continues.
    pub fn functions(&self) -> Functions<'a> {
        Functions {
            section: *self,
            next: 0,
        }
    }

    /// See [`padding`].
    pub(crate) fn fde_padding(&self, fde: &Fde<'_>) -> u16 {
        padding(self.context.version, self.fdes, fde.offset())
    }

    /// Start of the function at `index`, in bytes from the section's start; reads nothing else of
    /// its FDE.
    pub(super) fn start(&self, index: u32) -> Option<i64> {
        let version = self.context.version;
        let at = self
            .fdes_start
            .saturating_add((index as usize).saturating_mul(fde_size(version)));
        let start = match version {
            crate::Version::V1 | crate::Version::V2 => self.fdes.i32(at).ok()?.into(),
            crate::Version::V3 => self.fdes.i64(at).ok()?,
        };
        let field = if self.pcrel { at as i64 } else { 0 };
        Some(start.wrapping_add(field))
    }

    /// The FDE at `index`; an error past the table's end.
    // Always inlined: a copy through memory, read in other pieces than it was written in, takes as
    // long as a cache miss.
    #[inline(always)]
    pub fn fde(&self, index: u32) -> Result<Fde<'a>> {
        let version = self.context.version;
        let at = self
            .fdes_start
            .saturating_add((index as usize).saturating_mul(fde_size(version)));
        if at >= self.fdes.len() {
            // This read must fail; its error has the offset.
            self.fdes.u8(at)?;
        }
        let raw = read_fde(version, self.fdes, at, self.fres, self.fres_start)?;
        let field = if self.pcrel { at as u64 } else { 0 };
        Ok(Fde {
            context: self.context,
            raw,
            fres: self.fres,
            at,
            start: self.address.wrapping_add(field).wrapping_add(raw.start as u64),
        })
    }
}
