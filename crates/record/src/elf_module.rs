//! What is kept of an ELF file while it is recorded.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;

use backtrail_bpf as bpf;
use backtrail_cfi::eh_frame::debug_frame;
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_cfi::switches::StackSwitch;
use backtrail_cfi::tables;
use backtrail_elf::{self as elf, CodeSegments, FileBytes, Image, SectionData};
use backtrail_sframe::Section;
use backtrail_sframe::write::FunctionRows;
use backtrail_unwind::{Coverage, Table};

/// A table, and its bytes.
pub(crate) type Kept<'a> = (Section<'a>, &'a [u8]);

/// The kept parts of an ELF image.
#[derive(Debug)]
pub(crate) struct ElfModule<'a> {
    /// Build id; empty without.
    pub(crate) build_id: Vec<u8>,
    /// Page of the lowest loaded segment, in the file's addresses.
    pub(crate) base_vaddr: u64,
    /// Bytes from there to the end of the last segment.
    pub(crate) mem_size: u64,
    /// Whether it may be loaded anywhere.
    pub(crate) position_independent: bool,
    pub(crate) code: CodeSegments,
    pub(crate) table: Option<Section<'a>>,
    /// Those of the table's section.
    pub(crate) table_bytes: &'a [u8],
    /// The file, while its table is being made.
    unmade: Option<Rc<FileBytes>>,
    /// Whether Go's compiler made the code.
    pub(crate) is_go: bool,
    pub(crate) on_demand: Box<OnDemand>,
}

/// Parts of a file that are read when a stack first needs them.
#[derive(Debug, Default)]
pub(crate) struct OnDemand {
    /// Its call frame information, for stacks that need registers that tables don't restore.
    pub(crate) frames: OnceCell<Option<CallFrames<Vec<u8>>>>,
    /// Whether it was ever read for that, and whether it was used of late.
    pub(crate) was_read: Cell<bool>,
    pub(crate) is_used: Cell<bool>,
    /// The file, from which it is read again if it is large.
    pub(crate) file: OnceCell<FileBytes>,
    /// Targets of direct calls, for code that no table describes.
    pub(crate) called: OnceCell<Vec<u64>>,
    /// Rules for the kernel of code that its call frame information leaves for another stack, if
    /// that was read.
    pub(crate) switches: OnceCell<Vec<(Range<u64>, bpf::Rule)>>,
}

/// The rules of code that leaves its stack for another one.
pub(crate) fn switches(frames: &CallFrames<Vec<u8>>) -> Vec<(Range<u64>, bpf::Rule)> {
    let rule = |switch: StackSwitch| {
        let rule = bpf::Rule::by_word(switch.slot, switch.is_indirect, switch.cfa, switch.saved_fp);
        Some((switch.addresses, rule?))
    };
    frames.stack_switches().into_iter().filter_map(rule).collect()
}

impl<'a> ElfModule<'a> {
    /// Without a table.
    pub(crate) fn new(image: &Image<'_>) -> Self {
        ElfModule {
            build_id: image.build_id().unwrap_or_default().to_vec(),
            base_vaddr: image.base_vaddr(),
            mem_size: image.mem_size(),
            position_independent: image.is_position_independent(),
            code: CodeSegments::of(image),
            table: None,
            table_bytes: &[],
            unmade: None,
            is_go: tables::exceeds_call_frames(image),
            on_demand: Box::default(),
        }
    }

    /// The table is being made: until it is set, those of single functions are made from this.
    /// Without it, the module has none until then.
    pub(crate) fn wait_for_table(&mut self, frames: Option<CallFrames<Vec<u8>>>, file: Rc<FileBytes>) {
        if frames.is_some() {
            self.on_demand.frames = OnceCell::from(frames);
            self.unmade = Some(file);
        }
    }

    pub(crate) fn set_table(&mut self, table: Option<Kept<'a>>) {
        if self.unmade.take().is_some() {
            // It is large, and few stacks need it from now on.
            self.on_demand.frames = OnceCell::new();
        }
        if let Some((section, bytes)) = table {
            (self.table, self.table_bytes) = (Some(section), bytes);
        }
    }

    /// Forgets the call frame information if it is large and was not used since the last time.
    pub(crate) fn forget_unused(&mut self) {
        let can_be_read_again = self.unmade.is_none() && self.on_demand.file.get().is_some();
        if !self.on_demand.is_used.replace(false) && can_be_read_again {
            self.on_demand.frames = OnceCell::new();
        }
    }

    /// Whether there is a table, or will be one.
    pub(crate) fn has_table(&self) -> bool {
        self.table.is_some() || self.unmade.is_some()
    }

    /// The table for an address, and the addresses that it is for, at most those of `mapping`.
    #[inline]
    pub(crate) fn coverage(&self, mapping: Range<u64>, bias: u64, address: u64, id: u32) -> (Range<u64>, Coverage<'_>) {
        let table = |section, id| {
            Coverage::Table(Table {
                section,
                index: None,
                bias,
                id,
            })
        };
        match (self.table, &self.unmade) {
            (Some(section), _) => (mapping, table(section, id)),
            (None, None) => (mapping, Coverage::FramePointer),
            // What is remembered by the number of a whole table does not come from a part.
            (None, Some(file)) => match self.function(file, address.wrapping_sub(bias)) {
                Some((function, section)) => {
                    let start = function.start.wrapping_add(bias).max(mapping.start);
                    let end = function.end.wrapping_add(bias).min(mapping.end);
                    (start..end, table(section, !id))
                }
                None => (
                    address..address.saturating_add(1),
                    Coverage::Described { id: !id, bias },
                ),
            },
        }
    }

    /// The table of the function with the code at an address of the file, and where that function
    /// is.
    fn function(&self, file: &FileBytes, svma: u64) -> Option<(Range<u64>, Section<'_>)> {
        let frames = self.on_demand.frames.get()?.as_ref()?;
        let correct =
            |function: &mut FunctionRows| Image::of(file).map_or(true, |image| tables::correct(&image, function));
        let section = Section::parse(frames.function(svma, correct)?, 0).ok()?;
        let function = section.lookup(svma).ok()??.function;
        let end = function.start.saturating_add(function.size.into());
        Some((function.start..end, section))
    }
}

/// The most bytes of call frame information that are kept of another user's file.
const LONGEST_FOREIGN: u64 = 128 << 20;

/// The call frame information of a file, as it is.
pub(crate) fn call_frames(image: &Image<'_>) -> Option<CallFrames<Vec<u8>>> {
    let is_long = |section: &elf::Section<'_>| {
        [&b".eh_frame"[..], b".debug_frame"].contains(&section.name) && section.size > LONGEST_FOREIGN
    };
    if image.foreign_owner().is_some() && image.sections().iter().any(is_long) {
        return None;
    }
    let held = |section: SectionData<'_>| Held {
        address: section.address,
        bytes: section.data.into_owned(),
    };
    let section = image.eh_frame().ok().flatten();
    let debug = || debug_frame::of_image(image).filter(|_| !tables::exceeds_call_frames(image));
    let section = section.or_else(debug)?;
    let header = image.eh_frame_hdr().ok().flatten();
    Some(CallFrames::new(image, held(section), header.map(held)))
}
