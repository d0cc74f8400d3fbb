//! Frames of SBCL's code, which callers make for their callees; x86-64 only.
//!
//! A caller saves its frame pointer in the new frame and sets RBP to it before the call; the
//! function's first instruction pops the return address into that frame. Up to there, RBP points to
//! a frame without a return address. Later the frame is an ordinary one, also where a jump out of
//! the function hides that from whoever reads the instructions.

use backtrail_arch::{Arch, Cpu, Register};
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::FlowControl;

use crate::instructions::Code;
use crate::prologue::bytes_at;

/// `pop [rbp+8]`.
const POP: [u8; 3] = [0x8f, 0x45, 0x08];
/// `jmp [rip+n]`, in an object that stands for a function's name.
const JUMP: [u8; 2] = [0xff, 0x25];
/// `mov rax, [rip+n]`, in an object that stands for a closure.
const LOADS_FUNCTION: [u8; 3] = [0x48, 0x8b, 0x05];
/// `jmp [rax-3]`, after it.
const JUMPS_TO_FUNCTION: [u8; 3] = [0xff, 0x60, 0xfd];
/// What a reference to a function adds to its address, less the word in its header.
const FUNCTION_TAG: u64 = 3;
/// `mov [rsp], rbp; mov rbp, rsp`.
const MAKES_FRAME_AT_SP: [u8; 7] = [0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec];
/// Bytes of the instruction that loads a function.
const LOAD_LEN: u64 = LOADS_FUNCTION.len() as u64 + 4;
/// Bytes from where a frame was made to the call.
const MOST_TO_CALL: usize = 24;
/// The alignment of functions, and the word before each: its own address.
const ALIGN: u64 = 16;
const WORD: u64 = 8;

/// The rule of interrupted code at `pc` in the call of a function; `read` copies memory.
pub(crate) fn in_call(arch: &Arch, code: &Code<'_>, pc: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<Rule> {
    let here = bytes_at(code.bytes, code.start, pc)?;
    if arch.cpu != Cpu::X86_64 {
        return None;
    }
    if here.starts_with(&POP) || leads_to_function(code, pc, read) {
        return Some(entered(arch));
    }
    let makes_frame = has_made_frame(code, pc) && function(code, pc).is_some();
    makes_frame.then(|| made(arch))
}

/// The rule of interrupted code inside a function.
pub(crate) fn in_function(arch: &Arch, code: &Code<'_>, pc: u64) -> Option<Rule> {
    let is_inside = arch.cpu == Cpu::X86_64 && function(code, pc)? < pc;
    is_inside.then(|| Rule {
        fp: Some(Location::saved(-16)),
        ..Rule::new(Location::register(arch.fp.0, 16), Location::saved(-8))
    })
}

/// After the call: the return address is on top, and RBP points to the new frame, where the return
/// removes it.
fn entered(arch: &Arch) -> Rule {
    Rule {
        fp: Some(word_at(arch.fp)),
        ..Rule::new(Location::register(arch.fp.0, 16), word_at(arch.sp))
    }
}

/// Before the call: the frame is the one that the new frame points to.
fn made(arch: &Arch) -> Rule {
    Rule {
        fp: Some(Location::saved(0)),
        ..Rule::new(word_at(arch.fp), Location::saved(8))
    }
}

fn word_at(register: Register) -> Location {
    Location {
        base: Base::Register(register.0),
        offset: 0,
        deref: true,
    }
}

/// Whether the code at `pc` stands for a function and jumps to it.
fn leads_to_function(code: &Code<'_>, pc: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> bool {
    let word = |at: u64| {
        let mut word = [0; 8];
        (read(at, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
    };
    let begins = |at: u64| {
        let mut first = [0; POP.len()];
        read(at, &mut first) == first.len() && first == POP
    };
    let jumped = || word(slot(code, pc, &JUMP)?);
    let loaded = || {
        let jump = [pc, pc.wrapping_add(LOAD_LEN)].into_iter().find(|jump| {
            bytes_at(code.bytes, code.start, *jump).is_some_and(|here| here.starts_with(&JUMPS_TO_FUNCTION))
        })?;
        let function = word(slot(code, jump.checked_sub(LOAD_LEN)?, &LOADS_FUNCTION)?)?;
        word(function.wrapping_sub(FUNCTION_TAG))
    };
    jumped().or_else(loaded).is_some_and(begins)
}

/// The address that an instruction at `pc`, with this opcode, makes of RIP.
fn slot(code: &Code<'_>, pc: u64, opcode: &[u8]) -> Option<u64> {
    let distance = bytes_at(code.bytes, code.start, pc)?
        .strip_prefix(opcode)?
        .first_chunk()?;
    let end = pc.wrapping_add((opcode.len() + distance.len()) as u64);
    Some(end.wrapping_add_signed(i32::from_le_bytes(*distance).into()))
}

/// Whether the bytes are `mov [r], rbp; mov rbp, r` for a register `r`.
fn makes_frame_at_register(bytes: &[u8]) -> bool {
    let &[prefix, 0x89, saved, again, 0x8b, set] = bytes else {
        return false;
    };
    // With 4 and 5 the byte means something else.
    matches!(prefix, 0x48 | 0x49)
        && again == prefix
        && matches!(saved, 0x28..=0x2b | 0x2e | 0x2f)
        && set == saved + 0xc0
}

/// Whether a new frame was made right before `pc`, for a call that follows.
fn has_made_frame(code: &Code<'_>, pc: u64) -> bool {
    let before = code.before(pc);
    let before = &before[before.len().saturating_sub(MOST_TO_CALL)..];
    let last = |len: usize, makes: &dyn Fn(&[u8]) -> bool| Some(before.windows(len).rposition(makes)? + len);
    let at_sp = last(MAKES_FRAME_AT_SP.len(), &|bytes| *bytes == MAKES_FRAME_AT_SP);
    let Some(made) = at_sp.max(last(6, &makes_frame_at_register)) else {
        return false;
    };
    let mut at = pc - (before.len() - made) as u64;
    while at < pc {
        match code.instruction(at) {
            Some(instruction) if instruction.flow_control() == FlowControl::Next => at = instruction.next_ip(),
            _ => return false,
        }
    }
    at == pc
}

/// The function with the code at `pc`: the last one that begins before it.
fn function(code: &Code<'_>, pc: u64) -> Option<u64> {
    let mut at = pc & !(ALIGN - 1);
    while at >= code.start.checked_add(WORD)? {
        let bytes = bytes_at(code.bytes, code.start, at - WORD)?;
        if bytes.starts_with(&at.to_le_bytes()) && bytes.get(WORD as usize..)?.starts_with(&POP) {
            return Some(at);
        }
        at = at.checked_sub(ALIGN)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x5000_0000;
    const FUNCTION: u64 = START + 0x20;

    /// A function of SBCL 2.2.9, with its own address before it: `pop [rbp+8]; lea rsp, [rbp-16];
    /// sub rsp, 16; mov ecx, 2; mov [rsp], rbp; mov rbp, rsp; call [rax+9]; push [rbp+8]; jmp
    /// [rax-3]`.
    fn code() -> Vec<u8> {
        let mut code = vec![0; 0x18];
        code.extend(FUNCTION.to_le_bytes());
        code.extend([0x8f, 0x45, 0x08, 0x48, 0x8d, 0x65, 0xf0, 0x48, 0x83, 0xec, 0x10]);
        code.extend([0xb9, 2, 0, 0, 0, 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec]);
        code.extend([0xff, 0x50, 0x09, 0xff, 0x75, 0x08, 0xff, 0x60, 0xfd]);
        code
    }

    fn both(bytes: &[u8], pc: u64) -> (Option<Rule>, Option<Rule>) {
        let code = Code {
            bytes,
            start: START,
            functions: &[],
        };
        let read = |at: u64, to: &mut [u8]| {
            let bytes = bytes_at(code.bytes, code.start, at).and_then(|bytes| bytes.get(..to.len()));
            bytes.map_or(0, |bytes| {
                to.copy_from_slice(bytes);
                bytes.len()
            })
        };
        (in_call(&ARCH, &code, pc, read), in_function(&ARCH, &code, pc))
    }

    #[test]
    fn a_frame_belongs_to_its_function_when_it_has_a_return_address() {
        let code = code();
        assert_eq!(both(&code, FUNCTION), (Some(entered(&ARCH)), None));
        let linked = Rule {
            fp: Some(Location::saved(-16)),
            ..Rule::new(Location::register(ARCH.fp.0, 16), Location::saved(-8))
        };
        for offset in [3, 7, 16, 20, 26, 29] {
            assert_eq!(both(&code, FUNCTION + offset), (None, Some(linked)), "{offset}");
        }
        assert_eq!(both(&code, FUNCTION + 23).0, Some(made(&ARCH)));
        assert_eq!(both(&code, START + 0x10), (None, None));
    }

    #[test]
    fn other_code_is_none_of_its_functions() {
        let mut code = code();
        // Its word before it belongs to another function.
        code[0x18] ^= 0x10;
        assert_eq!(both(&code, FUNCTION + 23), (None, None));
    }

    #[test]
    fn a_name_leads_to_its_function() {
        let mut code = code();
        // jmp [rip+2]
        code[..6].copy_from_slice(&[0xff, 0x25, 2, 0, 0, 0]);
        code[8..16].copy_from_slice(&FUNCTION.to_le_bytes());
        assert_eq!(both(&code, START).0, Some(entered(&ARCH)));
        code[8] ^= 1;
        assert_eq!(both(&code, START).0, None);
    }

    #[test]
    fn a_closure_leads_to_its_function() {
        let mut code = code();
        // mov rax, [rip+9]; jmp [rax-3]; then a reference to the word at 8, which has the function.
        code[..7].copy_from_slice(&[0x48, 0x8b, 0x05, 0x09, 0, 0, 0]);
        let at = code.len();
        code[3..7].copy_from_slice(&(at as u32 - 7).to_le_bytes());
        code[7..10].copy_from_slice(&[0xff, 0x60, 0xfd]);
        code.extend((START + 0x10 + 3).to_le_bytes());
        code[0x10..0x18].copy_from_slice(&FUNCTION.to_le_bytes());
        for pc in [START, START + 7] {
            assert_eq!(both(&code, pc).0, Some(entered(&ARCH)), "{pc:#x}");
        }
        assert_eq!(both(&code, START + 10).0, None);
        code[0x10] ^= 1;
        assert_eq!(both(&code, START).0, None);
    }

    #[test]
    fn a_frame_is_made_by_any_register() {
        for (register, is_one) in [
            ([0x48, 0x89, 0x2b, 0x48, 0x8b, 0xeb], true),
            ([0x49, 0x89, 0x2f, 0x49, 0x8b, 0xef], true),
            ([0x49, 0x89, 0x0f, 0x49, 0x8b, 0xef], false),
            ([0x48, 0x89, 0x2b, 0x49, 0x8b, 0xeb], false),
        ] {
            let mut code = code();
            code[0x20 + 16..0x20 + 23].copy_from_slice(&[&register[..], &[0x90]].concat());
            assert_eq!(both(&code, FUNCTION + 23).0.is_some(), is_one, "{register:x?}");
        }
    }

    #[test]
    fn no_bytes_are_too_odd() {
        for (code, state) in crate::odd::pieces() {
            both(&code, START + u64::from(state >> 25));
        }
    }
}
