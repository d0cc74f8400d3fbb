//! The facts that the code of Go's functions adds to `.gopclntab`: where the frame pointer is, and
//! how to leave the runtime's functions that switch stacks; on AArch64 mostly only that their
//! callers are on another stack.
//!
//! Compiled functions with a frame save the caller's frame pointer just below the return address
//! and point their own frame pointer there (`cmd/internal/obj/x86/obj6.go`), so that their frames
//! are linked. Still rows count from the stack pointer: while the runtime moves a stack, its frames
//! are where the stack pointer says, and some frame pointers still lead to the old stack. The
//! instructions that set the frame pointer are at the place where the table moves the stack
//! pointer. In assembly it may be used for anything later, which is a row of another form.
//!
//! `runtime.systemstack`, `asmcgocall`, `cgocallback` and `mcall` load the stack pointer of another
//! stack. From Go 1.21 on the frame pointer of the first three keeps its value, and leads back;
//! before, the first two have no frame, and nothing in the thread's own stack leads back. Nothing
//! ever does after `mcall`: nothing returns there, but the goroutine that called it may still be
//! the thread's (see `goroutine` in the crate that unwinds).

use std::ops::Range;

use backtrail_arch::Cpu;
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};
use backtrail_unwind::goroutine::ELSEWHERE_ON_AARCH64;

use crate::a64;
use crate::code::{self, Convention, Input};
use crate::eh_frame::{self, Converted};
use crate::gopclntab::{self, Distance, Function};
use crate::linked::may_change;
use crate::signal;
use crate::undescribed::not_described;

/// `abi.FuncFlagSPWrite`: the function sets the stack pointer to a value that no table contains.
const SP_WRITE: u8 = 2;
/// `abi.FuncFlagAsm`: the function is hand-written, and may use the frame pointer for anything.
const ASSEMBLY: u8 = 4;

/// DWARF numbers (System V AMD64 ABI, figure 3.36).
const RBP: u8 = 6;
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

/// A frame from which nothing in the sampled stack leads back: its rule needs a register that is
/// never known. Without a row, its instructions would be read, and they do not show the other
/// stack.
pub(crate) const LOST: Rule = Rule::new(Location::register(RETURN_ADDRESS, 0), Location::saved(-8));

/// Bytes from the return address to the CFA.
const WORD: i32 = 8;

/// Functions that a signal enters: their return address does not follow a call, but is the place of
/// the interruption.
const INJECTED: [&str; 2] = ["runtime.asyncPreempt", "runtime.sigpanic"];

/// Adds the functions of `.gopclntab`. They replace those of call frame information such as
/// `.debug_frame`, which describes neither the frame pointer nor switches between stacks.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    let functions = functions(image).unwrap_or_default();
    if !functions.is_empty() {
        let functions = not_described(functions, &[], &image.code_ranges());
        let ends = functions
            .iter()
            .map(|function| (function.start, eh_frame::end_of(function)));
        let own: Vec<(u64, u64)> = ends.collect();
        converted.functions.retain(|function| {
            let before = own.partition_point(|(start, _)| *start < eh_frame::end_of(function));
            own[..before].last().is_none_or(|(_, end)| *end <= function.start)
        });
        converted.functions.extend(functions);
        converted.functions.sort_by_key(|function| function.start);
    }
}

/// The rows of the functions of `.gopclntab`; `None` if the section is missing or invalid.
fn functions(image: &Image<'_>) -> Option<Vec<FunctionRows>> {
    let functions = gopclntab::functions(image)?;
    Some(match image.arch().cpu {
        Cpu::X86_64 => refine(functions, image),
        Cpu::Aarch64 => functions
            .into_iter()
            .map(|function| {
                let code = bytes(image, &function).unwrap_or_default();
                on_aarch64(function, code)
            })
            .collect(),
        Cpu::S390x => functions
            .into_iter()
            .map(|function| match INJECTED.contains(&function.name.as_str()) {
                true => injected(function.into_rows(), 8),
                false => function.into_rows(),
            })
            .collect(),
    })
}

/// AArch64's rows, from the table alone, except for code that the table describes as the runtime
/// wants its own traces to end.
fn on_aarch64(function: Function, code: &[u8]) -> FunctionRows {
    if function.name == "runtime.sigtramp" && !function.distances.is_empty() {
        // The first of its stack, but the signal came from another one.
        return function.into_rows_of_called();
    }
    if INJECTED.contains(&function.name.as_str()) {
        return injected(function.into_rows(), 16);
    }
    let switches = function.flags & SP_WRITE != 0 && !function.is_first();
    let mut rows = function.into_rows();
    if switches && !count_from_copy(&mut rows, code) {
        let switch = a64::words(code).position(|word| a64::is_call(word) || sets_sp(word));
        if let Some(switch) = switch {
            leave_from(4 * (switch as u32 + 1), &mut rows);
        }
    }
    rows
}

/// The functions that read the clock keep their stack pointer in a register that C preserves, and
/// call C on another stack: between these instructions, rows count from that register. Returns
/// whether this is such a function.
fn count_from_copy(rows: &mut FunctionRows, code: &[u8]) -> bool {
    const PRESERVED: Range<u32> = 19..29;
    let words: Vec<u32> = a64::words(code).collect();
    let copies = |word: u32| {
        let add = a64::addition(word).filter(|add| add.from == a64::SP && add.bytes == 0)?;
        PRESERVED.contains(&add.to).then_some(add.to)
    };
    let mut copied = (0..).zip(&words).filter_map(|(at, word)| Some((at, copies(*word)?)));
    let (Some((copy, register)), None) = (copied.next(), copied.next()) else {
        return false;
    };
    let restores =
        |word: u32| sets_sp(word) && a64::addition(word).is_some_and(|add| (add.from, add.bytes) == (register, 0));
    let Some(restore) = words.iter().position(|word| restores(*word)) else {
        return false;
    };
    let is_other = |at: usize| {
        sets_sp(words[at]) && !(copy..=restore).contains(&at) || at != copy && may_change(words[at], register as u8)
    };
    if restore < copy || (0..words.len()).any(is_other) {
        return false;
    }
    let (start, end) = (4 * (copy as u32 + 1), 4 * (restore as u32 + 1));
    let last = rows.rows.partition_point(|row| row.start <= start);
    // Meanwhile the table moves nothing.
    let Some(Row { rule: Some(rule), .. }) = last.checked_sub(1).and_then(|last| rows.rows.get(last)).copied() else {
        return false;
    };
    if rows.rows.get(last).is_some_and(|next| next.start < end) || rule.ra.base != Base::Cfa {
        return false;
    }
    let by_copy = Rule {
        cfa: Location::register(register as u8, rule.cfa.offset),
        ..rule
    };
    let away = [(start, by_copy), (end, rule)];
    let away = away.map(|(start, rule)| Row {
        start,
        rule: Some(rule),
    });
    rows.rows.splice(last..last, away);
    rows.rows.dedup_by_key(|row| row.start);
    true
}

/// What a signal enters as if it were called at the place of the interruption: the link register
/// has that place, and its old value is in a word of its own, on AArch64 with another to align the
/// stack: `pushed` bytes.
fn injected(mut rows: FunctionRows, pushed: i32) -> FunctionRows {
    rows.signal_frame = true;
    for rule in rows.rows.iter_mut().filter_map(|row| row.rule.as_mut()) {
        rule.cfa.offset = rule.cfa.offset.saturating_add(pushed);
        if rule.ra.base == Base::Cfa {
            rule.ra.offset = rule.ra.offset.saturating_sub(pushed);
        }
    }
    rows
}

/// `mov sp, x…`, and additions to other registers.
fn sets_sp(word: u32) -> bool {
    a64::addition(word).is_some_and(|add| add.to == a64::SP && add.from != a64::SP)
}

/// A function that switches stacks mostly calls `save_g` before it does, or what saves the
/// goroutine's position; from then on the link register is that call's, and `systemstack` writes a
/// return address into `mstart` for the runtime's own traces.
fn leave_from(switch: u32, rows: &mut FunctionRows) {
    let elsewhere = Rule::new(Location::register(ELSEWHERE_ON_AARCH64.0, 0), Location::saved(-8));
    rows.rows.retain(|row| row.start < switch);
    rows.rows.push(Row {
        start: switch,
        rule: Some(elsewhere),
    });
}

/// The rows of all functions, which must be in order.
fn refine(functions: Vec<Function>, image: &Image<'_>) -> Vec<FunctionRows> {
    let mut rows: Vec<FunctionRows> = Vec::with_capacity(functions.len());
    for function in functions {
        let Some(bytes) = bytes(image, &function) else {
            rows.push(function.into_rows());
            continue;
        };
        match function.name.as_str() {
            // The table marks it as the first of its stack, but the signal came from another stack.
            "runtime.sigtramp" => rows.push(framed(&function, bytes)),
            name if name.starts_with("runtime.sigreturn") && signal::restores(bytes) => {
                let restorer = restorer(image, &function, rows.last_mut());
                rows.extend(restorer);
            }
            _ if function.is_first() => rows.push(function.into_rows()),
            // The program's entry point, and the target of its jump; libraries have one that is
            // called.
            name if name.starts_with("_rt0_") && !name.ends_with("_lib") => rows.push(outermost(&function)),
            name if INJECTED.contains(&name) => rows.push(FunctionRows {
                signal_frame: true,
                ..framed(&function, bytes)
            }),
            _ if function.flags & SP_WRITE != 0 => rows.push(switching(&function, bytes)),
            _ => rows.push(framed(&function, bytes)),
        }
    }
    rows
}

fn bytes<'a>(image: &Image<'a>, function: &Function) -> Option<&'a [u8]> {
    image
        .data_in(function.start..function.start.saturating_add(function.size.into()))?
        .get(..function.size as usize)
}

/// The rows of a function whose stack pointer the compiler or the assembler manages.
fn framed(function: &Function, code: &[u8]) -> FunctionRows {
    let mut rows = Vec::with_capacity(function.distances.len() + 2);
    let mut frame: Option<Frame> = None;
    for (index, distance) in function.distances.iter().enumerate() {
        let end = function.distances.get(index + 1).map_or(function.size, |next| next.pc);
        let pc = distance.pc;
        if distance.bytes == 0 {
            rows.push((pc, by_sp(distance.bytes, None)));
            continue;
        }
        let Some(known) = frame else {
            frame = Frame::find(code, *distance).map(|found| found.kept_in(function, code));
            let Some(found) = frame else {
                rows.push((pc, by_sp(distance.bytes, None)));
                continue;
            };
            if found.saved > pc {
                rows.push((pc, by_sp(distance.bytes, None)));
            }
            rows.push((found.saved, by_sp(distance.bytes, Some(Location::saved(-16)))));
            found.body(function, found.points..end, distance.bytes, &mut rows);
            continue;
        };
        known.body(function, pc..end, distance.bytes, &mut rows);
    }
    rows.retain(|(pc, _)| *pc < function.size);
    // The table may move the stack pointer within the instructions that make the frame.
    rows.sort_by_key(|(pc, _)| *pc);
    rows.dedup_by(|next, before| next.0 == before.0 || next.1 == before.1);
    let rows = rows.into_iter().map(|(start, rule)| Row {
        start,
        rule: Some(rule),
    });
    FunctionRows::new(function.start, function.size, rows.collect())
}

fn outermost(function: &Function) -> FunctionRows {
    FunctionRows::new(function.start, function.size, vec![Row { start: 0, rule: None }])
}

fn by_sp(distance: i32, fp: Option<Location>) -> Rule {
    Rule {
        fp,
        ..Rule::new(
            Location::register(RSP, distance.saturating_add(WORD)),
            Location::saved(-8),
        )
    }
}

fn by_fp() -> Rule {
    Rule {
        fp: Some(Location::saved(-16)),
        ..Rule::new(Location::register(RBP, 16), Location::saved(-8))
    }
}

/// How a function makes its frame, as offsets in its code.
#[derive(Clone, Copy)]
struct Frame {
    /// From here on the caller's frame pointer is saved below the return address.
    saved: u32,
    /// From here on the frame pointer points to that slot.
    points: u32,
    /// In assembly, the frame pointer is not changed up to here.
    kept: u32,
}

impl Frame {
    /// Finds the instructions that make the frame, around the place from which the stack pointer is
    /// at `distance`: `push rbp; mov rbp, rsp`, or up to Go 1.20 `sub rsp, N; mov [rsp+N-8], rbp;
    /// lea rbp, [rsp+N-8]`.
    fn find(code: &[u8], distance: Distance) -> Option<Frame> {
        let (before, after) = code.split_at_checked(distance.pc as usize)?;
        if distance.bytes == WORD && before.ends_with(&[0x55]) && after.starts_with(&[0x48, 0x89, 0xe5]) {
            return Some(Frame {
                saved: distance.pc,
                points: distance.pc + 3,
                kept: 0,
            });
        }
        let slot = distance.bytes.checked_sub(WORD)?;
        let store = at_sp(0x89, slot);
        let point = at_sp(0x8d, slot);
        let saved = after.strip_prefix(store.as_slice())?;
        saved.starts_with(&point).then_some(Frame {
            saved: distance.pc + store.len() as u32,
            points: distance.pc + (store.len() + point.len()) as u32,
            kept: 0,
        })
    }

    fn kept_in(self, function: &Function, code: &[u8]) -> Frame {
        let kept = match function.flags & ASSEMBLY {
            0 => function.size,
            _ => code::keeps_fp_until(0..code.len() as u64, code, self.points.into()) as u32,
        };
        Frame { kept, ..self }
    }

    /// The rows of code in which the stack pointer stays at `distance`.
    fn body(&self, function: &Function, range: Range<u32>, distance: i32, rows: &mut Vec<(u32, Rule)>) {
        let on_stack = by_sp(distance, Some(Location::saved(-16)));
        if function.flags & ASSEMBLY == 0 {
            rows.push((range.start, on_stack));
            return;
        }
        if range.start < self.kept {
            rows.push((range.start, by_fp()));
        }
        if self.kept < range.end {
            let unlinked = Location {
                base: Base::Register(RSP),
                offset: distance.saturating_sub(WORD),
                deref: true,
            };
            rows.push((range.start.max(self.kept), by_sp(distance, Some(unlinked))));
        }
    }
}

/// Encodes an instruction with this opcode on `rbp` and the word at `rsp` plus `offset`.
fn at_sp(opcode: u8, offset: i32) -> Vec<u8> {
    let mut bytes = vec![0x48, opcode];
    match i8::try_from(offset) {
        Ok(offset) => bytes.extend([0x6c, 0x24, offset.cast_unsigned()]),
        Err(_) => {
            bytes.extend([0xac, 0x24]);
            bytes.extend(offset.to_le_bytes());
        }
    }
    bytes
}

/// The rows of the code to which signal handlers return. They begin one byte earlier: callers are
/// looked up by the byte before the return address.
fn restorer(image: &Image<'_>, function: &Function, before: Option<&mut FunctionRows>) -> Option<FunctionRows> {
    let start = function.start.checked_sub(1)?;
    if let Some(before) = before
        && eh_frame::end_of(before) == function.start
    {
        before.size -= 1;
        before.rows.retain(|row| row.start < before.size);
    }
    signal::rows(image.arch(), start, function.size.checked_add(1)?)
}

/// The rows of a function that switches stacks, from its instructions.
fn switching(function: &Function, bytes: &[u8]) -> FunctionRows {
    let end = function.start + u64::from(function.size);
    let known = code::rows(&Input {
        range: function.start..end,
        bytes,
        entries: &[function.start],
        convention: Convention::Go,
    });
    let elsewhere = Some(LOST);
    let mut rows = Vec::new();
    let mut reached = function.start;
    for piece in &known {
        if reached < piece.start {
            rows.push(((reached - function.start) as u32, elsewhere));
        }
        let offset = (piece.start - function.start) as u32;
        rows.extend(piece.rows.iter().map(|row| (offset + row.start, row.rule)));
        reached = eh_frame::end_of(piece);
    }
    if reached < end {
        rows.push(((reached - function.start) as u32, elsewhere));
    }
    rows.dedup_by(|next, before| next.1 == before.1);
    let rows = rows.into_iter().map(|(start, rule)| Row { start, rule });
    FunctionRows::new(function.start, function.size, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    fn function(code: &[u8], distances: &[(u32, i32)], flags: u8) -> Function {
        let distances = distances.iter().map(|&(pc, bytes)| Distance { pc, bytes });
        Function {
            start: 0x1000,
            size: code.len() as u32,
            distances: distances.collect(),
            flags,
            name: "main.work".to_owned(),
            arch: &ARCH,
        }
    }

    fn shape(code: &[u8], distances: &[(u32, i32)], flags: u8) -> Vec<(u32, Option<Rule>)> {
        let rows = framed(&function(code, distances, flags), code).rows;
        rows.into_iter().map(|row| (row.start, row.rule)).collect()
    }

    const SAVED: Option<Location> = Some(Location::saved(-16));

    #[test]
    fn on_aarch64_the_caller_is_lost_at_the_first_call_of_a_switch_or_at_the_switch() {
        // stp x29, x30, [sp, #-16]!; nop; bl; mov sp, x3; blr x3
        let code = [0xa9bf_7bfdu32, 0xd503_201f, 0x9400_0010, 0x9100_007f, 0xd63f_0060];
        let without = [code[0], code[1], code[3], code[4]].map(u32::to_le_bytes).concat();
        let with_call = code.map(u32::to_le_bytes).concat();
        let starts = |code: &[u8], distances: &[(u32, i32)]| {
            let mut function = function(code, distances, SP_WRITE);
            function.arch = &backtrail_arch::aarch64::ARCH;
            let rows = on_aarch64(function, code).rows.into_iter();
            let is_elsewhere = |rule: Rule| rule.cfa.base == Base::Register(ELSEWHERE_ON_AARCH64.0);
            rows.map(|row| (row.start, row.rule.is_some_and(is_elsewhere)))
                .collect::<Vec<_>>()
        };
        let mut preempt = function(&with_call, &[(0, 0), (4, 496)], SP_WRITE);
        preempt.arch = &backtrail_arch::aarch64::ARCH;
        preempt.name = INJECTED[0].to_owned();
        let rows = on_aarch64(preempt, &with_call);
        let interrupted = Rule::new(Location::register(31, 512), Location::saved(-512));
        assert!(rows.signal_frame && rows.rows.len() == 2 && rows.rows[1].rule == Some(interrupted));
        let framed = [(0, 0), (4, 16)];
        assert_eq!(starts(&with_call, &[(0, 0)]), [(0, false), (12, true)]);
        assert_eq!(starts(&with_call, &framed), [(0, false), (4, false), (12, true)]);
        assert_eq!(starts(&without, &framed), [(0, false), (4, false), (12, true)]);
    }

    #[test]
    fn on_aarch64_functions_that_read_the_clock_keep_their_stack_pointer() {
        // str x30, [sp, #-32]!; mov x20, sp; mov x1, sp; sub x1, x1, #32; and x1, x1, #-16;
        // mov sp, x1; blr x2; mov sp, x20; nop; ldr x30, [sp], #32; ret
        let code = [
            0xf81e_0ffe_u32,
            0x9100_03f4,
            0x9100_03e1,
            0xd100_8021,
            0x927c_ec21,
            0x9100_003f,
            0xd63f_0040,
            0x9100_029f,
            0xd503_201f,
            0xf842_07fe,
            0xd65f_03c0,
        ];
        let rows = |code: &[u32]| {
            let code = code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            let mut function = function(&code, &[(0, 0), (4, 32), (40, 0)], SP_WRITE);
            function.arch = &backtrail_arch::aarch64::ARCH;
            let rows = on_aarch64(function, &code).rows.into_iter();
            rows.map(|row| {
                (
                    row.start,
                    row.rule.map(|rule| (rule.cfa.base, rule.cfa.offset, rule.ra)),
                )
            })
            .collect::<Vec<_>>()
        };
        let saved = Location::saved(-32);
        let (by_sp, by_copy) = (Base::Register(31), Base::Register(20));
        let expected = [
            (0, Some((by_sp, 0, Location::register(30, 0)))),
            (4, Some((by_sp, 32, saved))),
            (8, Some((by_copy, 32, saved))),
            (32, Some((by_sp, 32, saved))),
            (40, Some((by_sp, 0, Location::register(30, 0)))),
        ];
        assert_eq!(rows(&code), expected);
        // mov x20, x0: the copy is gone; another stack once more; no way back.
        for (at, word) in [(6, 0xaa00_03f4), (8, 0x9100_003f), (7, 0xd503_201f)] {
            let mut other = code;
            other[at] = word;
            assert!(
                rows(&other)
                    .iter()
                    .all(|(_, rule)| rule.is_none_or(|rule| rule.0 != by_copy)),
                "{word:x}"
            );
        }
    }

    #[test]
    fn a_frame_is_left_by_the_stack_pointer_and_keeps_the_frame_pointer() {
        let code = [
            0x55, // 0: push rbp
            0x48, 0x89, 0xe5, // 1: mov rbp, rsp
            0x48, 0x83, 0xec, 0x10, // 4: sub rsp, 0x10
            0x90, // 8: nop
            0x48, 0x83, 0xc4, 0x10, // 9: add rsp, 0x10
            0x5d, // 13: pop rbp
            0xc3, // 14: ret
        ];
        let distances = [(0, 0), (1, 8), (8, 24), (13, 8), (14, 0)];
        let expected = vec![
            (0, Some(by_sp(0, None))),
            (1, Some(by_sp(8, SAVED))),
            (8, Some(by_sp(24, SAVED))),
            (13, Some(by_sp(8, SAVED))),
            (14, Some(by_sp(0, None))),
        ];
        assert_eq!(shape(&code, &distances, 0), expected);
        // Assembly may use the register for anything after it is saved.
        let by_hand = shape(&code, &distances, ASSEMBLY);
        assert_eq!(by_hand[2..], [(4, Some(by_fp())), (14, Some(by_sp(0, None)))]);
        let mut uses = code;
        uses[8] = 0x5d;
        let unlinked = Some(Location {
            base: Base::Register(RSP),
            offset: 16,
            deref: true,
        });
        assert_eq!(shape(&uses, &distances, ASSEMBLY)[3], (8, Some(by_sp(24, unlinked))));
        // Code that makes its frame in another way has rows for the stack pointer alone.
        let other = [0x90; 15];
        let rules = shape(&other, &distances, 0);
        assert!(rules.iter().all(|(_, rule)| rule.unwrap().fp.is_none()));
    }

    #[test]
    fn older_frames_are_made_in_one_step() {
        let code = [
            0x48, 0x83, 0xec, 0x20, // 0: sub rsp, 0x20
            0x48, 0x89, 0x6c, 0x24, 0x18, // 4: mov [rsp+0x18], rbp
            0x48, 0x8d, 0x6c, 0x24, 0x18, // 9: lea rbp, [rsp+0x18]
            0x90, // 14: nop
            0x48, 0x8b, 0x6c, 0x24, 0x18, // 15: mov rbp, [rsp+0x18]
            0x48, 0x83, 0xc4, 0x20, // 20: add rsp, 0x20
            0xc3, // 24: ret
        ];
        let expected = vec![
            (0, Some(by_sp(0, None))),
            (4, Some(by_sp(32, None))),
            (9, Some(by_sp(32, SAVED))),
            (24, Some(by_sp(0, None))),
        ];
        assert_eq!(shape(&code, &[(0, 0), (4, 32), (24, 0)], 0), expected);
    }

    #[test]
    fn any_code_and_table_give_rows_in_order() {
        let pieces: [&[u8]; 6] = [
            &[0x55, 0x48, 0x89, 0xe5],
            &[
                0x48, 0x83, 0xec, 0x20, 0x48, 0x89, 0x6c, 0x24, 0x18, 0x48, 0x8d, 0x6c, 0x24, 0x18,
            ],
            &[0x48, 0x89, 0x6c, 0x24, 0xf0, 0x48, 0x8d, 0x6c, 0x24, 0xf0],
            &[0x48, 0x8b, 0x6c, 0x24, 0x18, 0x48, 0x83, 0xc4, 0x20],
            &[0x5d, 0xc3],
            &[0x90],
        ];
        let mut state = 0x1357_9bdf_u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..5000 {
            let code: Vec<u8> = (0..random(8))
                .flat_map(|_| pieces[random(6) as usize].to_vec())
                .collect();
            let (mut pc, mut distances) = (0, Vec::new());
            while (pc as usize) < code.len() {
                distances.push((pc, [0, 8, 24, 32, 40][random(5) as usize]));
                pc += 1 + random(12);
            }
            for flags in [0, ASSEMBLY] {
                let rows = shape(&code, &distances, flags);
                assert!(rows.is_sorted_by(|one, next| one.0 < next.0), "{code:x?} {distances:?}");
                assert!(rows.iter().all(|(pc, _)| (*pc as usize) < code.len()));
            }
        }
    }
}
