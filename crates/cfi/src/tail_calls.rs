//! Which functions the call of another one may have led to: tail calls leave no frames.

use std::cell::RefCell;
use std::ops::Range;

use backtrail_arch::Cpu;

use crate::around::{CodeAround, LONGEST_FUNCTION, read};
use crate::process_code::{ProcessCode, word};
use crate::{haskell, instructions, records};

/// Functions that are followed from tail call to tail call.
const MOST_TAIL_CALLS: usize = 8;

/// Bytes after rows that were read from instructions within which a jump may still belong to the
/// same function.
const MOST_BEHIND_ROWS: u64 = 4 << 10;

/// The function at an address: from call frame information, or from the table of a file that has
/// none. Tables may also contain parts of functions that nothing else describes.
pub(crate) fn function_at(process: &impl ProcessCode, address: u64) -> Option<Range<u64>> {
    let mapping = process.find(address)?;
    match process.has_call_frames(mapping) {
        true => process.described_function(mapping, address),
        false => process.function_at(mapping, address),
    }
}

/// Whether a call of `target` may have led to `callee`, which no table row describes. If call frame
/// information describes `target` and `callee` is outside it, `target` has itself made a call, and
/// its own frame is missing.
pub(crate) fn may_lead_to(process: &impl ProcessCode, target: u64, callee: u64) -> bool {
    let Some(mapping) = process.find(target) else {
        return false;
    };
    let callee_mapping = process.find(callee);
    // Another module is reached by a linkage stub, whose callee is not visible here.
    let is_elsewhere =
        callee_mapping.is_some_and(|callee| !process.is_same_file(callee, mapping) && process.has_table(callee));
    let is_other = |function: &Range<u64>| function.start == target && !function.contains(&callee);
    let Some(function) = function_at(process, target).filter(is_other) else {
        let is_described = process.is_described(mapping, target);
        let rows = process.function_at(mapping, target);
        // Rows that were read from instructions end at the first one that was not understood: the
        // function may be longer, and jump from there.
        return rows.filter(|rows| !is_described && is_other(rows)).is_none_or(|rows| {
            let is_near = |start: u64| callee.wrapping_sub(start) < LONGEST_FUNCTION;
            let end = rows
                .end
                .saturating_add(MOST_BEHIND_ROWS)
                .min(process.range(mapping).end);
            is_elsewhere
                || is_near(target)
                || jumps(process, target..end, is_near)
                || jumps_anywhere(process, target..end)
                || leads_through(process, target, callee)
        });
    };
    let callee_function = function_at(process, callee);
    // The description may end before the function does: that of glibc's `clone3` ends at the system
    // call.
    let goes_on = || {
        callee_mapping.is_some_and(|mapping| {
            let around = CodeAround::new(process, mapping, callee);
            instructions::is_at_entry(process.arch(), &around.code(), function.start, callee)
        })
    };
    let is_callee = |target| match &callee_function {
        Some(callee) => callee.contains(&target),
        // The start of the callee is not known, but a jump into code that is not described may lead
        // there.
        None => process.find(target).is_some() && function_at(process, target).is_none(),
    };
    let leaves = || jumps(process, function.clone(), |target| !function.contains(&target));
    is_elsewhere && leaves()
        || callee_function.is_none() && (goes_on() || haskell::is_run(process, target))
        || jumps(process, function.clone(), is_callee)
        || callee_function.is_some()
            && jumps(process, function.clone(), |target| {
                entered(process, target)
                    .filter(|next| *next != function)
                    .is_some_and(|next| jumps(process, next, is_callee))
            })
        // Last: these decode whole functions.
        || jumps_anywhere(process, function)
        || leads_through(process, target, callee)
}

/// The function that a jump to `target` enters, if that is where functions are entered: assembly
/// that chooses between variants jumps past the first instructions, which it has run itself.
fn entered(process: &impl ProcessCode, target: u64) -> Option<Range<u64>> {
    const FIRST: u64 = 16;
    process.find(target)?;
    function_at(process, target).filter(|function| target - function.start < FIRST)
}

/// Whether tail calls from function to function lead from `target` to the one with the code at
/// `callee`, or to one that makes an indirect tail call.
fn leads_through(process: &impl ProcessCode, target: u64, callee: u64) -> bool {
    let entered = |address: u64| whole_function(process, address).filter(|function| function.start == address);
    let callee_function = whole_function(process, callee);
    let is_callee = |address: u64| match &callee_function {
        Some(function) => function.contains(&address),
        None => callee.wrapping_sub(address) < LONGEST_FUNCTION,
    };
    let found = RefCell::new(vec![target]);
    for number in 0..MOST_TAIL_CALLS {
        let Some(from) = found.borrow().get(number).copied() else {
            return false;
        };
        let Some(function) = entered(from) else { continue };
        let leads_there = jumps(process, function.clone(), |to| {
            let mut found = found.borrow_mut();
            if !function.contains(&to) && !found.contains(&to) {
                found.push(to);
            }
            number > 0 && is_callee(to)
        });
        // Rows that were read from instructions may end before the function does.
        let is_described = function_at(process, from).is_some();
        let behind = if is_described { 0 } else { MOST_BEHIND_ROWS };
        let whole = from..function.end.saturating_add(behind);
        if leads_there || number > 0 && jumps_anywhere(process, whole) {
            return true;
        }
    }
    false
}

/// The function at an address: from call frame information, or else from the table.
fn whole_function(process: &impl ProcessCode, address: u64) -> Option<Range<u64>> {
    let mapping = process.find(address)?;
    process
        .described_function(mapping, address)
        .or_else(|| process.function_at(mapping, address))
}

/// Whether the function, which may end earlier, makes an indirect tail call, as of a virtual
/// method: it may lead to any function.
fn jumps_anywhere(process: &impl ProcessCode, function: Range<u64>) -> bool {
    let start = function.start;
    let bytes = read(process, start..function.end.min(start.saturating_add(LONGEST_FUNCTION)));
    let code = instructions::Code {
        bytes: &bytes,
        start,
        functions: &[],
    };
    instructions::makes_indirect_tail_call(process.arch(), &code, start)
}

/// The address to which a linkage stub of x86-64 at `at` jumps: `jmp [rip + n]`, perhaps after
/// `endbr64` and with a prefix.
pub fn stub_target(process: &impl ProcessCode, at: u64) -> Option<u64> {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let mut bytes = [0; 11];
    let read = process.read(at, &mut bytes);
    let begun = bytes.get(..read).filter(|_| process.arch().cpu == Cpu::X86_64)?;
    let jump = begun.strip_prefix(&ENDBR).unwrap_or(begun);
    let jump = jump.strip_prefix(&[0xf2]).unwrap_or(jump);
    let distance = jump.strip_prefix(&[0xff, 0x25])?.first_chunk::<4>()?;
    let end = at.wrapping_add((begun.len() - jump.len()) as u64 + 6);
    word(process, end.wrapping_add_signed(i32::from_le_bytes(*distance).into()))
}

/// Whether a jump in the function leads to a target that `is_it` accepts: a tail call of it.
pub(crate) fn jumps(process: &impl ProcessCode, function: Range<u64>, is_it: impl Fn(u64) -> bool) -> bool {
    const LONGEST: u64 = 1 << 16;
    let size = function.end.saturating_sub(function.start);
    if size > LONGEST {
        return false;
    }
    let start = function.start;
    let code = read(process, function);
    match process.arch().cpu {
        Cpu::X86_64 => {}
        Cpu::Aarch64 => return records::jumps(&code, start).any(is_it),
        Cpu::S390x => return false,
    }
    let leads = |at: usize, distance: &[u8]| {
        let end = start.wrapping_add((at + distance.len()) as u64);
        let distance = distance.try_into().map(i32::from_le_bytes);
        distance.is_ok_and(|distance| is_it(end.wrapping_add_signed(distance.into())))
    };
    // `jmp rel32` and the conditional jumps.
    code.windows(6).enumerate().any(|(at, bytes)| match bytes {
        [0x0f, 0x80..=0x8f, distance @ ..] => leads(at + 2, distance) && begins_instruction(&code, at),
        _ => false,
    }) || code.windows(5).enumerate().any(|(at, bytes)| match bytes {
        [0xe9, distance @ ..] => leads(at + 1, distance) && begins_instruction(&code, at),
        _ => false,
    })
}

/// Whether an instruction begins at `offset` of code that begins with one: the bytes of a jump
/// occur inside of others, too.
fn begins_instruction(code: &[u8], offset: usize) -> bool {
    let code = instructions::Code {
        bytes: code,
        start: 0,
        functions: &[],
    };
    let mut at = 0;
    while at < offset as u64 {
        match code.instruction(at) {
            Some(instruction) => at = instruction.next_ip(),
            None => return false,
        }
    }
    at == offset as u64
}
