//! A reader of Go's `.gopclntab` (`internal/abi`, `runtime/symtab.go`; Go 1.18 and later) that is
//! independent of the conversion, and the comparison of a table with it.
//!
//! `.gopclntab` gives the distance of the stack pointer from its value at a function's entry.
//! Nothing in it is about the frame pointer, which is not compared.

use std::ops::Range;

use backtrail_arch::{Arch, Cpu};
use backtrail_elf::Image;
use backtrail_sframe::{Base, Row};
use backtrail_wire::Bytes;

use super::meaning::{Machine, Ra, SEEDS};
use super::{Walk, What, text};
use crate::gopclntab;

const MAGIC_1_18: u32 = 0xffff_fff0;
const MAGIC_1_20: u32 = 0xffff_fff1;

const TOP_FRAME: u8 = 1;
const SP_WRITE: u8 = 2;
const ASSEMBLY: u8 = 4;

/// A function of Go.
pub(super) struct Function {
    pub(super) code: Range<u64>,
    flags: u8,
    /// Whether it begins a stack, as its name says or its flags.
    begins_stack: bool,
    /// Whether a signal handler makes it look as if the interrupted code had called it
    /// (`preparePanic`, `pushCall`). The table begins after what the handler pushes.
    is_injected: bool,
    /// The pc before which each distance holds, and the distance.
    distances: Vec<(u64, i64)>,
}

/// The functions of `image`, by address; none if it is not a Go program.
pub(super) fn functions(image: &Image<'_>) -> Vec<Function> {
    let read = || {
        let section = gopclntab::section(image)?;
        let text = gopclntab::text(image)?;
        read(Bytes::new(&section.data, image.endian()), text)
    };
    let code = image.code_ranges();
    let is_code = |range: &Range<u64>| {
        code.iter()
            .any(|code| code.start <= range.start && range.end <= code.end)
    };
    let mut functions = read().unwrap_or_default();
    functions.retain(|function| is_code(&function.code));
    functions.sort_by_key(|function| function.code.start);
    functions.dedup_by(|next, before| next.code.start < before.code.end);
    functions
}

fn read(table: Bytes<'_>, text: u64) -> Option<Vec<Function>> {
    let flags_at = match table.u32(0).ok()? {
        MAGIC_1_18 => 37,
        MAGIC_1_20 => 41,
        _ => return None,
    };
    let quantum = u64::from(table.u8(6).ok()?);
    let header = |word: usize| usize::try_from(table.u64(8 + word * 8).ok()?).ok();
    let (count, names, pctab, functab) = (header(0)?, header(3)?, header(6)?, header(7)?);
    let mut functions = Vec::new();
    let mut budget = table.len();
    for index in 0..count {
        let at = functab.checked_add(index.checked_mul(8)?)?;
        let (Ok(start), Ok(info), Ok(end)) = (table.u32(at), table.u32(at + 4), table.u32(at + 8)) else {
            break;
        };
        let info = functab.checked_add(info as usize)?;
        let (Ok(name), Ok(steps), Ok(flags)) = (table.u32(info + 4), table.u32(info + 16), table.u8(info + flags_at))
        else {
            break;
        };
        if end <= start || steps == 0 {
            continue;
        }
        let code = text.checked_add(start.into())?..text.checked_add(end.into())?;
        let steps = pctab.checked_add(steps as usize)?;
        let Some(distances) = distances(table, steps, &code, quantum, &mut budget) else {
            continue;
        };
        let name = names.checked_add(name as usize).and_then(|name| {
            let bytes = table.data().get(name..)?;
            let bytes = &bytes[..bytes.len().min(LONGEST_NAME)];
            bytes.split(|byte| *byte == 0).next()
        });
        functions.push(Function {
            code,
            flags,
            begins_stack: flags & TOP_FRAME != 0 || name.is_some_and(|name| name.starts_with(b"_rt0_")),
            is_injected: matches!(name, Some(b"runtime.sigpanic" | b"runtime.asyncPreempt")),
            distances,
        });
    }
    Some(functions)
}

/// The longest name of which the start is looked at.
const LONGEST_NAME: usize = 64;

/// Pairs of a zigzag-encoded change of the value and a step of the pc, up to a change of 0.
fn distances(
    table: Bytes<'_>,
    at: usize,
    code: &Range<u64>,
    quantum: u64,
    budget: &mut usize,
) -> Option<Vec<(u64, i64)>> {
    let mut cursor = table.cursor(at);
    let (mut pc, mut distance) = (code.start, -1i64);
    let mut distances = Vec::new();
    while pc < code.end {
        let change = cursor.uleb128().ok()?;
        if change == 0 && pc > code.start {
            break;
        }
        distance = match change % 2 {
            0 => distance.checked_add((change / 2).cast_signed())?,
            _ => distance.checked_sub((change / 2).cast_signed())?.checked_sub(1)?,
        };
        pc = pc.checked_add(cursor.uleb128().ok()?.checked_mul(quantum)?)?;
        distances.push((pc.min(code.end), distance));
        *budget = budget.checked_sub(1)?;
    }
    Some(distances)
}

impl Function {
    /// The distance at `pc`, and the end of the code for which it holds.
    fn distance(&self, pc: u64) -> Option<(i64, u64)> {
        let after = self.distances.partition_point(|(end, _)| *end <= pc);
        self.distances.get(after).map(|(end, distance)| (*distance, *end))
    }

    /// Whether the function's own instructions, and nothing in the table, show its frame: it loads
    /// the stack pointer of another stack.
    fn is_beyond_the_table(&self) -> bool {
        self.flags & SP_WRITE != 0
    }
}

impl Walk<'_> {
    /// Compares the functions of Go with the table.
    pub(super) fn go(&mut self, functions: &[Function]) {
        for function in functions {
            self.report.pcs += function.code.end - function.code.start;
            self.frame = function.code.start;
            if self.steps == 0 {
                self.report.gave_up_at.get_or_insert(function.code.start);
                return;
            }
            self.go_function(function);
        }
    }

    fn go_function(&mut self, function: &Function) {
        let mut pc = function.code.start;
        let mut index = self.table.after(pc);
        while pc < function.code.end && self.steps > 0 {
            self.steps -= 1;
            let Some((range, _)) = self.table.functions.get(index).cloned() else {
                self.uncovered(pc..function.code.end);
                return;
            };
            if range.start > pc {
                let end = range.start.min(function.code.end);
                self.uncovered(pc..end);
                pc = end;
                continue;
            }
            let open = self.table.open(index, &mut self.steps);
            let signal_frame = open.signal_frame;
            let (row, next) = open.row_at(pc);
            let mut end = next
                .map_or(range.end, |next| next.min(range.end))
                .min(function.code.end);
            match row {
                Some(row) => {
                    let distance = function.distance(pc);
                    end = distance.map_or(end, |(_, until)| end.min(until));
                    self.go_row(
                        function,
                        &row,
                        signal_frame,
                        distance.map(|(distance, _)| distance),
                        pc..end,
                    );
                }
                None => self.uncovered(pc..end),
            }
            pc = end;
            if pc >= range.end {
                index += 1;
            }
        }
        if pc < function.code.end {
            self.report.gave_up_at.get_or_insert(pc);
        }
    }

    fn go_row(&mut self, function: &Function, row: &Row, signal_frame: bool, distance: Option<i64>, code: Range<u64>) {
        let Some(rule) = row.rule else {
            if !function.begins_stack {
                let said = text::of_rule(self.arch, None, What::Ra, false);
                self.mismatch(
                    function.code.start,
                    code,
                    What::Ra,
                    said,
                    "a caller, by .gopclntab".into(),
                );
            }
            return;
        };
        // The code to which signal handlers return has its frame where the kernel put it.
        if function.is_beyond_the_table() || signal_frame && rule.cfa.deref {
            return;
        }
        let Some(distance) = distance else {
            // Only the first function of a stack has no distances.
            return;
        };
        let machine = Machine {
            arch: self.arch,
            seed: SEEDS[0],
        };
        let expected = Expected::of(self.arch, distance, function.is_injected);
        let ours = machine.by_rule(&rule, None);
        // Assembly with a frame may be left by its frame pointer.
        let by_fp = rule.cfa.base == Base::Register(self.arch.fp.0) && function.flags & ASSEMBLY != 0 && distance > 0;
        let sp = machine.register(self.arch.sp.0.into());
        let cfa = sp.wrapping_add(expected.cfa.cast_unsigned());
        if ours.cfa_by_sp != cfa && !by_fp {
            let said = text::of_rule(self.arch, Some(&rule), What::Cfa, false);
            let go = format!("sp{:+} by .gopclntab", expected.cfa);
            self.mismatch(function.code.start, code.clone(), What::Cfa, said, go);
        }
        let ra = match expected.ra {
            Some(offset) => machine.memory(ours.cfa.wrapping_add(offset.cast_unsigned())),
            None => machine.register(self.arch.ra.0.into()),
        };
        if ours.ra != Ra::Is(ra) {
            let said = text::of_rule(self.arch, Some(&rule), What::Ra, false);
            let go = expected
                .ra
                .map_or("in its register".into(), |offset| format!("*(CFA{offset:+})"));
            self.mismatch(function.code.start, code, What::Ra, said, go);
        }
    }
}

/// What a distance says.
struct Expected {
    /// Bytes from the stack pointer to the CFA.
    cfa: i64,
    /// Bytes from the CFA to the return address; `None` if it is in its register.
    ra: Option<i64>,
}

impl Expected {
    fn of(arch: &Arch, distance: i64, is_injected: bool) -> Expected {
        let word = i64::from(arch.pointer_bytes);
        let pushed = match arch.cpu {
            // The link register, and on AArch64 a word that keeps the stack aligned.
            Cpu::Aarch64 if is_injected => 16,
            Cpu::S390x if is_injected => 8,
            _ => 0,
        };
        if !arch.link_register {
            return Expected {
                cfa: distance.saturating_add(word),
                ra: Some(-word),
            };
        }
        Expected {
            cfa: distance.saturating_add(pushed),
            // A function with a frame keeps the link register at the frame's lowest address.
            ra: (distance > 0).then(|| distance.saturating_add(pushed).saturating_neg()),
        }
    }
}
