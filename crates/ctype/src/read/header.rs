//! The preamble and the header ("CTF Preamble", "CTF file header").

use std::ops::Range;

use backtrail_wire::{Bytes, Endian};

use super::endian_of;
use crate::constants::{Flags, Version};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;

/// A decoded dict header. Names are references into the string tables; all ranges are relative to
/// the header's end.
#[derive(Clone, Debug)]
pub struct Header {
    /// The byte order of all numbers.
    pub endian: Endian,
    /// `ctp_version`
    pub version: Version,
    /// `ctp_flags`
    pub flags: Flags,
    /// `cth_parlabel`: the label in the parent up to which this dict uses it.
    pub parent_label: u32,
    /// `cth_parname`: the name of the parent; 0 if there is no parent.
    pub parent_name: u32,
    /// `cth_cuname`: the name of the unit.
    pub cu_name: u32,
    /// Labels.
    pub labels: Range<u32>,
    /// Types of data objects.
    pub objects: Range<u32>,
    /// Types of functions.
    pub functions: Range<u32>,
    /// Names of the data objects.
    pub object_index: Range<u32>,
    /// Names of the functions.
    pub function_index: Range<u32>,
    /// Variables.
    pub variables: Range<u32>,
    /// Types.
    pub types: Range<u32>,
    /// The string table.
    pub strings: Range<u32>,
}

impl Header {
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the header was read; pairs of neighbours"
    )]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Header> {
        let endian = endian_of(bytes)?;
        let bytes = Bytes::new(bytes, endian);
        let number = bytes.u8(2)?;
        let version = Version::from_number(number).ok_or(Error::new(ErrorKind::Version(number), 2))?;
        let flags = bytes.u8(3)?;
        if flags > Flags::MAX {
            return Err(Error::new(ErrorKind::Flags(flags), 3));
        }
        let mut words = bytes.cursor(4);
        let (parent_label, parent_name) = (words.u32()?, words.u32()?);
        let has_indexes = version == Version::V3;
        let cu_name = if has_indexes { words.u32()? } else { 0 };
        let first = words.offset();
        let mut parts = [0; 9];
        for (number, part) in parts.iter_mut().enumerate() {
            // Without indexes, both of them are empty and located before the variables.
            *part = match number {
                3 | 4 if !has_indexes => bytes.u32(first + 12)?,
                _ => words.u32()?,
            };
        }
        let [
            labels,
            objects,
            functions,
            oindex,
            findex,
            variables,
            types,
            strings,
            len,
        ] = parts;
        let end = strings
            .checked_add(len)
            .ok_or(Error::new(ErrorKind::PartLength(len), words.offset() - 4))?;
        let bounds = [
            labels, objects, functions, oindex, findex, variables, types, strings, end,
        ];
        for pair in bounds.windows(2) {
            if pair[0] > pair[1] {
                return Err(Error::new(ErrorKind::PartOffset(pair[0]), first));
            }
        }
        let header = Header {
            endian,
            version,
            flags: Flags(flags),
            parent_label,
            parent_name,
            cu_name,
            labels: labels..objects,
            objects: objects..functions,
            functions: functions..oindex,
            object_index: oindex..findex,
            function_index: findex..variables,
            variables: variables..types,
            types: types..strings,
            strings: strings..end,
        };
        header.check_lengths(first)?;
        Ok(header)
    }

    /// Checks that tables have only whole entries, and an index as many as its table.
    fn check_lengths(&self, at: usize) -> Result<()> {
        let word = self.layout().word as u32;
        let tables = [
            (&self.labels, 8),
            (&self.objects, word),
            (&self.object_index, 4),
            (&self.function_index, 4),
            (&self.variables, 8),
        ];
        let broken = tables
            .iter()
            .find(|(table, entry)| !length(table).is_multiple_of(*entry));
        if let Some((table, _)) = broken {
            return Err(Error::new(ErrorKind::PartLength(length(table)), at));
        }
        for (index, table) in [
            (&self.object_index, &self.objects),
            (&self.function_index, &self.functions),
        ] {
            if !index.is_empty() && length(index) != length(table) {
                return Err(Error::new(ErrorKind::PartLength(length(index)), at));
            }
        }
        Ok(())
    }

    pub(crate) fn layout(&self) -> &'static Layout {
        Layout::of(self.version)
    }

    /// The size of the header itself in bytes.
    pub fn size(&self) -> usize {
        self.layout().header
    }

    /// The size of everything after the header in bytes, inflated.
    pub fn body_size(&self) -> usize {
        self.strings.end as usize
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "`parse` found the parts in order")]
fn length(range: &Range<u32>) -> u32 {
    range.end - range.start
}
