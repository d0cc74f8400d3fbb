//! The outermost frames that call frame information does not describe, or describes wrongly.
//!
//! A stack begins in code from which nothing returns: it was entered by a jump, or by a return to
//! an address that no call has pushed. Hand-written code of that kind seldom says so.
//! [`Arch::outermost_code`] and [`Arch::is_start_context`] know it.

use backtrail_arch::{Arch, Cpu, Pattern, starts_with, x86_64};

use backtrail_elf::Image;
use backtrail_sframe::Row;
use backtrail_sframe::write::FunctionRows;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use memchr::memmem;

use crate::eh_frame::{self, Converted};
use crate::prologue::{INT3, branch_target};
use crate::undescribed::{self, code, described, holes};

const NOP: u8 = 0x90;

/// What files are searched for: `push rbp; jmp rbx`, and `syscall; hlt`.
const SOUGHT: [&[u8]; 2] = [&[0x55, 0xff, 0xe3], &[0x0f, 0x05, 0xf4]];

/// Marks the outermost frames. Functions that are entered by a return to their first byte start one
/// byte earlier, in the padding before: callers are looked up by the byte before the return
/// address.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    for function in &mut converted.functions {
        if is_misdescribed(image, function.start) {
            function.rows = vec![OUTERMOST];
        }
    }
    if image.arch().cpu != Cpu::X86_64 {
        return;
    }
    let known = described(converted);
    let holes = code(image).into_iter().flat_map(|range| holes(&known, range));
    let found: Vec<FunctionRows> = holes
        .filter_map(|hole| {
            Some((
                hole.start,
                image.data_in(hole.clone())?.get(..(hole.end - hole.start) as usize)?,
            ))
        })
        .flat_map(|(start, code)| in_hole(start, code))
        .collect();
    undescribed::add(converted, found, &known, image);
    reach_back(converted, image);
}

/// The end of the entry point's code if nothing else describes it: after the first instruction that
/// does not continue, at a function that it calls, or after `most` bytes.
pub(crate) fn end_of_entry(image: &Image<'_>, entry: u64, most: u64) -> Option<u64> {
    if image.arch().cpu != Cpu::X86_64 {
        return None;
    }
    let code = image.data_in(entry..entry.saturating_add(most))?;
    Some(end_of_code(code, entry))
}

fn end_of_code(code: &[u8], start: u64) -> u64 {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut end = start.saturating_add(code.len() as u64);
    // Branches may skip an instruction that does not continue.
    let mut reached = start;
    while decoder.can_decode() && decoder.ip() < end {
        let instruction = decoder.decode();
        let target = branch_target(&instruction);
        let ends_thread = instruction.mnemonic() == Mnemonic::Hlt;
        match (instruction.flow_control(), target) {
            (FlowControl::Call, Some(target)) if target > start => end = end.min(target),
            (FlowControl::ConditionalBranch, Some(target)) => reached = reached.max(target),
            (FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall, _) if !ends_thread => {}
            _ if instruction.mnemonic() == Mnemonic::Syscall => {}
            _ if instruction.next_ip() > reached => return end.min(instruction.next_ip()),
            _ => {}
        }
    }
    end
}

/// Whether the code before a return address is where the kernel enters a program: it clears the
/// frame pointer and aligns the stack, right before its only call (System V ABI, AMD64 supplement,
/// section 3.4.1). For programs that were unpacked into memory, which is no file.
pub(crate) fn is_entry(before: &[u8]) -> bool {
    /// Bytes of such code.
    const LONGEST: usize = 64;
    /// `xor ebp, ebp`.
    const CLEARS: [u8; 2] = [0x31, 0xed];
    /// `and rsp, -16`.
    const ALIGNS: [u8; 4] = [0x48, 0x83, 0xe4, 0xf0];
    let before = &before[before.len().saturating_sub(LONGEST)..];
    let last = |bytes: &[u8]| before.windows(bytes.len()).rposition(|window| window == bytes);
    let (Some(clears), Some(aligns)) = (last(&CLEARS), last(&ALIGNS)) else {
        return false;
    };
    let mut decoder = Decoder::new(64, &before[clears..], DecoderOptions::NONE);
    let mut calls = false;
    while decoder.can_decode() && !calls {
        let instruction = decoder.decode();
        calls = match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => true,
            FlowControl::Next => false,
            _ => return false,
        };
    }
    calls && !decoder.can_decode() && clears < aligns
}

/// Whether a stack begins in the function at this address, although its call frame information
/// describes an ordinary function.
pub(crate) fn is_misdescribed(image: &Image<'_>, start: u64) -> bool {
    let end = start.saturating_add(Arch::START_CONTEXT_BYTES.1 as u64);
    let code = image.data_in(start..end);
    code.is_some_and(|code| image.arch().is_start_context(code))
}

const OUTERMOST: Row = Row { start: 0, rule: None };

/// The roots in the code at `start`.
fn in_hole(start: u64, code: &[u8]) -> Vec<FunctionRows> {
    let mut roots = Vec::new();
    for sought in SOUGHT {
        let is_sought = |bytes: &[Option<u8>]| bytes.iter().copied().eq(sought.iter().copied().map(Some));
        let with_offset = |pattern: Pattern| Some((pattern.windows(sought.len()).position(is_sought)?, pattern));
        let known = x86_64::ARCH.outermost_code().iter().map(|known| known.code);
        let patterns: Vec<(usize, Pattern)> = known.filter_map(with_offset).collect();
        for at in memmem::find_iter(code, sought) {
            let root = patterns.iter().find_map(|&(offset, pattern)| {
                let begin = at.checked_sub(offset)?;
                let found = code.get(begin..)?;
                starts_with(found, pattern).then_some((start + begin as u64, pattern.len() as u32))
            });
            roots.extend(root.map(|(start, size)| FunctionRows::new(start, size, vec![OUTERMOST])));
        }
    }
    roots.sort_by_key(|root| root.start);
    roots
}

/// Moves the start of functions from which nothing returns one byte back, if that byte is padding
/// and belongs to no function.
fn reach_back(converted: &mut Converted, image: &Image<'_>) {
    let unsaid = std::mem::take(&mut converted.unsaid);
    let mut end = 0;
    for function in &mut converted.functions {
        let before = function.start.checked_sub(1);
        let is_first = function.rows.first() == Some(&OUTERMOST) && !function.signal_frame && function.repeat.is_none();
        if let Some(before) = before
            && is_first
            && end <= before
            && !unsaid.iter().any(|range| range.contains(&before))
            && fills_room(image, before)
            && let Some(size) = function.size.checked_add(1)
        {
            function.start = before;
            function.size = size;
            for row in function.rows.iter_mut().skip(1) {
                row.start = row.start.saturating_add(1);
            }
        }
        end = eh_frame::end_of(function);
    }
    converted.unsaid = unsaid;
}

/// Whether this byte is the last byte of padding between functions: `nop`, `int3`, 0, or a long
/// `nop`, which ends in 0.
fn fills_room(image: &Image<'_>, address: u64) -> bool {
    let byte = image
        .data_in(address..address.saturating_add(1))
        .and_then(|code| code.first());
    byte.is_some_and(|byte| matches!(*byte, 0 | NOP | INT3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_kernel_enters() {
        // glibc 2.36: xor ebp, ebp; mov r9, rdx; pop rsi; mov rdx, rsp; and rsp, -16; push rax;
        // push rsp; xor r8d, r8d; xor ecx, ecx; lea rdi, [rip+n]; call [rip+n].
        let glibc = [
            &[
                0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e, 0x48, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xf0, 0x50, 0x54,
            ][..],
            &[
                0x45, 0x31, 0xc0, 0x31, 0xc9, 0x48, 0x8d, 0x3d, 1, 2, 3, 0, 0xff, 0x15, 1, 2, 3, 0,
            ],
        ]
        .concat();
        // musl 1.2.3: xor rbp, rbp; mov rdi, rsp; lea rsi, [rip+n]; and rsp, -16; call.
        let musl = [
            &[0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x8d, 0x35, 1, 2, 3, 0][..],
            &[0x48, 0x83, 0xe4, 0xf0, 0xe8, 1, 2, 3, 0],
        ]
        .concat();
        for code in [&glibc, &musl] {
            let after = |end: &[u8]| [&[0xc3; 70][..], code, end].concat();
            assert!(is_entry(code) && is_entry(&after(&[])), "{code:x?}");
            assert!(!is_entry(&after(&[0x90])), "no call right before");
            assert!(!is_entry(&after(&[0xff, 0xd0])), "a second call");
            for part in [0xed, 0xe4] {
                let mut other = code.clone();
                let at = other.iter().position(|byte| *byte == part).unwrap();
                other[at] ^= 1;
                assert!(!is_entry(&other), "{part:#x}");
            }
        }
        assert!(!is_entry(&[]));
    }

    #[test]
    fn code_that_ends_a_thread_is_found() {
        let fcontext = [
            0xc3, 0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8, 0x49, 0xfe, 0xff, 0xff, 0xf4, 0x0f,
        ];
        let found = in_hole(0x1000, &fcontext);
        assert_eq!(found, [FunctionRows::new(0x1001, 12, vec![OUTERMOST])]);
        // Code that continues after the call is not a root.
        let mut returns = fcontext;
        returns[12] = 0xc3;
        assert_eq!(in_hole(0x1000, &returns), []);
        assert_eq!(in_hole(0x1000, &fcontext[2..]), []);
        assert_eq!(in_hole(0x1000, &[0xf4; 64]), []);
    }

    #[test]
    fn an_entry_point_ends_where_it_does_not_go_on() {
        // call +0; ret; int3: from Free Pascal.
        assert_eq!(
            end_of_code(&[0x48, 0x31, 0xed, 0xe8, 0, 1, 0, 0, 0xc3, 0xcc], 0x1000),
            0x1009
        );
        // call +0, and its target: from musl.
        assert_eq!(end_of_code(&[0x31, 0xed, 0xe8, 0, 0, 0, 0, 0x55, 0x90], 0x1000), 0x1007);
        // je over a jump; syscall; hlt
        let code = [0x74, 0x02, 0xeb, 0x00, 0x0f, 0x05, 0xf4, 0x90];
        assert_eq!(end_of_code(&code, 0x1000), 0x1007);
        // No instruction ends it.
        assert_eq!(end_of_code(&[0x90; 4], 0x1000), 0x1004);
    }

    #[test]
    fn holes_are_what_is_left() {
        let known = [0x10..0x20, 0x30..0x40];
        assert_eq!(holes(&known, 0..0x50), [0..0x10, 0x20..0x30, 0x40..0x50]);
        assert_eq!(holes(&known, 0x18..0x38), std::slice::from_ref(&(0x20..0x30)));
        assert_eq!(holes(&[], 1..2), std::slice::from_ref(&(1..2)));
    }
}
