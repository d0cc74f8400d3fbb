//! Instructions: the call before a return address, and the jumps that leave a function. Those of
//! x86-64; [`Cpu`] has both.

use super::aarch64;
use super::leaving::{Leaving, Target};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The longest call: prefixes, opcode, ModRM, SIB, 32 bits.
pub(crate) const LONGEST_CALL: u64 = 10;

/// Whose instructions a file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cpu {
    #[default]
    X86_64,
    Aarch64,
}

impl Cpu {
    /// See [`calls_before`].
    pub(crate) fn calls_before(self, bytes: &[u8], address: u64) -> Vec<Target> {
        match self {
            Cpu::X86_64 => calls_before(bytes, address),
            Cpu::Aarch64 => aarch64::calls_before(bytes, address),
        }
    }

    /// See [`leaving`].
    pub(crate) fn leaving(self, code: &[u8], start: u64) -> Leaving {
        match self {
            Cpu::X86_64 => leaving(code, start),
            Cpu::Aarch64 => aarch64::leaving(code, start),
        }
    }

    /// See [`addresses`].
    pub(crate) fn addresses(self, code: &[u8], start: u64, leaves: impl Fn(u64, u64) -> bool) -> Vec<u64> {
        match self {
            Cpu::X86_64 => addresses(code, start, leaves),
            Cpu::Aarch64 => aarch64::addresses(code, start, leaves),
        }
    }

    /// See [`never_returns`].
    pub(crate) fn never_returns(self, code: &[u8], start: u64) -> bool {
        match self {
            Cpu::X86_64 => never_returns(code, start),
            Cpu::Aarch64 => aarch64::never_returns(code, start),
        }
    }

    /// See [`makes_threads`].
    pub(crate) fn makes_threads(self, code: &[u8], start: u64) -> bool {
        match self {
            Cpu::X86_64 => makes_threads(code, start),
            Cpu::Aarch64 => aarch64::makes_threads(code),
        }
    }

    /// See [`restores_from_signal`].
    pub(crate) fn restores_from_signal(self, code: &[u8]) -> bool {
        match self {
            Cpu::X86_64 => restores_from_signal(code),
            Cpu::Aarch64 => aarch64::restores_from_signal(code),
        }
    }

    /// No stub of a linkage table is longer.
    pub(crate) fn stub_bytes(self) -> u64 {
        match self {
            Cpu::X86_64 => 16,
            // With `bti c` and what authenticates.
            Cpu::Aarch64 => 24,
        }
    }
}

/// The calls that may end at `address`; `bytes` are those before it: code read backwards has more
/// than one reading.
fn calls_before(bytes: &[u8], address: u64) -> Vec<Target> {
    let mut calls = Vec::new();
    for length in 2..=bytes.len().min(LONGEST_CALL as usize) {
        let code = &bytes[bytes.len() - length..];
        let mut decoder = Decoder::with_ip(64, code, address - length as u64, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.len() != length || !(instruction.is_call_near() || instruction.is_call_near_indirect()) {
            continue;
        }
        let target = target(&instruction);
        if !calls.contains(&target) {
            calls.push(target);
        }
    }
    calls
}

fn target(instruction: &Instruction) -> Target {
    match instruction.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
            Target::Direct(instruction.near_branch_target())
        }
        OpKind::Memory if instruction.is_ip_rel_memory_operand() => Target::Slot(instruction.ip_rel_memory_address()),
        _ => Target::Unknown,
    }
}

/// What leaves the code of a function that starts at `start`.
fn leaving(code: &[u8], start: u64) -> Leaving {
    let inside = start..start + code.len() as u64;
    let mut leaving = Leaving::default();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut recent = [Instruction::default(); 8];
    let mut count = 0;
    let mut ends = true;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if !padding {
            ends = instruction.is_jmp_short_or_near()
                || instruction.is_jmp_near_indirect()
                || instruction.is_call_near()
                || instruction.is_call_near_indirect()
                || matches!(
                    instruction.mnemonic(),
                    Mnemonic::Ret | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Iretq | Mnemonic::INVALID
                );
        }
        let jumps = instruction.is_jmp_short_or_near()
            || instruction.is_jcc_short_or_near()
            || instruction.is_jmp_near_indirect();
        if jumps {
            let target = match target(&instruction) {
                // It stays in the function.
                Target::Unknown if is_switch(&instruction, &recent) => Target::Direct(start),
                Target::Unknown => table(&instruction, &recent).map_or(Target::Unknown, Target::Table),
                known => known,
            };
            let leaves = match target {
                Target::Direct(address) => !inside.contains(&address),
                Target::Slot(_) | Target::Unknown | Target::Table(_) => true,
            };
            if leaves && !leaving.jumps.contains(&target) {
                leaving.jumps.push(target);
            }
        }
        recent[count % recent.len()] = instruction;
        count += 1;
    }
    leaving.falls_through = !ends;
    leaving
}

/// Whether `jmp register` goes to one of a table of offsets, as compilers translate `switch`.
fn is_switch(jump: &Instruction, before: &[Instruction; 8]) -> bool {
    if jump.code() != Code::Jmp_rm64 || jump.op0_kind() != OpKind::Register {
        return false;
    }
    let register = jump.op0_register();
    let adds = before
        .iter()
        .any(|i| i.mnemonic() == Mnemonic::Add && i.op0_kind() == OpKind::Register && i.op0_register() == register);
    let offset = before.iter().any(|i| {
        i.mnemonic() == Mnemonic::Movsxd
            && i.op1_kind() == OpKind::Memory
            && i.memory_index() != Register::None
            && i.memory_index_scale() == 4
    });
    adds && offset
}

/// The table that an indirect jump takes an address from: `jmp [table + 8 * index]`, also by way of
/// registers.
fn table(jump: &Instruction, before: &[Instruction; 8]) -> Option<u64> {
    let load = if jump.op0_kind() == OpKind::Memory {
        jump
    } else {
        let loads = |i: &&Instruction| {
            i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Register
                && i.op0_register() == jump.op0_register()
                && i.op1_kind() == OpKind::Memory
        };
        before.iter().find(loads)?
    };
    if load.memory_index() == Register::None || load.memory_index_scale() != 8 {
        return None;
    }
    if load.memory_base() == Register::None {
        return Some(load.memory_displacement64());
    }
    let names = |i: &&Instruction| {
        i.mnemonic() == Mnemonic::Lea && i.op0_register() == load.memory_base() && i.is_ip_rel_memory_operand()
    };
    let base = before.iter().find(names)?;
    Some(base.ip_rel_memory_address().wrapping_add(load.memory_displacement64()))
}

/// Addresses that code takes or jumps to: `lea`, immediate operands, and jumps that lead to another
/// function according to `leaves`.
fn addresses(code: &[u8], start: u64, leaves: impl Fn(u64, u64) -> bool) -> Vec<u64> {
    let mut found = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_jmp_short_or_near() || instruction.is_jcc_short_or_near() {
            let to = instruction.near_branch_target();
            if leaves(instruction.ip(), to) {
                found.push(to);
            }
            continue;
        }
        if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            found.push(instruction.ip_rel_memory_address());
        }
        for operand in 0..instruction.op_count() {
            if matches!(
                instruction.op_kind(operand),
                OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
            ) {
                found.push(instruction.immediate(operand));
            }
        }
    }
    found
}

/// The numbers of system calls that make threads.
const CLONE: u64 = 56;
const CLONE3: u64 = 435;

/// Whether code has no way to return to a caller.
fn never_returns(code: &[u8], start: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    while decoder.can_decode() {
        if decoder.decode().mnemonic() == Mnemonic::Ret {
            return false;
        }
    }
    let leaving = leaving(code, start);
    leaving.jumps.is_empty() && !leaving.falls_through
}

/// Whether code makes threads itself: sets the number of `clone` or `clone3`, and calls the kernel.
fn makes_threads(code: &[u8], start: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut number = false;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let sets = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Register
            && matches!(instruction.op0_register(), Register::EAX | Register::RAX | Register::AL);
        if sets
            && matches!(
                instruction.op1_kind(),
                OpKind::Immediate8 | OpKind::Immediate32 | OpKind::Immediate32to64
            )
        {
            number |= matches!(instruction.immediate(1), CLONE | CLONE3);
        }
        if number && instruction.mnemonic() == Mnemonic::Syscall {
            return true;
        }
    }
    false
}

/// The bytes of the longest such code, which the processor may be after.
pub(crate) const LONGEST_RESTORER: u64 = 10;

/// Whether a signal handler returns to this code: `rt_sigreturn` and nothing else.
fn restores_from_signal(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 2] = [
        &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
        &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_backwards() {
        // call +0x100; call rax; call [rip+8]; call [rax+rcx*8+0x10]; notrack call rdx
        assert_eq!(calls_before(&[0xe8, 0, 1, 0, 0], 0x1005), [Target::Direct(0x1105)]);
        assert_eq!(calls_before(&[0x90, 0xff, 0xd0], 0x1000), [Target::Unknown]);
        assert_eq!(calls_before(&[0xff, 0x15, 8, 0, 0, 0], 0x1000), [Target::Slot(0x1008)]);
        assert_eq!(calls_before(&[0xff, 0x54, 0xc8, 0x10], 0x1000), [Target::Unknown]);
        assert!(calls_before(&[0x90, 0x90, 0x90, 0x90, 0xc3], 0x1000).is_empty());
        // jmp is not a call.
        assert!(calls_before(&[0xe9, 0, 1, 0, 0], 0x1005).is_empty());
    }

    #[test]
    fn jumps_out_of_a_function_are_seen_and_switches_are_not() {
        // je out; jmp rax
        let code = [0x0f, 0x84, 0, 1, 0, 0, 0xff, 0xe0];
        let found = leaving(&code, 0x1000);
        assert_eq!(found.jumps, [Target::Direct(0x1106), Target::Unknown]);
        assert!(!found.falls_through);
        // movsxd rax,[rdx+rax*4]; add rax,rdx; jmp rax
        let switch = [0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0];
        assert_eq!(leaving(&switch, 0x1000), Leaving::default());
        assert!(leaving(&[0x31, 0xc0], 0x1000).falls_through);
    }

    #[test]
    fn thread_makers_and_signal_returns_are_known_by_their_code() {
        assert!(makes_threads(&[0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05], 0));
        assert!(!makes_threads(&[0xb8, 0x01, 0, 0, 0, 0x0f, 0x05], 0));
        assert!(restores_from_signal(&[
            0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x90
        ]));
        assert!(!restores_from_signal(&[0x48, 0xc7, 0xc0, 0x0e, 0, 0, 0, 0x0f, 0x05]));
    }
}
