//! A reader of `.eh_frame` that is independent of the conversion, so that both do not share a
//! mistake.

use backtrail_arch::Cpu;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use backtrail_wire::Bytes;
use gimli::{BaseAddresses, CommonInformationEntry, FrameDescriptionEntry, UnwindSection};

use crate::eh_frame::{EhFrame, MAX_CIE_BYTES, bases};
use crate::reader::{Slice, run_time};

/// The code that an FDE describes, limited to the part that the FDE owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) start: u64,
    pub(super) end: u64,
    offset: usize,
}

/// `.eh_frame` and its list of FDEs.
pub(super) struct Frames<'a> {
    pub(super) section: gimli::EhFrame<Slice<'a>>,
    pub(super) bases: BaseAddresses,
    /// Offsets of the CIEs whose return addresses are signed with key B.
    key_b: &'a HashSet<usize>,
    /// CIEs by offset; `None` for an unreadable CIE.
    cies: HashMap<usize, Option<CommonInformationEntry<Slice<'a>>>>,
    /// The number of unreadable FDEs.
    pub(super) damaged: u64,
    /// Frames by start; none overlap.
    pub(super) list: Vec<Frame>,
}

impl<'a> Frames<'a> {
    /// Finds the FDEs of the section `input`; `data` contains its bytes without the augmentation
    /// letters that the library does not know.
    pub(super) fn new(input: &EhFrame<'_>, data: &'a [u8], key_b: &'a HashSet<usize>) -> Frames<'a> {
        let mut section = gimli::EhFrame::new(data, run_time(input.endian));
        section.set_address_size(input.arch.pointer_bytes);
        if input.arch.cpu == Cpu::Aarch64 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        let mut frames = Frames {
            section,
            bases: bases(input),
            key_b,
            cies: HashMap::new(),
            damaged: 0,
            list: Vec::new(),
        };
        frames.collect(input, Bytes::new(data, input.endian));
        frames.settle();
        frames
    }

    /// Collects entry by entry. Nothing after an invalid entry can be found.
    fn collect(&mut self, input: &EhFrame<'_>, bytes: Bytes<'_>) {
        let mut offset = 0;
        while let Some((content, end)) = entry(bytes, offset) {
            if content < end && bytes.u32(content) != Ok(0) {
                match self.fde(offset) {
                    Some(fde) => self.add(input, offset, &fde),
                    None => self.damaged += 1,
                }
            }
            offset = end;
        }
        self.damaged += u64::from(offset < bytes.len());
    }

    fn add(&mut self, input: &EhFrame<'_>, offset: usize, fde: &FrameDescriptionEntry<Slice<'_>>) {
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()) else {
            return;
        };
        let inside = |code: &Range<u64>| code.start <= start && end <= code.end;
        if start < end && (input.code.is_empty() || input.code.iter().any(inside)) {
            self.list.push(Frame { start, end, offset });
        }
    }

    /// Keeps what a search by start finds: the first in the section of those with the same start,
    /// each up to the start of the next.
    fn settle(&mut self) {
        self.list.sort_by_key(|frame| frame.start);
        self.list.dedup_by_key(|frame| frame.start);
        for index in 1..self.list.len() {
            let next = self.list[index].start;
            let frame = &mut self.list[index - 1];
            frame.end = frame.end.min(next);
        }
    }

    /// Leaves out code in `others`, which are in order and do not overlap.
    pub(super) fn exclude(&mut self, others: &[Range<u64>]) {
        let mut left = Vec::with_capacity(self.list.len());
        for frame in &self.list {
            let mut start = frame.start;
            let first = others.partition_point(|other| other.end <= start);
            let within = others[first..].iter().take_while(|other| other.start < frame.end);
            let last = frame.end..frame.end;
            for other in within.chain([&last]) {
                if start < other.start {
                    left.push(Frame {
                        start,
                        end: other.start,
                        ..*frame
                    });
                }
                start = start.max(other.end);
            }
        }
        self.list = left;
    }

    /// The FDE at an offset; `None` if it or its CIE is unreadable.
    fn fde(&mut self, offset: usize) -> Option<FrameDescriptionEntry<Slice<'a>>> {
        let Frames {
            section, bases, cies, ..
        } = self;
        let parsed = section.fde_from_offset(bases, offset.into(), |section, bases, cie| {
            let known = cies.entry(cie.0).or_insert_with(|| {
                let parsed = section.cie_from_offset(bases, cie).ok();
                parsed.filter(|cie| cie.entry_len() <= MAX_CIE_BYTES)
            });
            known.clone().ok_or(gimli::Error::NotCieId(cie.0 as u64))
        });
        parsed.ok()
    }

    /// The FDE of a frame, whether it is a signal trampoline, and whether its code signs with key
    /// B.
    pub(super) fn open(&mut self, frame: Frame) -> Option<(FrameDescriptionEntry<Slice<'a>>, bool, bool)> {
        let fde = self.fde(frame.offset)?;
        let signal_frame = fde.is_signal_trampoline();
        let key_b = self.key_b.contains(&fde.cie().offset());
        Some((fde, signal_frame, key_b))
    }
}

/// Content and end of the entry at `offset`.
fn entry(bytes: Bytes<'_>, offset: usize) -> Option<(usize, usize)> {
    let (len, content) = match bytes.u32(offset).ok()? {
        u32::MAX => (bytes.u64(offset + 4).ok()?, offset + 12),
        len => (u64::from(len), offset + 4),
    };
    let end = content.checked_add(usize::try_from(len).ok()?)?;
    (end <= bytes.len()).then_some((content, end))
}
