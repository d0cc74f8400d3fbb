//! Where Erlang's processes begin.
//!
//! Each of them has a stack of its own, on which compiled Erlang calls and returns like C. The
//! return address of a process's first function is that of compiled code which ends the process;
//! no call has pushed it. The run-time system keeps it in a variable that it exports for its other
//! parts.

use backtrail_sframe::{Base, Location};
use iced_x86::{FlowControl, Mnemonic, OpKind, Register};

use crate::kept::dwarf_number;
use crate::process_code::{ProcessCode, Region, word};
use crate::prologue::Code;

/// `beam.smp`, and variants for debugging.
const PROGRAM: &str = "/beam.";
const NORMAL_EXIT: &str = "beam_normal_exit";

/// The register with the process's structure while its code calls C: `r13`.
pub const PROCESS: backtrail_arch::Register = backtrail_arch::Register(13);

/// The register with the end of a process's heap, above which its stack is: `r15`.
pub(crate) const HEAP: backtrail_arch::Register = backtrail_arch::Register(15);

/// Instructions after a call of C, up to the one that goes back to the process's stack.
const MOST_INSTRUCTIONS: usize = 12;

/// Where code that runs on the stack of C keeps the stack pointer of its process, which it loads
/// from there after a call: `mov rsp, REG` or `mov rsp, [REG + n]`. `None` for code on the
/// process's own stack.
pub(crate) fn stack(code: &Code<'_>, pc: u64) -> Option<Location> {
    let mut at = pc;
    for _ in 0..MOST_INSTRUCTIONS {
        let instruction = code.instruction(at)?;
        let first = (instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register)
            .then(|| instruction.op0_register());
        if first == Some(Register::RSP) && instruction.mnemonic() == Mnemonic::Mov {
            let (base, offset, deref) = match instruction.op1_kind() {
                OpKind::Register => (instruction.op1_register(), 0, false),
                OpKind::Memory if instruction.memory_index() == Register::None => {
                    let offset = instruction.memory_displacement64().cast_signed();
                    (instruction.memory_base(), i32::try_from(offset).ok()?, true)
                }
                _ => return None,
            };
            return Some(Location {
                base: Base::Register(dwarf_number(base)?),
                offset,
                deref,
            });
        }
        if instruction.flow_control() != FlowControl::Next || first.map(Register::full_register) == Some(Register::RSP)
        {
            return None;
        }
        at = instruction.next_ip();
    }
    None
}

/// The address that functions of a process return to when it ends, if this process runs Erlang.
pub(crate) fn normal_exit(process: &impl ProcessCode, regions: &[Region]) -> Option<u64> {
    let is_program = |region: &&Region| {
        let file = region.path.rfind('/').and_then(|slash| region.path.get(slash..));
        region.executable && file.is_some_and(|file| file.starts_with(PROGRAM))
    };
    let program = process.find(regions.iter().find(is_program)?.range.start)?;
    word(process, process.object(program, NORMAL_EXIT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_from_c() {
        let stack = |bytes: &[u8]| {
            let code = Code {
                bytes,
                start: 0x1000,
                functions: &[],
            };
            super::stack(&code, 0x1000)
        };
        let at = |register, offset, deref| {
            Some(Location {
                base: Base::Register(register),
                offset,
                deref,
            })
        };
        // mov r14, rax; mov rsp, r12
        assert_eq!(stack(&[0x49, 0x89, 0xc6, 0x4c, 0x89, 0xe4]), at(12, 0, false));
        // mov rsp, [r13 + 0x50]
        assert_eq!(stack(&[0x49, 0x8b, 0x65, 0x50]), at(13, 0x50, true));
        // add rsp, 8, then the same; and ret, then the same.
        assert_eq!(stack(&[0x48, 0x83, 0xc4, 0x08, 0x49, 0x8b, 0x65, 0x50]), None);
        assert_eq!(stack(&[0xc3, 0x49, 0x8b, 0x65, 0x50]), None);
        // mov rsp, [r13 + rax]: no place that is known; and nothing at all.
        assert_eq!(stack(&[0x49, 0x8b, 0x64, 0x05, 0x00]), None);
        assert_eq!(stack(&[0x90; 40]), None);
    }
}
