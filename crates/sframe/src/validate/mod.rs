//! Validating a section: everything that is wrong with it, with the path to each fault.
//!
//! A reader accepts everything it can use; the validator demands everything that the specification
//! requires and look-up relies on. It reports findings one by one and stores none, so its memory
//! does not depend on the input.

mod finding;
mod rows;

use core::ops::ControlFlow;

use crate::constants::{Abi, FdeType, Flags, Version};
use crate::error::Error;
use crate::layout::fde_size;
use crate::read::{Fde, Section};

pub use finding::{Field, Finding, FindingKind, Path};

/// The callback that receives the findings; [`ControlFlow::Break`] ends the search.
pub type Report<'r> = dyn FnMut(Finding) -> ControlFlow<()> + 'r;

/// Reports every violation of the specification's requirements for a linked section.
///
/// The order is header, functions, rows; `address` is the section's address. The time depends on
/// the number of rows of all functions, the memory is constant. Never panics.
pub fn validate(bytes: &[u8], address: u64, report: &mut Report<'_>) {
    // A caller that ended the search knows that it did.
    let _ = match Section::parse_lenient(bytes, address) {
        Ok((section, missing)) => Validator { section, report }.run(missing),
        Err(error) => report(error.into()),
    };
}

impl<'a> Section<'a> {
    /// Reads the whole section, and rejects it if [`validate`] reports anything.
    ///
    /// The time depends on the number of rows. Fails with the first finding.
    pub fn parse_strict(bytes: &'a [u8], address: u64) -> Result<Section<'a>, Finding> {
        let mut first = None;
        validate(bytes, address, &mut |finding| {
            first = Some(finding);
            ControlFlow::Break(())
        });
        match first {
            Some(finding) => Err(finding),
            None => Section::parse(bytes, address).map_err(Finding::from),
        }
    }
}

struct Validator<'a, 'r, 'f> {
    section: Section<'a>,
    report: &'r mut Report<'f>,
}

type Flow = ControlFlow<()>;
const GO_ON: Flow = ControlFlow::Continue(());

impl<'a> Validator<'a, '_, '_> {
    fn run(&mut self, missing: Option<Error>) -> Flow {
        if let Some(missing) = missing {
            (self.report)(missing.into())?;
        }
        self.header()?;
        self.sub_sections()?;
        let mut before = None;
        let mut rows = 0u64;
        for (index, fde) in (0..).zip(self.section.functions()) {
            let fde = match fde {
                Ok(fde) => fde,
                Err(error) => {
                    (self.report)(Finding::of_fde(index, error))?;
                    continue;
                }
            };
            self.place(index, &fde, &mut before)?;
            self.function(index, &fde)?;
            rows = rows.saturating_add(fde.raw().num_fres.into());
            self.rows(index, &fde)?;
        }
        if rows != u64::from(self.section.num_fres()) {
            self.found(Path::header(Field::NumFres), FindingKind::RowSum(rows), 12)?;
        }
        GO_ON
    }

    fn header(&mut self) -> Flow {
        let section = self.section;
        let (version, abi, flags) = (section.version(), section.abi(), section.flags());
        let unknown = flags.0 & !Flags::known(version).0;
        if unknown != 0 {
            self.found(Path::header(Field::Flags), FindingKind::UnknownFlags(unknown), 3)?;
        }
        if !flags.contains(Flags::FDE_SORTED) {
            self.found(Path::header(Field::Flags), FindingKind::NotFlaggedAsSorted, 3)?;
        }
        if abi.endian() != section.endian() {
            self.found(Path::header(Field::AbiArch), FindingKind::AbiByteOrder, 4)?;
        }
        if abi == Abi::S390xBig && version == Version::V1 {
            self.found(Path::header(Field::AbiArch), FindingKind::AbiOfVersion(version), 4)?;
        }
        let (fp, ra) = (section.fixed_fp_offset(), section.fixed_ra_offset());
        if fp != 0 {
            self.found(Path::header(Field::CfaFixedFpOffset), FindingKind::FixedOffset(fp), 5)?;
        }
        if ra != abi.fixed_ra_offset() {
            self.found(Path::header(Field::CfaFixedRaOffset), FindingKind::FixedOffset(ra), 6)?;
        }
        let auxiliary = section.auxiliary_header_len();
        if auxiliary != 0 {
            let kind = FindingKind::AuxiliaryHeader(auxiliary);
            self.found(Path::header(Field::AuxhdrLen), kind, 7)?;
        }
        if section.num_fdes() == 0 {
            self.found(Path::header(Field::NumFdes), FindingKind::Empty, 8)?;
        }
        if section.num_fres() == 0 {
            self.found(Path::header(Field::NumFres), FindingKind::Empty, 12)?;
        }
        GO_ON
    }

    fn sub_sections(&mut self) -> Flow {
        let Ok([_, fdeoff, freoff]) = self.section.layout() else {
            return GO_ON;
        };
        if fdeoff > freoff {
            return self.found(Path::header(Field::Fdeoff), FindingKind::SubSectionOrder, 20);
        }
        let table = u64::from(self.section.num_fdes()).saturating_mul(fde_size(self.section.version()) as u64);
        let inside = u64::from(fdeoff).saturating_add(table).saturating_sub(freoff.into());
        if inside > 0 {
            self.found(Path::header(Field::Freoff), FindingKind::SubSectionOverlap(inside), 24)?;
        }
        GO_ON
    }

    /// Checks order and overlap, if the table is flagged as sorted. In other tables, which
    /// assemblers write, functions of several sections may share addresses.
    ///
    /// `before` describes the previous functions, in bytes from the section's start: the start of
    /// the last one, and the end of the code that they cover.
    fn place(&mut self, index: u32, fde: &Fde<'a>, before: &mut Option<(i64, i64)>) -> Flow {
        if !self.section.flags().contains(Flags::FDE_SORTED) {
            return GO_ON;
        }
        let function = fde.function();
        // Compared as look-up does, even if the address space wraps around.
        let start = function.start.wrapping_sub(self.section.address()) as i64;
        let end = start.saturating_add(function.size.into());
        let path = Path::fde(index, Some(Field::Start));
        let mut covered = end;
        if let Some((start_before, end_before)) = *before {
            covered = end.max(end_before);
            let inside = end_before.saturating_sub(start);
            if start < start_before {
                self.found(path, FindingKind::FunctionOrder, fde.offset())?;
            } else if inside > 0 && function.size != 0 {
                let kind = FindingKind::FunctionOverlap(inside.unsigned_abs());
                self.found(path, kind, fde.offset())?;
            }
        }
        *before = Some((start, covered));
        GO_ON
    }

    fn function(&mut self, index: u32, fde: &Fde<'a>) -> Flow {
        let section = self.section;
        let (raw, version) = (fde.raw(), section.version());
        let mut unused = match version {
            Version::V1 | Version::V2 => 0xc0,
            Version::V3 => 0x40,
        };
        if !matches!(section.abi(), Abi::Aarch64Big | Abi::Aarch64Little) {
            unused |= 0x20;
        }
        let bits = raw.info.0 & unused;
        if bits != 0 {
            let path = Path::fde(index, Some(Field::Info));
            self.found(path, FindingKind::UnusedBits(bits), raw.info_at)?;
        }
        if raw.unused_bits != 0 {
            let path = Path::fde(index, Some(Field::Info2));
            self.found(
                path,
                FindingKind::UnusedBits(raw.unused_bits),
                raw.info_at.saturating_add(1),
            )?;
        }
        let padding = section.fde_padding(fde);
        if padding != 0 {
            let path = Path::fde(index, Some(Field::Padding));
            self.found(path, FindingKind::Padding(padding), raw.info_at.saturating_add(2))?;
        }
        let says_nothing = version != Version::V3 || raw.fde_type == FdeType::Flex;
        if raw.num_fres == 0 && says_nothing {
            let path = Path::fde(index, Some(Field::Rows));
            self.found(path, FindingKind::NoRows, fde.offset())?;
        }
        GO_ON
    }

    fn found(&mut self, path: Path, kind: FindingKind, offset: usize) -> Flow {
        (self.report)(Finding {
            path,
            kind,
            offset: offset as u64,
        })
    }
}
