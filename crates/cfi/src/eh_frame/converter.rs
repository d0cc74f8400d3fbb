//! Converts FDEs to rows, one after the other.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_elf::budget::{Budget, Steps};
use gimli::{BaseAddresses, CommonInformationEntry, FrameDescriptionEntry, UnwindContext, UnwindSection};

use super::converted::Converted;
use super::pieces::{Collector, Origin};
use super::reason::Reason;
use super::rule::Rules;
use super::section::{MAX_CIE_BYTES, Storage};
use crate::reader::Slice;

/// About what a row takes until the table is written.
const BYTES_OF_A_ROW: usize = 32;

type Cie<'a> = CommonInformationEntry<Slice<'a>>;

/// A section whose FDEs are converted.
pub(crate) struct Prepared<'a> {
    /// The section without augmentation letters that its reader does not know.
    pub(crate) section: gimli::EhFrame<Slice<'a>>,
    /// Offsets of the CIEs whose return addresses are signed with key B.
    pub(crate) key_b: &'a HashSet<usize>,
    pub(crate) bases: BaseAddresses,
    /// [`EhFrame::code`].
    pub(crate) code: &'a [Range<u64>],
    pub(crate) arch: &'static Arch,
    pub(crate) budget: &'a Budget,
}

impl Prepared<'_> {
    /// Converts the FDE at `offset`, as if there were no other.
    pub(crate) fn one(&self, offset: usize) -> Converted {
        Converter::new(self).convert(&[offset]).settle().with_damage(None)
    }
}

pub(super) struct Converter<'a> {
    prepared: &'a Prepared<'a>,
    /// Whether there are ranges of code, and they are in order.
    code_in_order: bool,
    context: UnwindContext<usize, Storage>,
    /// By offset; `None` for an invalid CIE.
    cies: HashMap<usize, Option<Cie<'a>>>,
    rules: Rules,
    collector: Collector,
}

impl<'a> Converter<'a> {
    pub(super) fn new(prepared: &'a Prepared<'a>) -> Converter<'a> {
        let code = prepared.code;
        Converter {
            prepared,
            code_in_order: !code.is_empty() && code.is_sorted_by(|one, next| one.end <= next.start),
            context: UnwindContext::new_in(),
            cies: HashMap::new(),
            rules: Rules::new(prepared.arch),
            collector: Collector::default(),
        }
    }

    /// Converts the FDEs at these offsets.
    pub(super) fn convert(mut self, offsets: &[usize]) -> Collector {
        let mut steps = self.prepared.budget.steps();
        for &offset in offsets {
            if steps.step(0).is_err() {
                break;
            }
            self.fde(offset, &mut steps);
        }
        self.collector.end();
        self.collector
    }

    fn fde(&mut self, offset: usize, steps: &mut Steps<'_>) {
        let cies = &mut self.cies;
        let parsed =
            self.prepared
                .section
                .fde_from_offset(&self.prepared.bases, offset.into(), |section, bases, cie| {
                    let known = cies.entry(cie.0).or_insert_with(|| {
                        let parsed = section.cie_from_offset(bases, cie).ok();
                        parsed.filter(|cie| cie.entry_len() <= MAX_CIE_BYTES)
                    });
                    known.clone().ok_or(gimli::Error::NotCieId(cie.0 as u64))
                });
        let Ok(fde) = parsed else {
            self.collector.skip_fde(0, Reason::Damaged);
            return;
        };
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()) else {
            self.collector.skip_fde(start, Reason::OutsideCode);
            return;
        };
        let reason = if fde.len() == 0 {
            Some(Reason::Empty)
        } else if !self.is_code(start, end) {
            Some(Reason::OutsideCode)
        } else if fde.len() > u64::from(u32::MAX) {
            Some(Reason::TooLarge)
        } else {
            None
        };
        if let Some(reason @ (Reason::Empty | Reason::OutsideCode)) = reason {
            self.collector.skip_fde(start, reason);
            return;
        }
        self.collector.begin(Origin {
            start,
            end,
            signal_frame: fde.is_signal_trampoline(),
            pauth_key_b: self.prepared.key_b.contains(&fde.cie().offset()),
        });
        match reason {
            Some(reason) => self.collector.skip(start, end, reason),
            None => self.rows(&fde, start, end, steps),
        }
    }

    fn rows(&mut self, fde: &FrameDescriptionEntry<Slice<'_>>, start: u64, end: u64, steps: &mut Steps<'_>) {
        let column = fde.cie().return_address_register();
        let mut reached = start;
        let Ok(mut table) = fde.rows(&self.prepared.section, &self.prepared.bases, &mut self.context) else {
            self.collector.skip(start, end, Reason::Damaged);
            return;
        };
        loop {
            match table.next_row() {
                Ok(Some(_)) if steps.step(BYTES_OF_A_ROW).is_err() => {
                    self.collector.skip(reached, end, Reason::Damaged);
                    break;
                }
                Ok(Some(row)) => {
                    let row_end = row.end_address().min(end);
                    if row_end > reached {
                        let verdict = self.rules.verdict(&self.prepared.section, row, column);
                        self.collector.add(reached, row_end, verdict);
                        reached = row_end;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.collector.skip(reached, end, Reason::of(error));
                    break;
                }
            }
        }
        self.collector.end();
    }

    fn is_code(&self, start: u64, end: u64) -> bool {
        let code = self.prepared.code;
        let holds = |range: &Range<u64>| range.start <= start && end <= range.end;
        // Object files may have a section for each function, in order.
        if self.code_in_order {
            let after = code.partition_point(|range| range.start <= start);
            return code[..after].last().is_some_and(holds);
        }
        code.is_empty() || code.iter().any(holds)
    }
}
