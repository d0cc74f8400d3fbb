//! Call frame information (`.eh_frame`; LSB 5.0, section 10.6, and DWARF 5, section 6.4) to SFrame rows.
//!
//! SFrame restores three registers: the stack pointer (by the CFA), the frame pointer and the program counter. Of an
//! FDE only those columns matter, and a row that says the same of them as the row before is left out. Where a rule
//! cannot be said, the code under it becomes a gap: the function is split around it, and the gap is reported with its
//! reason. Nothing else of the function is lost.

pub(crate) mod augmentation;
pub mod debug_frame;
pub(crate) mod evaluate;
mod expression;
mod pieces;
mod reason;
mod rule;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use backtrail_arch::Arch;
use backtrail_elf::Image;
use backtrail_sframe::Row;
pub use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::write::{self, Options, Output, WriteError};
use backtrail_wire::{Bytes, Endian};
use gimli::{
    BaseAddresses, CommonInformationEntry, EndianSlice, FrameDescriptionEntry, RunTimeEndian, UnwindContext,
    UnwindSection,
};

pub(crate) use pieces::end_of;
use pieces::{Collector, Origin};
pub use reason::{Error, ErrorKind, Reason, Skipped};
use rule::Rules;

/// The initial instructions of a CIE run again for each of its FDEs. Real CIEs have under 150 bytes; a limit keeps the
/// work proportional to the input.
pub(crate) const MAX_CIE_BYTES: usize = 512;

/// How deep `DW_CFA_remember_state` may nest. Compilers nest once.
const MAX_REMEMBERED_STATES: usize = 16;

/// How much code is marked as outermost after an entry point of which nothing else is known.
const MAX_ENTRY_BYTES: u64 = 64;

/// An `.eh_frame` section and what its pointers count from. All addresses are the file's own (svma).
#[derive(Clone, Debug)]
pub struct EhFrame<'a> {
    /// The bytes of the section.
    pub data: &'a [u8],
    /// Its address: the base of `DW_EH_PE_pcrel` pointers.
    pub address: u64,
    /// The base of `DW_EH_PE_textrel` pointers, where there is one.
    pub text: Option<u64>,
    /// The base of `DW_EH_PE_datarel` pointers, where there is one.
    pub got: Option<u64>,
    /// The CPU.
    pub arch: &'static Arch,
    /// The byte order.
    pub endian: Endian,
    /// Where code can lie. FDEs outside (of discarded sections, or damaged) are left out; empty: anywhere.
    pub code: Vec<Range<u64>>,
}

impl<'a> EhFrame<'a> {
    /// The section with contents `data` at `address` of `image`.
    pub fn of_image(image: &Image<'_>, data: &'a [u8], address: u64) -> EhFrame<'a> {
        EhFrame {
            data,
            address,
            text: image.text_address(),
            got: image.got_address(),
            arch: image.arch(),
            endian: image.endian(),
            code: image.code_ranges(),
        }
    }
}

/// What became of an `.eh_frame` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// By start; none overlap.
    pub functions: Vec<FunctionRows>,
    /// What could not be said, by start.
    pub skipped: Vec<Skipped>,
    /// Code of which some FDE says what could not be said, in no order; parts of it may have rows by another FDE.
    pub unsaid: Vec<Range<u64>>,
    /// Where the section makes no sense any more; what was before it is converted.
    pub damage: Option<Error>,
}

impl Converted {
    /// Bytes of code that FDEs describe and rows do not.
    pub fn uncovered_bytes(&self) -> u64 {
        self.skipped
            .iter()
            .fold(0u64, |sum, skipped| sum.saturating_add(skipped.size))
    }

    /// Writes a table of the functions. Code of which nothing could be said is not taken for padding.
    pub fn write(&self, options: &Options) -> Result<Output, WriteError> {
        write::section_around(&self.functions, &self.unsaid, options)
    }

    /// The rows for `svma`.
    pub fn find(&self, svma: u64) -> Option<&FunctionRows> {
        let after = self.functions.partition_point(|function| function.start <= svma);
        let found = self.functions[..after].last()?;
        (svma < end_of(found)).then_some(found)
    }

    /// Marks the code from `entry`, to which nothing returns, as outermost where no FDE describes it: ABIs say that
    /// an entry point has no caller, and not every one has an FDE that says so. It ends at `end` where that is known,
    /// at the next function, or after 64 bytes.
    pub fn add_entry_point(&mut self, entry: u64, end: Option<u64>) {
        let next = self.functions.partition_point(|function| function.start <= entry);
        if self.find(entry).is_some() {
            return;
        }
        let limit = entry.saturating_add(MAX_ENTRY_BYTES);
        let end = end.filter(|end| *end > entry).map_or(limit, |end| end.min(limit));
        let end = self.functions.get(next).map_or(end, |function| end.min(function.start));
        let outermost = FunctionRows::new(entry, (end - entry) as u32, vec![Row { start: 0, rule: None }]);
        if outermost.size > 0 {
            self.functions.insert(next, outermost);
        }
    }
}

pub(crate) type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Cie<'a> = CommonInformationEntry<Slice<'a>>;

/// The unwinder's working memory: as gimli's own, with room for more remembered states.
pub(crate) struct Storage;

impl gimli::UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, gimli::RegisterRule<usize>); 192];
    type Stack = Box<[gimli::UnwindTableRow<usize, Self>; MAX_REMEMBERED_STATES]>;
}

/// Converts a whole section. Never panics; time and memory are bounded by a multiple of the section's length.
///
/// A large section is converted by as many threads as there are CPUs, at most four; what comes out is the same.
pub fn convert(input: &EhFrame<'_>) -> Converted {
    let (offsets, damage) = fdes(Bytes::new(input.data, input.endian));
    let endian = run_time(input.endian);
    let normalized = augmentation::normalize(Bytes::new(input.data, input.endian));
    let mut section = gimli::EhFrame::new(&normalized.data, endian);
    section.set_address_size(input.arch.pointer_bytes);
    if input.arch.name == "aarch64" {
        section.set_vendor(gimli::Vendor::AArch64);
    }
    let prepared = Prepared {
        section,
        key_b: &normalized.key_b,
        bases: bases(input),
        code: &input.code,
        arch: input.arch,
    };
    let converter = || Converter::new(&prepared);
    let share = offsets.len().div_ceil(threads(offsets.len())).max(1);
    let mut shares = offsets.chunks(share);
    let first = shares.next().unwrap_or_default();
    let settled = thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|offsets| scope.spawn(|| converter().convert(offsets)))
            .collect();
        let mut all = converter().convert(first);
        for other in others {
            all.append(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all.settle()
    });
    settled.with_damage(damage)
}

/// How many threads so many FDEs are worth.
fn threads(fdes: usize) -> usize {
    const WORTH_A_THREAD: usize = 8192;
    const MOST: usize = 4;
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    match fdes / WORTH_A_THREAD {
        0 | 1 => 1,
        worth => worth.min(MOST).min(cpus()),
    }
}

/// Where the FDEs are, up to where the section makes no sense any more. A terminator is passed over, as linkers that
/// concatenate sections leave them inside.
pub(crate) fn fdes(bytes: Bytes<'_>) -> (Vec<usize>, Option<Error>) {
    let mut offsets = Vec::new();
    let mut offset = 0usize;
    while offset < bytes.len() {
        match entry(bytes, offset) {
            Ok((end, is_fde)) => {
                if is_fde {
                    offsets.push(offset);
                }
                offset = end;
            }
            Err(error) => return (offsets, Some(error)),
        }
    }
    (offsets, None)
}

/// Where the entry at `offset` ends, and whether it is an FDE.
fn entry(bytes: Bytes<'_>, offset: usize) -> Result<(usize, bool), Error> {
    let truncated = |_| Error::new(ErrorKind::Truncated, offset);
    let (len, content) = match bytes.u32(offset).map_err(truncated)? {
        0xffff_ffff => (bytes.u64(offset + 4).map_err(truncated)?, offset + 12),
        len => (u64::from(len), offset + 4),
    };
    if len == 0 {
        return Ok((content, false));
    }
    let wrong = Error::new(ErrorKind::EntryLength(len), offset);
    let end = usize::try_from(len).ok().and_then(|len| content.checked_add(len));
    let end = end.filter(|end| *end <= bytes.len()).ok_or(wrong)?;
    match bytes.u32(content) {
        // A CIE, which is read when an FDE asks for it.
        Ok(0) => Ok((end, false)),
        Ok(_) if end - content >= 4 => Ok((end, true)),
        _ => Err(wrong),
    }
}

/// The starts of all functions by the search table of an `.eh_frame_hdr` section (LSB 5.0, section 10.6.2); `None`
/// where it has none.
pub fn search_table(data: &[u8], address: u64, endian: Endian) -> Option<Vec<u64>> {
    let endian = run_time(endian);
    let bases = BaseAddresses::default().set_eh_frame_hdr(address);
    let header = gimli::EhFrameHdr::new(data, endian).parse(&bases, 8).ok()?;
    let table = header.table()?;
    let mut starts = Vec::new();
    let mut entries = table.iter(&bases);
    while let Ok(Some((start, _))) = entries.next() {
        starts.push(start.pointer());
    }
    Some(starts)
}

pub(crate) fn run_time(endian: Endian) -> RunTimeEndian {
    match endian {
        Endian::Little => RunTimeEndian::Little,
        Endian::Big => RunTimeEndian::Big,
    }
}

pub(crate) fn bases(input: &EhFrame<'_>) -> BaseAddresses {
    let mut bases = BaseAddresses::default().set_eh_frame(input.address);
    if let Some(text) = input.text {
        bases = bases.set_text(text);
    }
    if let Some(got) = input.got {
        bases = bases.set_got(got);
    }
    bases
}

/// A section whose FDEs are converted.
pub(crate) struct Prepared<'a> {
    /// Without augmentation letters that its reader does not know.
    pub(crate) section: gimli::EhFrame<Slice<'a>>,
    /// Offsets of the CIEs whose return addresses are signed with key B.
    pub(crate) key_b: &'a HashSet<usize>,
    pub(crate) bases: BaseAddresses,
    /// [`EhFrame::code`].
    pub(crate) code: &'a [Range<u64>],
    pub(crate) arch: &'static Arch,
}

impl Prepared<'_> {
    /// What the FDE at `offset` says, as if there were no other.
    pub(crate) fn one(&self, offset: usize) -> Converted {
        Converter::new(self).convert(&[offset]).settle().with_damage(None)
    }
}

struct Converter<'a> {
    prepared: &'a Prepared<'a>,
    /// Whether the ranges of code, of which there are some, follow each other.
    code_in_order: bool,
    context: UnwindContext<usize, Storage>,
    /// By offset; `None` for one that makes no sense.
    cies: HashMap<usize, Option<Cie<'a>>>,
    rules: Rules,
    collector: Collector,
}

impl<'a> Converter<'a> {
    fn new(prepared: &'a Prepared<'a>) -> Converter<'a> {
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

    /// The FDEs at these offsets.
    fn convert(mut self, offsets: &[usize]) -> Collector {
        for &offset in offsets {
            self.fde(offset);
        }
        self.collector.end();
        self.collector
    }

    fn fde(&mut self, offset: usize) {
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
            None => self.rows(&fde, start, end),
        }
    }

    fn rows(&mut self, fde: &FrameDescriptionEntry<Slice<'_>>, start: u64, end: u64) {
        let column = fde.cie().return_address_register();
        let mut reached = start;
        let Ok(mut table) = fde.rows(&self.prepared.section, &self.prepared.bases, &mut self.context) else {
            self.collector.skip(start, end, Reason::Damaged);
            return;
        };
        loop {
            match table.next_row() {
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
        // Object files can have a section for each function, in order.
        if self.code_in_order {
            let after = code.partition_point(|range| range.start <= start);
            return code[..after].last().is_some_and(holds);
        }
        code.is_empty() || code.iter().any(holds)
    }
}
