//! Code that signal handlers return to: it asks the kernel to restore the registers of the code
//! that the signal interrupted.

use std::ops::Range;

use backtrail_arch::{Arch, Cpu};
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::eh_frame::{self, Converted};
use crate::undescribed::{self, code, described, holes};

/// Such code of x86-64: `mov rax, 15` or `mov eax, 15`, then `syscall`.
const RESTORERS: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
    &[0xb8, 15, 0, 0, 0, 0x0f, 0x05],
];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const LONGEST_INSTRUCTION: u64 = 15;

/// How to leave the kernel's frame, which begins at the stack pointer.
pub(crate) fn rule(arch: &Arch) -> Option<Rule> {
    let frame = &arch.signal_frame;
    let word = |offset: i64| {
        Some(Location {
            base: Base::Register(arch.sp.0),
            offset: i32::try_from(offset).ok()?,
            deref: true,
        })
    };
    let saved = |wanted| {
        let found = frame.registers.iter().find(|(register, _)| *register == wanted);
        word(found?.1)
    };
    Some(Rule {
        fp: Some(saved(arch.fp)?),
        ..Rule::new(saved(arch.sp)?, word(frame.pc_offset)?)
    })
}

/// The rows of such code.
pub(crate) fn rows(arch: &Arch, start: u64, size: u32) -> Option<FunctionRows> {
    let row = Row {
        start: 0,
        rule: Some(rule(arch)?),
    };
    Some(FunctionRows {
        signal_frame: true,
        ..FunctionRows::new(start, size, vec![row])
    })
}

/// Whether this is such code of x86-64.
pub(crate) fn restores(code: &[u8]) -> bool {
    RESTORERS.iter().any(|restorer| code.starts_with(restorer))
}

/// Adds rows for such code of x86-64 that nothing describes, as in musl, and lets all of them reach
/// one byte further: in the system call, the next instruction is about to run.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    if image.arch().cpu != Cpu::X86_64 {
        return;
    }
    let known = described(converted);
    let found: Vec<FunctionRows> = code(image)
        .into_iter()
        .flat_map(|range| holes(&known, range))
        .flat_map(|hole| in_hole(image, hole))
        .collect();
    undescribed::add(converted, found, &known, image);
    reach_on(converted, image);
}

/// A handler returns to the first byte, and callers are looked up by the byte before: rows begin
/// there.
fn in_hole(image: &Image<'_>, hole: Range<u64>) -> Vec<FunctionRows> {
    let bytes = image.data_in(hole.clone()).unwrap_or_default();
    let bytes = bytes.get(..(hole.end - hole.start) as usize).unwrap_or_default();
    let calls = memchr::memmem::find_iter(bytes, &SYSCALL);
    let found = calls.filter_map(|at| {
        let end = at + SYSCALL.len();
        let is_it = |restorer: &&&[u8]| bytes.get(..end).is_some_and(|code| code.ends_with(restorer));
        let len = RESTORERS.iter().find(is_it)?.len();
        let start = (hole.start + (end - len) as u64).checked_sub(1)?;
        rows(image.arch(), start, len as u32 + 1)
    });
    found.collect()
}

fn reach_on(converted: &mut Converted, image: &Image<'_>) {
    let starts: Vec<u64> = converted.functions.iter().map(|function| function.start).collect();
    for (index, function) in converted.functions.iter_mut().enumerate() {
        let end = eh_frame::end_of(function);
        let is_free = starts.get(index + 1).is_none_or(|next| *next > end)
            && !converted.unsaid.iter().any(|range| range.contains(&end));
        if function.signal_frame && is_free && ends_in_call(image, end) && is_padding(image, end) {
            function.size = function.size.saturating_add(1);
        }
    }
}

fn ends_in_call(image: &Image<'_>, end: u64) -> bool {
    let code = image.data_in(end.saturating_sub(SYSCALL.len() as u64)..end);
    code.is_some_and(|code| code.starts_with(&SYSCALL))
}

/// Whether what begins here fills the room before the next function.
fn is_padding(image: &Image<'_>, address: u64) -> bool {
    let code = image.data_in(address..address.saturating_add(LONGEST_INSTRUCTION));
    let code = code.unwrap_or_default();
    let Some(first) = code.first() else { return false };
    let mnemonic = Decoder::new(64, code, DecoderOptions::NONE).decode().mnemonic();
    *first == 0 || matches!(mnemonic, Mnemonic::Nop | Mnemonic::Int3)
}
