//! Functions that load the stack pointer of a saved context; x86-64 only.
//!
//! The C library's `setcontext` and `swapcontext` load the registers of a context one after the
//! other, the stack pointer first, and return into it. Call frame information does not follow that:
//! for `swapcontext` it describes the stack that was left, for `setcontext` the context, before the
//! stack pointer has changed. The `longjmp` of programs with checks (`_FORTIFY_SOURCE`) is like the
//! latter.

use std::ops::Range;

use backtrail_arch::{Arch, Cpu};
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::eh_frame;
use crate::landings::{CALLED, divided, in_transit};

/// The longest such function, in bytes: glibc's have up to 300, and up to 700 with shadow stacks.
const LONGEST: u32 = 1 << 11;
/// The DWARF numbers of the frame pointer and the stack pointer.
const RBP: u8 = 6;
const RSP: u8 = 7;
/// Registers with DWARF numbers below this have values.
const REGISTERS: u8 = 16;
/// The end of the part of `setcontext` that is described, and the beginning of the rest: RDX, which
/// leads to the context, is loaded from there; the result is 0.
const BEFORE_REST: [u8; 3] = [0x48, 0x8b, 0x92];
const REST: [u8; 3] = [0x31, 0xc0, 0xc3];

/// The correct rows of `function`, if it is one of these.
pub(crate) fn corrected(image: &Image<'_>, function: &FunctionRows) -> Option<Vec<Row>> {
    let is_plain = function.repeat.is_none() && !function.signal_frame && function.size <= LONGEST;
    if image.arch().cpu != Cpu::X86_64 || !is_plain {
        return None;
    }
    let is_said = function.rows.iter().any(|row| row.rule.is_some_and(is_resumed));
    let is_single = || {
        matches!(
            function.rows[..],
            [Row {
                start: 0,
                rule: Some(CALLED)
            }]
        )
    };
    if !is_said && !is_single() {
        return None;
    }
    let bytes = image.data_in(function.start..eh_frame::end_of(function))?;
    let bytes = bytes.get(..function.size as usize)?;
    let mut resumed = Vec::new();
    if bytes.starts_with(&REST) && follows_the_context(image, function.start) {
        resumed.push(0..REST.len() as u32);
    }
    resumed.extend(after_loads(bytes, is_said));
    (!resumed.is_empty()).then(|| with_resumed(image.arch(), function, &resumed))
}

/// Whether a rule describes a context that is in registers, or whose address is in one.
fn is_resumed(rule: Rule) -> bool {
    let is_elsewhere = |location: Location| match location.base {
        Base::Register(number) => number < REGISTERS && ![RSP, RBP].contains(&number),
        Base::Cfa => false,
    };
    is_elsewhere(rule.cfa) && is_elsewhere(rule.ra)
}

/// The code from each load of the stack pointer on, until it returns or jumps. From a register, it
/// is loaded only in code whose call frame information `is_said` to describe a context.
fn after_loads(bytes: &[u8], is_said: bool) -> Vec<Range<u32>> {
    let mut found = Vec::new();
    if !is_said && !bytes.windows(3).any(may_load) {
        return found;
    }
    let mut from = None;
    for instruction in &mut Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE) {
        if let Some(start) = from.filter(|_| leaves(&instruction)) {
            found.push(start..instruction.next_ip32());
            from = None;
        } else if from.is_none() && is_load(&instruction, is_said) {
            from = Some(instruction.next_ip32());
        }
    }
    found.extend(from.map(|start| start..bytes.len() as u32));
    found
}

fn follows_the_context(image: &Image<'_>, address: u64) -> bool {
    let before = image.data_in(address.saturating_sub(BEFORE_REST.len() as u64 + 4)..address);
    before.is_some_and(|before| before.starts_with(&BEFORE_REST))
}

/// Whether an instruction that begins with these three bytes may load the stack pointer.
fn may_load(bytes: &[u8]) -> bool {
    matches!(*bytes, [0x48 | 0x49, 0x8b, operands] if operands & 0x38 == 0x20 && operands < 0xc0)
}

/// Whether this loads the stack pointer from memory that another register leads to, or from another
/// register if that `is_said` to have it.
fn is_load(instruction: &Instruction, is_said: bool) -> bool {
    let frames = [Register::RSP, Register::RBP, Register::RIP, Register::None];
    let from = match instruction.op1_kind() {
        OpKind::Memory => instruction.memory_base(),
        OpKind::Register if is_said => instruction.op1_register(),
        _ => Register::None,
    };
    instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::RSP && !frames.contains(&from)
}

fn leaves(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// The rows of `function`, with the caller's frame until the stack pointer is loaded, and none in
/// the code that is `resumed`.
fn with_resumed(arch: &Arch, function: &FunctionRows, resumed: &[Range<u32>]) -> Vec<Row> {
    let ends = resumed.iter().flat_map(|piece| [piece.start, piece.end]);
    divided(function, ends, |start| {
        if resumed.iter().any(|piece| piece.contains(&start)) {
            return Some(in_transit(arch, CALLED, None));
        }
        let mut before = function.rows.iter().rev().filter(|row| row.start <= start);
        let said = before.find(|row| !row.rule.is_some_and(is_resumed));
        said.map_or(Some(CALLED), |row| row.rule)
    })
}
