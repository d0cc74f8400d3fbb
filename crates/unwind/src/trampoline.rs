//! Code that GCC's functions write onto their stacks, to pass pointers to the functions within
//! them; x86-64 only.

use backtrail_arch::{Arch, Cpu, Registers};

use crate::Memory;

/// Words from the program counter to the end of the longest trampoline, of 28 bytes.
const WORDS: u64 = 4;
/// `endbr64`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov r11d, BYTES`, `mov r11, BYTES` and `mov r10, BYTES`: the function, and the frame for which
/// it runs.
const LOADS_FUNCTION_LOW: [u8; 2] = [0x41, 0xbb];
const LOADS_FUNCTION: [u8; 2] = [0x49, 0xbb];
const LOADS_FRAME: [u8; 2] = [0x49, 0xba];
/// `jmp r11; nop`.
const JUMPS: [u8; 4] = [0x49, 0xff, 0xe3, 0x90];

/// Whether the code at the program counter is the rest of a trampoline that is on the stack: what
/// is on top is the return address of its call.
pub(crate) fn is_at(arch: &Arch, registers: &Registers, memory: &mut impl Memory) -> bool {
    let (pc, sp) = (registers.pc, registers.get(arch.sp));
    if arch.cpu != Cpu::X86_64 || sp.is_none_or(|sp| pc < sp) {
        return false;
    }
    let mut code = [0; WORDS as usize * 8];
    for (index, bytes) in code.chunks_exact_mut(8).enumerate() {
        match memory.word(pc.wrapping_add(index as u64 * 8)) {
            Some(word) => bytes.copy_from_slice(&word.to_le_bytes()),
            None if index == 0 => return false,
            None => break,
        }
    }
    let mut rest = &code[..];
    rest = rest.strip_prefix(&ENDBR64).unwrap_or(rest);
    let loads = [(LOADS_FUNCTION_LOW, 4), (LOADS_FUNCTION, 8), (LOADS_FRAME, 8)];
    for (load, constant) in loads {
        let loaded = rest.strip_prefix(&load).and_then(|rest| rest.get(constant..));
        rest = loaded.unwrap_or(rest);
    }
    rest.starts_with(&JUMPS)
}
