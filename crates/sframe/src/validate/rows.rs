//! Validating rows.

use super::{Field, Finding, FindingKind, Flow, GO_ON, Path, Validator};
use crate::constants::{Abi, FdeType, FlexControl, Version};
use crate::read::{Fde, RawRow};
use crate::row::{Base, Location};

impl<'a> Validator<'a, '_, '_> {
    /// Checks all rows of a function, up to the first that can't be read: only a row determines
    /// where the next one begins.
    pub(super) fn rows(&mut self, index: u32, fde: &Fde<'a>) -> Flow {
        let mut rows = fde.raw_rows();
        let mut before = None;
        for number in 0.. {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(error) => return (self.report)(Finding::of_row(index, number, error)),
            };
            self.start(index, number, fde, &row, before)?;
            self.words(index, number, fde, &row)?;
            before = Some(row.start);
        }
        GO_ON
    }

    fn start(&mut self, index: u32, number: u32, fde: &Fde<'a>, row: &RawRow, before: Option<u32>) -> Flow {
        let path = Path::row(index, number, Some(Field::RowStart));
        let start = row.start;
        if before.is_some_and(|before| start <= before) {
            self.found(path, FindingKind::RowOrder(start), row.at)?;
        }
        let size = match fde.function().repeat {
            Some(block) => block.into(),
            None => fde.raw().size,
        };
        // Even a function without code has a first row.
        if start >= size && start != 0 {
            self.found(path, FindingKind::RowRange { start, size }, row.at)?;
        }
        GO_ON
    }

    fn words(&mut self, index: u32, number: u32, fde: &Fde<'a>, row: &RawRow) -> Flow {
        let info = Path::row(index, number, Some(Field::RowInfo));
        let info_at = row.at.saturating_add(fde.fre_type().bytes());
        let aarch64 = matches!(self.section.abi(), Abi::Aarch64Big | Abi::Aarch64Little);
        if row.info.mangled_ra() && !aarch64 {
            self.found(info, FindingKind::UnusedBits(0x80), info_at)?;
        }
        let count = row.info.count();
        let right = match fde.fde_type() {
            FdeType::Default => self.default_count(count),
            FdeType::Flex => self.flex_controls(index, number, fde, row)?,
        };
        if !right {
            return self.found(info, FindingKind::WordCount(count as u8), info_at);
        }
        let rule = match fde.decode(row) {
            Ok(row) => row.rule,
            Err(error) => return (self.report)(Finding::of_row(index, number, error)),
        };
        let at_cfa = |location: Location| location.base == Base::Cfa && location.deref && location.offset == 0;
        let saved_at_cfa = rule.is_some_and(|rule| at_cfa(rule.ra) || rule.fp.is_some_and(at_cfa));
        if saved_at_cfa {
            self.found(Path::row(index, number, None), FindingKind::SavedAtCfa, row.at)?;
        }
        GO_ON
    }

    /// Whether a DEFAULT row may have this many words: one for the CFA, and one for each of RA and
    /// FP without a fixed offset.
    fn default_count(&self, count: usize) -> bool {
        match self.section.abi() {
            // The outermost frame, since the errata of version 2.
            _ if count == 0 => self.section.version() != Version::V1,
            Abi::Amd64Little => count <= 2,
            Abi::Aarch64Big | Abi::Aarch64Little | Abi::S390xBig => count <= 3,
        }
    }

    /// Whether CFA, RA and FP use up the words of a FLEX row. Reports unused bits in control words.
    #[expect(clippy::arithmetic_side_effects, reason = "a row has at most 15 words")]
    fn flex_controls(
        &mut self,
        index: u32,
        number: u32,
        fde: &Fde<'a>,
        row: &RawRow,
    ) -> core::ops::ControlFlow<(), bool> {
        const UNUSED: u32 = 1 << 2;
        const PLACES: usize = 3;
        let words = fde.words(row);
        let mut next = 0;
        for _ in 0..PLACES {
            if next >= words.len() {
                break;
            }
            let control = match words.unsigned(next) {
                Ok(control) => FlexControl(control),
                Err(error) => {
                    (self.report)(Finding::of_row(index, number, error))?;
                    break;
                }
            };
            // Without a register, its number is unused. The CFA's own value is not a location.
            let unused = match control.register() {
                Some(_) => control.0 & UNUSED,
                None => control.0 & !FlexControl::new(None, true).0,
            };
            if unused != 0 {
                let path = Path::row(index, number, Some(Field::Offset(next as u8)));
                self.found(path, FindingKind::Control(control.0), words.offset(next))?;
            }
            next += if control == FlexControl::PADDING { 1 } else { 2 };
        }
        // False if words follow the last offset. A missing offset can't be read and is reported
        // elsewhere.
        core::ops::ControlFlow::Continue(next >= words.len())
    }
}
