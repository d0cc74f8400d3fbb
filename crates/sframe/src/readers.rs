//! What other readers of SFrame refuse, as rules of their sources.
//!
//! A section that follows the specification may still be of no use to a program that reads it: each
//! knows some versions only, and relies on more than the text demands. Only what a reader's source
//! says is here; what differs between its revisions, or depends on the running program, is left
//! out: see [`Reader`].

mod set;

use core::fmt;
use core::ops::ControlFlow;

use crate::constants::{FdeType, Flags, Version};
use crate::error::ErrorKind;
use crate::layout::fde_size;
use crate::read::{Fde, Section};

pub use set::Readers;

/// A program or library that reads SFrame sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reader {
    /// Linux, the patches of January 2026 (`kernel/unwind/sframe.c`), for programs.
    ///
    /// Left out: whether functions are in the mapped code, rows of the FLEX type and AArch64 rows
    /// without a return address, which some revisions refuse; and the later patch that reads
    /// unsorted tables of kernel modules.
    Kernel,
    /// `backtrace` of glibc 2.42 (`sframe-read.c` and `sframe.c`).
    ///
    /// What it refuses, it leaves to its unwinder for `.eh_frame`.
    Glibc2_42,
    /// libsframe of binutils 2.47 (`sframe_decode`, and `sframe_find_fre` for look-up).
    ///
    /// Its linker and readelf do not look up. Left out: rows, which only assertions check.
    Binutils2_47,
}

impl Reader {
    /// All readers.
    pub const ALL: [Reader; 3] = [Reader::Kernel, Reader::Glibc2_42, Reader::Binutils2_47];

    /// A short name.
    pub const fn name(self) -> &'static str {
        match self {
            Reader::Kernel => "kernel",
            Reader::Glibc2_42 => "glibc-2.42",
            Reader::Binutils2_47 => "binutils-2.47",
        }
    }

    /// The reader with this name.
    pub fn from_name(name: &str) -> Option<Reader> {
        Reader::ALL.into_iter().find(|reader| reader.name() == name)
    }

    /// Whether it reads this version.
    pub const fn reads(self, version: Version) -> bool {
        match self {
            Reader::Kernel => matches!(version, Version::V3),
            Reader::Glibc2_42 => matches!(version, Version::V2),
            // The header check lets version 1 pass, but no code reads its FDEs.
            Reader::Binutils2_47 => matches!(version, Version::V2 | Version::V3),
        }
    }

    /// Reports everything in a section that this reader refuses; [`ControlFlow::Break`] ends the
    /// search.
    ///
    /// Of a version that it does not read, nothing else is reported; of a function's rows, the
    /// first that it refuses, because it does not get past that. The time depends on the number of
    /// rows, the memory is constant. Never panics.
    pub fn refusals(self, section: &Section<'_>, report: &mut dyn FnMut(Refusal) -> ControlFlow<()>) {
        let search = Search { reader: self, section };
        // A caller that ended the search knows that it did.
        let _ = search.run(report);
    }
}

/// Something that a reader refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Refusal {
    /// Who refuses it.
    pub reader: Reader,
    /// What it is.
    pub what: Refused,
    /// Offset in bytes from the section's start.
    pub offset: u64,
    /// The start of the function that the reader can't look up; `None` if that is the whole
    /// section.
    pub function: Option<u64>,
}

/// What a reader refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// It does not read this version.
    Version(Version),
    /// It does not know these flags.
    Flags(u8),
    /// It looks up only in tables that are flagged as sorted.
    NotFlaggedAsSorted,
    /// It takes starts as relative to their fields; here they count from the section's start.
    NotRelativeToField,
    /// It allows no auxiliary header; here one has this many bytes.
    AuxiliaryHeader(u8),
    /// The section has no functions or no rows.
    Empty,
    /// The FDE sub-section comes after the FRE sub-section.
    SubSectionOrder,
    /// The sub-sections overlap or extend past the data.
    SubSections,
    /// It expects the FDE table right after the header, and does not use its offset.
    FdeOffset(u32),
    /// It expects the rows right after the FDE table, and does not use their offset.
    FreOffset(u32),
    /// Its binary search needs ascending starts, but the function starts before its predecessor.
    FunctionOrder,
    /// Its rows can't be read.
    Unreadable(ErrorKind),
    /// The row does not start after the one before it.
    RowOrder(u32),
    /// The row starts after the function's end.
    RowRange(u32),
    /// The row has this number of words, more than it allows.
    TooManyWords(u8),
    /// The row has no words, and marks the outermost frame.
    Outermost,
    /// The row says nothing of the return address, which is still in its register.
    NoReturnAddress,
}

impl Refused {
    /// A short name, without its numbers.
    pub const fn name(&self) -> &'static str {
        match self {
            Refused::Version(_) => "version",
            Refused::Flags(_) => "flags",
            Refused::NotFlaggedAsSorted => "not_sorted",
            Refused::NotRelativeToField => "not_relative",
            Refused::AuxiliaryHeader(_) => "auxiliary_header",
            Refused::Empty => "empty",
            Refused::SubSectionOrder => "sub_section_order",
            Refused::SubSections => "sub_sections",
            Refused::FdeOffset(_) => "fde_offset",
            Refused::FreOffset(_) => "fre_offset",
            Refused::FunctionOrder => "function_order",
            Refused::Unreadable(_) => "unreadable",
            Refused::RowOrder(_) => "row_order",
            Refused::RowRange(_) => "row_range",
            Refused::TooManyWords(_) => "too_many_words",
            Refused::Outermost => "outermost",
            Refused::NoReturnAddress => "no_return_address",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refused::Version(version) => write!(f, "version {}", version as u8),
            Refused::Flags(bits) => write!(f, "flags {bits:#x}"),
            Refused::NotFlaggedAsSorted => write!(f, "functions are not flagged as sorted"),
            Refused::NotRelativeToField => write!(f, "starts are not relative to their fields"),
            Refused::AuxiliaryHeader(len) => write!(f, "auxiliary header of {len} bytes"),
            Refused::Empty => write!(f, "nothing in the table"),
            Refused::SubSectionOrder => write!(f, "FDE sub-section after the FRE sub-section"),
            Refused::SubSections => write!(f, "sub-sections overlap or extend past the section"),
            Refused::FdeOffset(offset) => write!(f, "FDE table {offset:#x} bytes after the header"),
            Refused::FreOffset(offset) => {
                write!(f, "rows {offset:#x} bytes after the header, not after the FDE table")
            }
            Refused::FunctionOrder => write!(f, "function starts before the one before it"),
            Refused::Unreadable(kind) => write!(f, "{kind}"),
            Refused::RowOrder(start) => write!(f, "row starts at {start:#x}, not after the one before it"),
            Refused::RowRange(start) => write!(f, "row starts at {start:#x}, after the function's end"),
            Refused::TooManyWords(count) => write!(f, "row of {count} words"),
            Refused::Outermost => write!(f, "row that marks the outermost frame"),
            Refused::NoReturnAddress => write!(f, "row without a return address"),
        }
    }
}

type Flow = ControlFlow<()>;
type Report<'r> = dyn FnMut(Refusal) -> Flow + 'r;
const GO_ON: Flow = ControlFlow::Continue(());

/// Offsets of fields in the header.
const VERSION: usize = 2;
const FLAGS: usize = 3;
const AUXHDR_LEN: usize = 7;
const NUM_FDES: usize = 8;
const NUM_FRES: usize = 12;
const FRE_LEN: usize = 16;
const FDEOFF: usize = 20;
const FREOFF: usize = 24;

struct Search<'s, 'a> {
    reader: Reader,
    section: &'s Section<'a>,
}

impl<'a> Search<'_, 'a> {
    fn run(&self, report: &mut Report<'_>) -> Flow {
        let version = self.section.version();
        if !self.reader.reads(version) {
            return self.whole(Refused::Version(version), VERSION, report);
        }
        self.flags(report)?;
        self.header(report)?;
        self.functions(report)
    }

    fn flags(&self, report: &mut Report<'_>) -> Flow {
        let flags = self.section.flags();
        let unknown = flags.0 & !Flags::known(self.section.version()).0;
        // The kernel only looks at the two flags that it needs.
        if unknown != 0 && self.reader != Reader::Kernel {
            self.whole(Refused::Flags(unknown), FLAGS, report)?;
        }
        if !flags.contains(Flags::FDE_SORTED) {
            self.whole(Refused::NotFlaggedAsSorted, FLAGS, report)?;
        }
        let relative = match self.reader {
            Reader::Kernel => flags.contains(Flags::FDE_FUNC_START_PCREL),
            Reader::Glibc2_42 => true, // It reads both kinds.
            // It takes them as relative without looking at the flag.
            Reader::Binutils2_47 => self.section.has_relative_starts(),
        };
        if !relative {
            self.whole(Refused::NotRelativeToField, FLAGS, report)?;
        }
        GO_ON
    }

    fn header(&self, report: &mut Report<'_>) -> Flow {
        let section = self.section;
        let Ok([fre_len, fdeoff, freoff]) = section.layout() else {
            return GO_ON;
        };
        let table = u64::from(section.num_fdes()).saturating_mul(fde_size(section.version()) as u64);
        let table_end = u64::from(fdeoff).saturating_add(table);
        match self.reader {
            Reader::Kernel => {
                let auxiliary = section.auxiliary_header_len();
                if auxiliary != 0 {
                    self.whole(Refused::AuxiliaryHeader(auxiliary), AUXHDR_LEN, report)?;
                }
                if section.num_fdes() == 0 {
                    self.whole(Refused::Empty, NUM_FDES, report)?;
                }
                if section.num_fres() == 0 {
                    self.whole(Refused::Empty, NUM_FRES, report)?;
                }
                if u64::from(freoff) < table_end {
                    self.whole(Refused::SubSections, FREOFF, report)?;
                }
                if section.is_cut_off(fre_len, freoff) {
                    self.whole(Refused::SubSections, FRE_LEN, report)?;
                }
            }
            Reader::Glibc2_42 | Reader::Binutils2_47 => {
                if fdeoff > freoff {
                    self.whole(Refused::SubSectionOrder, FDEOFF, report)?;
                }
                if fdeoff != 0 {
                    self.whole(Refused::FdeOffset(fdeoff), FDEOFF, report)?;
                }
                if self.reader == Reader::Glibc2_42 && u64::from(freoff) != table {
                    self.whole(Refused::FreOffset(freoff), FREOFF, report)?;
                }
            }
        }
        GO_ON
    }

    fn functions(&self, report: &mut Report<'_>) -> Flow {
        let sorted = self.section.flags().contains(Flags::FDE_SORTED);
        let mut before = i64::MIN;
        for fde in self.section.functions() {
            let fde = match fde {
                Ok(fde) => fde,
                Err(error) => {
                    if self.unreadable(error.kind) {
                        report(Refusal {
                            reader: self.reader,
                            what: Refused::Unreadable(error.kind),
                            offset: error.offset,
                            function: None,
                        })?;
                    }
                    continue;
                }
            };
            // Compared as look-up does, even if the address space wraps around.
            let start = fde.function().start.wrapping_sub(self.section.address()) as i64;
            if sorted && start < before {
                self.of(&fde, Refused::FunctionOrder, fde.offset(), report)?;
            }
            before = start;
            self.rows(&fde, report)?;
        }
        GO_ON
    }

    /// Reports the first row that the reader refuses.
    fn rows(&self, fde: &Fde<'a>, report: &mut Report<'_>) -> Flow {
        if self.reader == Reader::Binutils2_47 {
            return GO_ON;
        }
        let mut rows = fde.raw_rows();
        let mut before = None;
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => return GO_ON,
                Err(error) if self.unreadable(error.kind) => {
                    return report(Refusal {
                        reader: self.reader,
                        what: Refused::Unreadable(error.kind),
                        offset: error.offset,
                        function: Some(fde.function().start),
                    });
                }
                Err(_) => return GO_ON,
            };
            let what = match self.reader {
                Reader::Kernel => self.kernel_row(fde, row.start, row.info.count(), before),
                _ => self.glibc_row(row.info.count()),
            };
            if let Some(what) = what {
                return self.of(fde, what, row.at, report);
            }
            before = Some(row.start);
        }
    }

    fn kernel_row(&self, fde: &Fde<'_>, start: u32, count: usize, before: Option<u32>) -> Option<Refused> {
        if before.is_some_and(|before| start <= before) {
            return Some(Refused::RowOrder(start));
        }
        if fde.function().repeat.is_none() && start > fde.function().size {
            return Some(Refused::RowRange(start));
        }
        // A word for the CFA, and one for each of RA and FP without a fixed offset.
        let fixed = [self.section.fixed_ra_offset(), self.section.fixed_fp_offset()];
        let most = fixed
            .into_iter()
            .fold(1usize, |words, offset| words.saturating_add(usize::from(offset == 0)));
        (fde.fde_type() == FdeType::Default && count > most).then_some(Refused::TooManyWords(count as u8))
    }

    fn glibc_row(&self, count: usize) -> Option<Refused> {
        match count {
            0 => Some(Refused::Outermost),
            1 if self.section.fixed_ra_offset() == 0 => Some(Refused::NoReturnAddress),
            1..=3 => None,
            _ => Some(Refused::TooManyWords(count as u8)),
        }
    }

    /// Whether the reader, too, refuses what this library can't read. glibc and libsframe do not
    /// look whether the data has ended.
    fn unreadable(&self, kind: ErrorKind) -> bool {
        match kind {
            ErrorKind::Truncated { .. } => self.reader == Reader::Kernel,
            ErrorKind::FreType(_) | ErrorKind::WordSize(_) => self.reader != Reader::Binutils2_47,
            _ => false,
        }
    }

    fn whole(&self, what: Refused, offset: usize, report: &mut Report<'_>) -> Flow {
        report(Refusal {
            reader: self.reader,
            what,
            offset: offset as u64,
            function: None,
        })
    }

    fn of(&self, fde: &Fde<'_>, what: Refused, offset: usize, report: &mut Report<'_>) -> Flow {
        report(Refusal {
            reader: self.reader,
            what,
            offset: offset as u64,
            function: Some(fde.function().start),
        })
    }
}
