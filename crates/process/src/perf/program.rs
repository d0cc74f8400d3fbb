//! Instructions of BPF programs at events.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use backtrail_arch::{Arch, Cpu};
use backtrail_unwind::goroutine;

use super::programs::LICENSE;
use crate::sys::{self, Function};

/// Bytes of a page: also where pages are larger, parts of them are copied.
pub(super) const PAGE: i32 = 4096;
/// Pages of a record.
pub(super) const PAGES: i32 = 15;
/// Registers that calls preserve: the program's context, the end of what is copied, the thread's
/// stack pointer, and the next address to copy.
pub(super) const CONTEXT: u8 = 6;
pub(super) const END: u8 = 7;
pub(super) const SP: u8 = 8;
pub(super) const NEXT: u8 = 9;
/// The frame pointer.
pub(super) const FRAME: u8 = 10;
/// The place in the frame of the key of a look-up; the rest is free.
const KEY: i16 = -4;

/// Where a program writes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'t> {
    /// By CPU, what a record is made in.
    pub(super) buffers: BorrowedFd<'t>,
    /// Each CPU's event.
    pub(super) events: BorrowedFd<'t>,
}

/// The stack pointer's offset in the kernel's `struct pt_regs`.
pub(super) fn sp_offset() -> Option<i16> {
    match Arch::native().cpu {
        Cpu::X86_64 => Some(152),
        Cpu::Aarch64 if cfg!(target_endian = "little") => Some(248),
        _ => None,
    }
}

/// Offsets of Go's registers in there, which begins like what debuggers see.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoRegisters {
    /// The current goroutine.
    pub(super) goroutine: i16,
    /// Where functions that read the clock keep their stack pointer.
    pub(super) kept_sp: i16,
}

impl GoRegisters {
    pub(super) fn offsets() -> Option<GoRegisters> {
        let arch = Arch::native();
        let offset = |wanted| {
            let mut general = arch.user.general.iter();
            let (_, offset) = general.find(|(register, _)| *register == wanted)?;
            i16::try_from(*offset).ok()
        };
        Some(GoRegisters {
            goroutine: offset(goroutine::g_register(arch)?)?,
            kept_sp: offset(goroutine::kept_sp(arch)?)?,
        })
    }
}

/// Codes of instructions (`linux/bpf.h`).
pub(super) mod op {
    pub(in crate::perf) const LOAD_MAP: u8 = 0x18;
    pub(in crate::perf) const LOAD: u8 = 0x79;
    pub(in crate::perf) const STORE: u8 = 0x7b;
    pub(in crate::perf) const STORE_HALF: u8 = 0x63;
    pub(in crate::perf) const STORE_HALF_NUMBER: u8 = 0x62;
    pub(in crate::perf) const STORE_NUMBER: u8 = 0x7a;
    pub(in crate::perf) const MOV: u8 = 0xb7;
    pub(in crate::perf) const MOV_HALF: u8 = 0xb4;
    pub(in crate::perf) const COPY: u8 = 0xbf;
    pub(in crate::perf) const ADD: u8 = 0x07;
    pub(in crate::perf) const ADD_REGISTER: u8 = 0x0f;
    pub(in crate::perf) const SUBTRACT_REGISTER: u8 = 0x1f;
    pub(in crate::perf) const JUMP_IF_NUMBER: u8 = 0x15;
    pub(in crate::perf) const JUMP_UNLESS_NUMBER: u8 = 0x55;
    pub(in crate::perf) const JUMP_IF_AT_MOST: u8 = 0xb5;
    pub(in crate::perf) const JUMP_IF_NOT_BELOW: u8 = 0x3d;
    pub(in crate::perf) const JUMP_IF_BELOW: u8 = 0xad;
    pub(in crate::perf) const JUMP: u8 = 0x05;
    pub(in crate::perf) const AND: u8 = 0x57;
    pub(in crate::perf) const DIVIDE: u8 = 0x37;
    pub(in crate::perf) const SHIFT_RIGHT: u8 = 0x77;
    pub(in crate::perf) const SHIFT_LEFT: u8 = 0x67;
    pub(in crate::perf) const CALL: u8 = 0x85;
    pub(in crate::perf) const EXIT: u8 = 0x95;
}

/// Numbers of the kernel's helpers (`enum bpf_func_id`).
pub(super) mod helper {
    pub(in crate::perf) const MAP_LOOKUP: i32 = 1;
    pub(in crate::perf) const TIME: i32 = 5;
    pub(in crate::perf) const CPU: i32 = 8;
    pub(in crate::perf) const TAIL_CALL: i32 = 12;
    pub(in crate::perf) const PID_TGID: i32 = 14;
    pub(in crate::perf) const OUTPUT: i32 = 25;
    pub(in crate::perf) const READ_USER: i32 = 112;
    pub(in crate::perf) const CURRENT_TASK: i32 = 158;
    pub(in crate::perf) const TASK_REGISTERS: i32 = 175;
}

/// Instructions, and jumps that lead to a place that follows later.
#[derive(Default)]
pub(super) struct Code {
    instructions: Vec<u64>,
    functions: Vec<Function>,
}

/// Jumps to one place.
#[derive(Default)]
pub(super) struct Jumps(Vec<usize>);

impl Code {
    pub(super) fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, number: i32) {
        let registers = u64::from(to | from << 4) << 8;
        let operands = u64::from(offset as u16) << 16 | u64::from(number as u32) << 32;
        self.instructions.push(u64::from(code) | registers | operands);
    }

    pub(super) fn map(&mut self, to: u8, map: BorrowedFd<'_>) {
        /// `BPF_PSEUDO_MAP_FD`.
        const MAP_FD: u8 = 1;
        self.push(op::LOAD_MAP, to, MAP_FD, 0, map.as_raw_fd());
        self.instructions.push(0);
    }

    pub(super) fn call(&mut self, helper: i32) {
        self.push(op::CALL, 0, 0, 0, helper);
    }

    /// Calls a function of the program, which [`Code::land_calls`] begins.
    pub(super) fn call_own(&mut self, calls: &mut Jumps) {
        /// `BPF_PSEUDO_CALL`.
        const OWN: u8 = 1;
        calls.0.push(self.instructions.len());
        self.push(op::CALL, 0, OWN, 0, 0);
    }

    /// The function that was called begins here. If it is `global`, the verifier follows it once,
    /// and not from each call: its arguments are two numbers, of which nothing is known.
    pub(super) fn land_calls(&mut self, calls: Jumps, is_global: bool) {
        self.functions.push(Function {
            at: self.instructions.len() as u32,
            is_global,
        });
        for at in calls.0 {
            let distance = self.instructions.len() - at - 1;
            if let Some(call) = self.instructions.get_mut(at) {
                *call |= (distance as u64) << 32;
            }
        }
    }

    /// Gives the program to the kernel.
    pub(super) fn load(&self) -> io::Result<OwnedFd> {
        sys::load_program(&self.instructions, &self.functions, LICENSE)
    }

    /// The sample is written in any case.
    pub(super) fn exit(&mut self) {
        self.push(op::MOV, 0, 0, 0, 1);
        self.push(op::EXIT, 0, 0, 0, 0);
    }

    /// Continues with a program of this map, if there is one at `index`.
    pub(super) fn continue_with(&mut self, programs: BorrowedFd<'_>, index: u32) {
        self.push(op::COPY, 1, CONTEXT, 0, 0);
        self.map(2, programs);
        self.push(op::MOV, 3, 0, 0, index as i32);
        self.call(helper::TAIL_CALL);
    }

    /// Looks up the number in register 0, and leaves the address of its value there.
    pub(super) fn look_up(&mut self, out: &mut Jumps, map: BorrowedFd<'_>) {
        self.push(op::STORE_HALF, FRAME, 0, KEY, 0);
        self.map(1, map);
        self.push(op::COPY, 2, FRAME, 0, 0);
        self.push(op::ADD, 2, 0, 0, KEY.into());
        self.call(helper::MAP_LOOKUP);
        self.jump(out, op::JUMP_IF_NUMBER, 0, 0, 0);
    }

    /// Loads the thread's stack pointer.
    pub(super) fn load_sp(&mut self, sp_offset: i16) {
        self.load_register(SP, sp_offset);
    }

    /// Loads a register of the thread's, by its offset in the kernel's `struct pt_regs`.
    pub(super) fn load_register(&mut self, to: u8, offset: i16) {
        self.call(helper::CURRENT_TASK);
        self.push(op::COPY, 1, 0, 0, 0);
        self.call(helper::TASK_REGISTERS);
        self.push(op::LOAD, to, 0, offset, 0);
    }

    /// Reads `bytes` from the program's memory at the address in register 3 to this place in the
    /// frame.
    pub(super) fn read(&mut self, out: &mut Jumps, place: i16, bytes: i32) {
        self.push(op::COPY, 1, FRAME, 0, 0);
        self.push(op::ADD, 1, 0, 0, place.into());
        self.push(op::MOV, 2, 0, 0, bytes);
        self.call(helper::READ_USER);
        self.jump(out, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
    }

    pub(super) fn jump(&mut self, jumps: &mut Jumps, code: u8, left: u8, right: u8, number: i32) {
        jumps.0.push(self.instructions.len());
        self.push(code, left, right, 0, number);
    }

    /// The jumps lead here.
    pub(super) fn land(&mut self, jumps: Jumps) {
        for at in jumps.0 {
            let distance = self.instructions.len() - at - 1;
            if let Some(jump) = self.instructions.get_mut(at) {
                *jump |= u64::from(distance as u16) << 16;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_what_follows() {
        let (mut code, mut jumps) = (Code::default(), Jumps::default());
        code.jump(&mut jumps, op::JUMP_IF_BELOW, 8, 9, 0);
        code.push(op::MOV, 0, 0, 0, -1);
        code.land(jumps);
        code.exit();
        // struct bpf_insn: code, registers, offset, number.
        assert_eq!(code.instructions[0].to_le_bytes(), [0xad, 0x98, 1, 0, 0, 0, 0, 0]);
        assert_eq!(
            code.instructions[1].to_le_bytes(),
            [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]
        );
        assert_eq!(code.instructions.len(), 4);
    }
}
