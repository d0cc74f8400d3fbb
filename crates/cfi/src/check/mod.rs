//! Compares a table with the call frame information that it replaces, at every pc that either of
//! them covers.
//!
//! It uses nothing of the conversion: its own code finds FDEs, evaluates their rows and compares
//! the results on a machine with made-up registers and memory. So a PLT's expression and the PCMASK
//! rows for it are equal if they give the same CFA at each pc, and so are an offset from the CFA
//! and one from a register that lead to the same address. As SFrame does not describe the stack
//! pointer, its CFA is compared with the one that the ABI derives from the caller's stack pointer.
//!
//! Intervals are compared, not single pcs, unless an expression reads the pc.

mod frames;
mod go;
mod meaning;
mod report;
mod stubs;
mod text;

use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_elf::{Image, Kind};
use backtrail_sframe::{Row, Section, Version};
use backtrail_wire::Bytes;
use gimli::UnwindContext;

use crate::build::Skipped;
use crate::eh_frame::{EhFrame, augmentation, debug_frame};
use frames::{Frame, Frames};
use meaning::{Caller, Fp, Machine, Meaning, Ra, SEEDS, Said};
pub use report::{Mismatch, Report, What};
use stubs::Stubs;

/// The limits of comparisons: for each byte of input, and a free allowance. PLTs are compared pc by
/// pc, and shared rows let a small table claim many rows.
const STEPS_A_BYTE: u64 = 16;
const FREE_STEPS: u64 = 1 << 23;

/// The reason of code that the table could describe but does not.
const ABSENT: &str = "absent";
/// The reason of unreadable FDEs.
const DAMAGED: &str = "damaged";

/// Compares `table` with `input`. `skipped` lists the code that a table of this version could not
/// express: it only supplies the reasons of uncovered code.
///
/// Never panics. Time and memory are bounded by a multiple of the length of both.
pub fn check(input: &EhFrame<'_>, table: &Section<'_>, skipped: &[Skipped]) -> Report {
    let sources = Sources {
        sections: std::slice::from_ref(input),
        go: &[],
        stubs: None,
    };
    compare(input.arch, &sources, table, skipped)
}

/// Like `check`, with all call frame information of `image`: `.eh_frame`, `.debug_frame` for code
/// that the former does not describe, and Go's `.gopclntab`. Rows for code for which linkers write
/// none are compared with its instructions.
///
/// Fails if a section cannot be read.
pub fn check_image(image: &Image<'_>, table: &Section<'_>, skipped: &[Skipped]) -> backtrail_elf::Result<Report> {
    let linked = image.kind() != Kind::Relocatable;
    let eh_frame = image.eh_frame()?;
    let debug_frame = linked.then(|| debug_frame::of_image(image)).flatten();
    let sections = eh_frame.iter().chain(&debug_frame);
    let sections: Vec<EhFrame<'_>> = sections
        .map(|section| EhFrame::of_image(image, &section.data, section.address))
        .collect();
    let go = if linked { go::functions(image) } else { Vec::new() };
    let stubs = Stubs::of_image(image);
    let sources = Sources {
        sections: &sections,
        go: &go,
        stubs: stubs.as_ref(),
    };
    Ok(compare(image.arch(), &sources, table, skipped))
}

/// What a table is compared with.
struct Sources<'s> {
    /// Each describes what those before do not.
    sections: &'s [EhFrame<'s>],
    /// Functions that these describe are in no section.
    go: &'s [go::Function],
    /// Code that linkers write no call frame information for.
    stubs: Option<&'s Stubs>,
}

fn compare(arch: &'static Arch, sources: &Sources<'_>, table: &Section<'_>, skipped: &[Skipped]) -> Report {
    let bytes = sources.sections.iter().map(|section| section.data.len()).sum::<usize>() + table.size();
    let mut walk = Walk {
        arch,
        table: Table::new(table),
        steps: bytes as u64 * STEPS_A_BYTE + FREE_STEPS,
        skipped,
        stubs: sources.stubs,
        frame: 0,
        reason: ABSENT,
        report: Report::default(),
    };
    let mut damaged = 0;
    let mut described: Vec<Range<u64>> = sources.go.iter().map(|function| function.code.clone()).collect();
    walk.go(sources.go);
    for input in sources.sections {
        let normalized = augmentation::normalize(Bytes::new(input.data, input.endian), input.arch.cpu);
        let mut frames = Frames::new(input, &normalized.data, &normalized.key_b);
        frames.exclude(&described);
        walk.frames(&mut frames);
        damaged += frames.damaged;
        described.extend(frames.list.iter().map(|frame| frame.start..frame.end));
        described.sort_by_key(|range| range.start);
    }
    walk.code_without_frames(&described);
    let mut report = walk.report;
    report.functions = table.num_fdes().into();
    report.rows = table.num_fres().into();
    report.damage = walk.table.damage;
    if damaged > 0 {
        report.skipped.insert(DAMAGED, damaged);
    }
    report.uncovered.sort_by_key(|range| range.start);
    report.mismatches.sort_by_key(|mismatch| (mismatch.pc, mismatch.what));
    report
}

/// The functions of the table, each up to the next, and the rows of the current one.
struct Table<'a> {
    section: Section<'a>,
    /// Functions by start; none overlap.
    functions: Vec<(Range<u64>, u32)>,
    open: Option<Open>,
    damage: Option<backtrail_sframe::Error>,
}

struct Open {
    index: usize,
    start: u64,
    rows: Vec<Row>,
    repeat: Option<u8>,
    signal_frame: bool,
    key_b: bool,
}

impl<'a> Table<'a> {
    fn new(section: &Section<'a>) -> Table<'a> {
        let mut table = Table {
            section: *section,
            functions: Vec::with_capacity(section.functions().len()),
            open: None,
            damage: None,
        };
        for (index, fde) in section.functions().enumerate() {
            match fde.map(|fde| fde.function()) {
                Ok(function) if function.size > 0 => {
                    let end = function.start.saturating_add(function.size.into());
                    table.functions.push((function.start..end, index as u32));
                }
                Ok(_) => {}
                Err(error) => table.damage = table.damage.or(Some(error)),
            }
        }
        table.settle();
        table
    }

    /// Keeps what a look-up finds: the last in the table of those with the same start, each up to
    /// the start of the next.
    fn settle(&mut self) {
        self.functions
            .sort_by_key(|(range, index)| (range.start, std::cmp::Reverse(*index)));
        self.functions.dedup_by_key(|(range, _)| range.start);
        for index in 1..self.functions.len() {
            let next = self.functions[index].0.start;
            let range = &mut self.functions[index - 1].0;
            range.end = range.end.min(next);
        }
    }

    /// Index of the first function that ends after `pc`; it may also begin after `pc`.
    fn after(&self, pc: u64) -> usize {
        self.functions.partition_point(|(range, _)| range.end <= pc)
    }

    /// Reads the rows of a function, unless it is the current one, and subtracts them from `steps`:
    /// functions may share endless rows.
    fn open(&mut self, index: usize, steps: &mut u64) -> &Open {
        if self.open.as_ref().is_none_or(|open| open.index != index) {
            let rows = self.open.take().map(|open| open.rows).unwrap_or_default();
            let open = self.read(index, rows);
            *steps = steps.saturating_sub(open.rows.len() as u64);
            self.open = Some(open);
        }
        self.open.as_ref().expect("it was just read")
    }

    fn read(&mut self, index: usize, mut rows: Vec<Row>) -> Open {
        rows.clear();
        let (range, fde) = &self.functions[index];
        let mut open = Open {
            index,
            start: range.start,
            rows,
            repeat: None,
            signal_frame: false,
            key_b: false,
        };
        // It was readable when the functions were listed.
        let Ok(fde) = self.section.fde(*fde) else { return open };
        let function = fde.function();
        open.repeat = function.repeat;
        open.signal_frame = function.signal_frame;
        open.key_b = function.pauth_key_b;
        for row in fde.rows() {
            match row {
                // A look-up finds nothing after a row that does not begin after the one before it.
                Ok(row) if open.rows.last().is_none_or(|last| last.start < row.start) => open.rows.push(row),
                Ok(_) => break,
                Err(error) => {
                    self.damage = self.damage.or(Some(error));
                    break;
                }
            }
        }
        open
    }
}

impl Open {
    /// The row at `pc`, and the start of the next one; in a repeated block that is the next block.
    fn row_at(&self, pc: u64) -> (Option<Row>, Option<u64>) {
        let offset = pc - self.start;
        let (block, offset) = match self.repeat.map(u64::from) {
            Some(size) => (offset - offset % size, offset % size),
            None => (0, offset),
        };
        let after = self.rows.partition_point(|row| u64::from(row.start) <= offset);
        let next = self.rows.get(after).map(|row| u64::from(row.start));
        let next = match (next, self.repeat) {
            (Some(next), Some(size)) => Some(next.min(size.into())),
            (None, Some(size)) => Some(size.into()),
            (next, None) => next,
        };
        let row = after.checked_sub(1).map(|index| self.rows[index]);
        (row, next.map(|next| self.start + block + next))
    }
}

struct Walk<'a> {
    arch: &'static Arch,
    table: Table<'a>,
    /// Comparisons that are left.
    steps: u64,
    skipped: &'a [Skipped],
    stubs: Option<&'a Stubs>,
    /// The start of the current frame.
    frame: u64,
    /// The reason of the last piece of uncovered code.
    reason: &'static str,
    report: Report,
}

impl Walk<'_> {
    fn frames(&mut self, frames: &mut Frames<'_>) {
        let mut context = UnwindContext::new_in();
        for index in 0..frames.list.len() {
            let frame = frames.list[index];
            self.report.pcs += frame.end - frame.start;
            if self.steps == 0 {
                self.report.gave_up_at.get_or_insert(frame.start);
                return;
            }
            self.frame = frame.start;
            self.compare_frame(frames, frame, &mut context);
        }
    }

    fn compare_frame(
        &mut self,
        frames: &mut Frames<'_>,
        frame: Frame,
        context: &mut UnwindContext<usize, crate::eh_frame::Storage>,
    ) {
        let mut reached = frame.start;
        if let Some((fde, signal_frame, key_b)) = frames.open(frame)
            && let Ok(mut rows) = fde.rows(&frames.section, &frames.bases, context)
        {
            let ra = fde.cie().return_address_register();
            while let Ok(Some(row)) = rows.next_row() {
                let end = row.end_address().min(frame.end);
                if end > reached {
                    let said = Said {
                        section: &frames.section,
                        row,
                        ra,
                        signal_frame,
                        key_b,
                        meanings: [None; 2],
                    };
                    self.row(Some(said), reached..end);
                    reached = end;
                }
                if reached == frame.end {
                    return;
                }
            }
        }
        // The instructions from here on are invalid.
        if reached < frame.end {
            self.row(None, reached..frame.end);
        }
    }

    /// Compares the readable call frame information of `code`, if any, with the table.
    fn row(&mut self, mut said: Option<Said<'_, '_>>, code: Range<u64>) {
        let arch = self.arch;
        let by_pc = said.as_mut().is_some_and(|said| said.evaluate(arch, code.start));
        let mut pc = code.start;
        let mut index = self.table.after(pc);
        while pc < code.end && self.steps > 0 {
            self.steps -= 1;
            let Some((range, _)) = self.table.functions.get(index).cloned() else {
                self.uncovered(pc..code.end);
                return;
            };
            if range.start > pc {
                let end = range.start.min(code.end);
                self.uncovered(pc..end);
                pc = end;
                continue;
            }
            let (row, next) = self.table.open(index, &mut self.steps).row_at(pc);
            let mut end = next.map_or(range.end, |next| next.min(range.end)).min(code.end);
            if let Some(said) = said.as_mut().filter(|_| by_pc) {
                end = pc + 1;
                said.evaluate(arch, pc);
            }
            match (row, &said) {
                (Some(row), Some(said)) => self.compare(said, &row, pc..end),
                (Some(_), None) => self.mismatch(
                    range.start,
                    pc..end,
                    What::Code,
                    "rows".into(),
                    "nothing that can be read".into(),
                ),
                (None, _) => self.uncovered(pc..end),
            }
            pc = end;
            if pc >= range.end {
                index += 1;
            }
        }
        if pc < code.end {
            self.report.gave_up_at.get_or_insert(pc);
        }
    }

    fn uncovered(&mut self, code: Range<u64>) {
        let after = self.skipped.partition_point(|skipped| skipped.end() <= code.start);
        let reason = self.skipped.get(after).filter(|skipped| skipped.start < code.end);
        let reason = reason.map_or(ABSENT, |skipped| skipped.reason);
        let last = self.report.uncovered.last_mut().filter(|last| last.end == code.start);
        // The next row of a frame extends the piece before.
        let new = last.is_none() || code.start == self.frame || reason != self.reason;
        if new {
            *self.report.skipped.entry(reason).or_insert(0) += 1;
            self.reason = reason;
        }
        match last {
            Some(last) => last.end = code.end,
            None => self.report.uncovered.push(code),
        }
    }

    fn compare(&mut self, said: &Said<'_, '_>, row: &Row, code: Range<u64>) {
        let open = self.table.open.as_ref().expect("its row was just found");
        let (function, signal_frame, key_b) = (open.start, open.signal_frame, open.key_b);
        let mut differ: Vec<What> = Vec::new();
        for (seed, meaning) in SEEDS.into_iter().zip(said.meanings) {
            let machine = Machine { arch: self.arch, seed };
            match (meaning, &row.rule) {
                (None, _) | (Some(Meaning::Outermost), None) => {}
                (Some(Meaning::Outermost), Some(_)) | (Some(Meaning::Caller(_)), None) => differ.push(What::Ra),
                (Some(Meaning::Unclear), _) => differ.push(What::Cfa),
                (Some(Meaning::Caller(caller)), Some(rule)) => {
                    differences(&mut differ, machine, rule, &caller);
                    if rule.mangled_ra && key_b != said.key_b {
                        differ.push(What::Ra);
                    }
                }
            }
        }
        // Older versions can't mark signal frames.
        if self.table.section.version() == Version::V3 && signal_frame != said.signal_frame {
            differ.push(What::SignalFrame);
        }
        differ.sort_unstable();
        differ.dedup();
        for what in differ {
            let (sframe, eh_frame) = match what {
                What::SignalFrame => (signal_frame.to_string(), said.signal_frame.to_string()),
                _ => (
                    text::of_rule(self.arch, row.rule.as_ref(), what, key_b),
                    text::of_row(self.arch, said, what),
                ),
            };
            self.mismatch(function, code.clone(), what, sframe, eh_frame);
        }
    }

    /// Reports a mismatch once for all pcs of a row, which come one by one in a PLT; `function` is
    /// the start of the table's function.
    fn mismatch(&mut self, function: u64, code: Range<u64>, what: What, sframe: String, eh_frame: String) {
        /// Mismatches that are searched for the one that this one extends: one for each part of a
        /// rule that can differ, for each of two rows.
        const NEAR: usize = 8;
        let pcs = code.end - code.start;
        let near = self.report.mismatches.iter_mut().rev().take(NEAR);
        for last in near {
            if last.what == what && last.pc >= function && last.sframe == sframe && last.eh_frame == eh_frame {
                last.pcs += pcs;
                return;
            }
        }
        self.report.mismatches.push(Mismatch {
            pc: code.start,
            pcs,
            what,
            sframe,
            eh_frame,
        });
    }

    /// Compares parts of the table's functions without frames. Between frames they are padding,
    /// which a writer that joins neighbours covers.
    fn code_without_frames(&mut self, frames: &[Range<u64>]) {
        for index in 0..self.table.functions.len() {
            let range = self.table.functions[index].0.clone();
            let first = frames.partition_point(|frame| frame.end <= range.start);
            let mut pc = range.start;
            for frame in &frames[first..] {
                if frame.start >= range.end {
                    break;
                }
                let padding = frame.start.saturating_sub(pc);
                if pc > range.start && is_padding(padding, frame.start) {
                    self.report.padding += padding;
                    self.report.pcs += padding;
                } else {
                    self.without_frame(index, pc..frame.start);
                }
                pc = frame.end;
            }
            self.without_frame(index, pc..range.end);
        }
    }

    fn without_frame(&mut self, function: usize, code: Range<u64>) {
        if !code.is_empty() {
            self.report.pcs += code.end - code.start;
            let start = self.table.functions[function].0.start;
            if let Some(stubs) = self.stubs.filter(|stubs| stubs.holds(&code)) {
                self.stub_rows(function, stubs, code);
                return;
            }
            self.mismatch(start, code, What::Code, "rows".into(), "nothing".into());
        }
    }

    fn stub_rows(&mut self, function: usize, stubs: &Stubs, code: Range<u64>) {
        for (pc, state) in stubs.states(&code) {
            let Some(left) = self.steps.checked_sub(1) else {
                self.report.gave_up_at.get_or_insert(pc);
                return;
            };
            self.steps = left;
            let row = self.table.open(function, &mut self.steps).row_at(pc).0;
            let told = row.and_then(|row| row.rule);
            if !told.is_some_and(|rule| state.is(&rule)) {
                let start = self.table.functions[function].0.start;
                let said = text::of_rule(self.arch, told.as_ref(), What::Cfa, false);
                let done = format!("sp{:+} by its instructions", state.depth);
                self.mismatch(start, pc..pc + stubs::WORD, What::Cfa, said, done);
            }
        }
    }
}

/// Whether this number of bytes is padding that aligns the code after them.
fn is_padding(bytes: u64, next: u64) -> bool {
    /// Functions are aligned to cache lines at most.
    const MOST: u64 = 64;
    bytes < MOST && bytes < 1 << next.trailing_zeros().min(63)
}

fn differences(differ: &mut Vec<What>, machine: Machine, rule: &backtrail_sframe::Rule, caller: &Caller) {
    let mut ours = machine.by_rule(rule, None);
    if ours.cfa_by_sp != caller.cfa_by_sp {
        differ.push(What::Cfa);
        // The comparison counts from the correct CFA, so that one wrong CFA is reported only once.
        ours = machine.by_rule(rule, Some(caller.cfa));
    }
    if ours.ra != caller.ra || ours.mangled_ra != caller.mangled_ra || caller.ra == Ra::Unsaved {
        differ.push(What::Ra);
    }
    if ours.fp != caller.fp || caller.fp == Fp::Lost {
        differ.push(What::Fp);
    }
}
