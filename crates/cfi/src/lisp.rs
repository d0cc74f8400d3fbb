//! Frames of SBCL's code, which callers make for their callees; x86-64 only.
//!
//! A caller saves its frame pointer in the new frame and sets RBP to it before the call; the
//! function's first instruction pops the return address into that frame. Up to there, RBP points to
//! a frame without a return address. Later the frame is an ordinary one, also where a jump out of
//! the function hides that from whoever reads the instructions.

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::FlowControl;

use crate::instructions::Code;

/// `pop [rbp+8]`.
const POP: [u8; 3] = [0x8f, 0x45, 0x08];
/// `jmp [rip+n]`, in an object that stands for a function's name.
const JUMP: [u8; 2] = [0xff, 0x25];
/// `mov [rsp], rbp; mov rbp, rsp`, and the same by RBX.
const MAKES_FRAME: [&[u8]; 2] = [
    &[0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec],
    &[0x48, 0x89, 0x2b, 0x48, 0x8b, 0xeb],
];
/// Bytes from there to the call.
const MOST_TO_CALL: usize = 24;
/// The alignment of functions, and the word before each: its own address.
const ALIGN: u64 = 16;
const WORD: u64 = 8;

/// The rule of interrupted code at `pc` in the call of a function; `read` copies memory.
pub(crate) fn in_call(arch: &Arch, code: &Code<'_>, pc: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<Rule> {
    let here = from(code, pc)?;
    if arch.cpu != Cpu::X86_64 {
        return None;
    }
    if here.starts_with(&POP) || leads_to_function(here, pc, read) {
        return Some(entered(arch));
    }
    let makes_frame = has_made_frame(code, pc) && function(code, pc).is_some();
    makes_frame.then(|| made(arch))
}

/// The rule of interrupted code inside a function.
pub(crate) fn in_function(arch: &Arch, code: &Code<'_>, pc: u64) -> Option<Rule> {
    let is_inside = arch.cpu == Cpu::X86_64 && function(code, pc)? < pc;
    is_inside.then(|| Rule {
        fp: Some(saved(-16)),
        ..Rule::new(Location::register(arch.fp.0, 16), saved(-8))
    })
}

/// After the call: the return address is on top, and RBP points to the new frame.
fn entered(arch: &Arch) -> Rule {
    Rule {
        fp: Some(word_at_fp(arch)),
        ..Rule::new(Location::register(arch.sp.0, 8), saved(-8))
    }
}

/// Before the call: the frame is the one that the new frame points to.
fn made(arch: &Arch) -> Rule {
    Rule {
        fp: Some(saved(0)),
        ..Rule::new(word_at_fp(arch), saved(8))
    }
}

fn word_at_fp(arch: &Arch) -> Location {
    Location {
        base: Base::Register(arch.fp.0),
        offset: 0,
        deref: true,
    }
}

fn saved(offset: i32) -> Location {
    Location {
        base: Base::Cfa,
        offset,
        deref: true,
    }
}

/// The code from an address on.
fn from<'c>(code: &Code<'c>, at: u64) -> Option<&'c [u8]> {
    code.bytes.get(usize::try_from(at.checked_sub(code.start)?).ok()?..)
}

/// Whether the jump at `pc` leads to a function.
fn leads_to_function(here: &[u8], pc: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> bool {
    const LEN: u64 = 6;
    let Some(([code @ .., d0, d1, d2, d3], _)) = here.split_first_chunk::<{ LEN as usize }>() else {
        return false;
    };
    if *code != JUMP {
        return false;
    }
    let distance = i32::from_le_bytes([*d0, *d1, *d2, *d3]);
    let slot = pc.wrapping_add(LEN).wrapping_add_signed(distance.into());
    let (mut target, mut first) = ([0; 8], [0; 3]);
    read(slot, &mut target) == target.len()
        && read(u64::from_le_bytes(target), &mut first) == first.len()
        && first == POP
}

/// Whether a new frame was made right before `pc`, for a call that follows.
fn has_made_frame(code: &Code<'_>, pc: u64) -> bool {
    let end = usize::try_from(pc.saturating_sub(code.start)).unwrap_or(usize::MAX);
    let before = code.bytes.get(..end).unwrap_or_default();
    let before = &before[before.len().saturating_sub(MOST_TO_CALL)..];
    let made = MAKES_FRAME.iter().filter_map(|bytes| {
        let at = before.windows(bytes.len()).rposition(|window| window == *bytes)?;
        Some(at + bytes.len())
    });
    let Some(made) = made.max() else {
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
        let bytes = from(code, at - WORD)?;
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
            let bytes = from(&code, at).and_then(|bytes| bytes.get(..to.len()));
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
            fp: Some(saved(-16)),
            ..Rule::new(Location::register(ARCH.fp.0, 16), saved(-8))
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
    fn no_bytes_are_too_odd() {
        for (code, state) in crate::odd::pieces() {
            both(&code, START + u64::from(state >> 25));
        }
    }
}
