//! Per-CPU facts: registers, DWARF numbers, pointer width and return-address rules, one file per
//! CPU.
//!
//! Differences between CPUs are described here as data, so that callers need no `match` on the
//! CPU's name.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

pub mod aarch64;
mod calls;
mod outermost;
mod registers;
pub mod s390x;
pub mod x86_64;

pub use calls::Call;
pub use outermost::{OutermostCode, Pattern, starts_with};
pub use registers::{REGISTERS, Registers};

/// A register by its DWARF number, as the CPU's ABI supplement assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(pub u8);

/// The layout of Linux's signal frame, with enough to restore every register of the interrupted
/// code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// Offset of the saved program counter, in bytes from the trampoline's stack pointer.
    pub pc_offset: i64,
    /// DWARF number and offset, in bytes from that stack pointer, of each saved register.
    pub registers: &'static [(Register, i64)],
}

/// The registers that a perf sample contains (`asm/perf_regs.h`), by the kernel's numbers, not
/// DWARF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfRegisters {
    /// Kernel number of each general register, ascending, with its DWARF number.
    pub general: &'static [(u8, Register)],
    /// Kernel number of the program counter.
    pub pc: u8,
}

impl PerfRegisters {
    /// The mask to request from perf.
    pub fn mask(&self) -> u64 {
        self.general
            .iter()
            .fold(1 << self.pc, |mask, &(bit, _)| mask | 1 << bit)
    }
}

/// How the kernel reports a thread's general registers to debuggers and in cores: `struct
/// user_regs_struct`, ptrace's register set `NT_PRSTATUS`, and `pr_reg` in a core's note of that
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRegisters {
    /// Size of the set in bytes.
    pub bytes: usize,
    /// Offset of the program counter in bytes.
    pub pc: usize,
    /// DWARF number and offset in bytes of each general register.
    pub general: &'static [(Register, usize)],
}

impl UserRegisters {
    /// Builds registers from a set; `word` reads the word at an offset. `None` if one is missing.
    pub fn registers(&self, word: impl Fn(usize) -> Option<u64>) -> Option<Registers> {
        let mut registers = Registers::new(word(self.pc)?);
        for &(register, at) in self.general {
            registers.set(register, word(at)?);
        }
        Some(registers)
    }
}

/// How the kernel reports a thread's vector registers to debuggers and in cores: ptrace's register
/// set `NT_PRFPREG`, and a core's note of that name. It has the lowest 16 bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorRegisters {
    /// Size of the set in bytes.
    pub bytes: usize,
    /// DWARF number of the first one.
    pub first: Register,
    /// How many there are; their numbers are consecutive.
    pub count: u8,
    /// Offset of the first one in bytes.
    pub offset: usize,
    /// The letters of their names; the number among them follows.
    pub name: &'static str,
}

impl VectorRegisters {
    /// The number of `register` among the vector registers, if it is one.
    pub fn index(&self, register: Register) -> Option<u8> {
        let index = register.0.checked_sub(self.first.0)?;
        (index < self.count).then_some(index)
    }

    /// The bytes of `register` in a set.
    pub fn value(&self, set: &[u8], register: Register) -> Option<[u8; 16]> {
        let from_first = usize::from(self.index(register)?).checked_mul(16)?;
        set.get(from_first.checked_add(self.offset)?..)?.first_chunk().copied()
    }
}

/// A CPU that Backtrail knows. What differs between them is data of [`Arch`] if data can say it,
/// and
/// else a `match` on this, so that a new one is a compile error wherever it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cpu {
    /// AMD64, Intel 64.
    X86_64,
    /// A64.
    Aarch64,
    /// z/Architecture.
    S390x,
}

impl Cpu {
    /// The name that `uname -m` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Cpu::X86_64 => "x86_64",
            Cpu::Aarch64 => "aarch64",
            Cpu::S390x => "s390x",
        }
    }
}

/// What the unwinder must know of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// Which one it is.
    pub cpu: Cpu,
    /// Bytes of an address on the stack.
    pub pointer_bytes: u8,
    /// Stack pointer.
    pub sp: Register,
    /// Frame pointer.
    pub fp: Register,
    /// DWARF column of the return address; on machines with a link register, that register.
    pub ra: Register,
    /// Whether a call leaves the return address in [`Arch::ra`] instead of on the stack.
    pub link_register: bool,
    /// SP of the caller = CFA + this (0 except on s390x, whose CFA lies 160 above).
    pub sp_from_cfa: i64,
    /// Frame-pointer chains: the saved frame pointer is at FP, the return address this many bytes
    /// above.
    pub ra_from_fp: i64,
    /// Frame-pointer chains: CFA = FP + this.
    pub cfa_from_fp: i64,
    /// Size of the shortest instruction in bytes; a return address minus this lies in the call.
    pub min_instruction: u8,
    /// Number of bits in a user-space address; higher ones may hold a pointer authentication code.
    /// It depends on the kernel: see [`Arch::signed_in`].
    pub address_bits: u8,
    /// Bytes below the stack pointer that a function may use without moving it.
    pub red_zone: u64,
    /// Callee-saved registers, except the stack pointer.
    pub preserved: &'static [Register],
    /// The kernel's signal frame.
    pub signal_frame: SignalFrame,
    /// The registers that perf samples of user space carry.
    pub perf: PerfRegisters,
    /// The register set of debuggers and cores.
    pub user: UserRegisters,
    /// The set of its vector registers, if they are read.
    pub vectors: Option<VectorRegisters>,
    /// Names of the registers by DWARF number.
    pub register_names: &'static [&'static str],
}

impl Arch {
    /// The CPU that this code runs on.
    pub const fn native() -> &'static Arch {
        if cfg!(target_arch = "aarch64") {
            &aarch64::ARCH
        } else if cfg!(target_arch = "s390x") {
            &s390x::ARCH
        } else {
            &x86_64::ARCH
        }
    }

    /// The name that `uname -m` prints.
    pub const fn name(&self) -> &'static str {
        self.cpu.name()
    }

    /// The name of a register, if it has one.
    pub fn register_name(&self, register: Register) -> Option<&'static str> {
        self.register_names.get(usize::from(register.0)).copied()
    }

    /// This CPU with a kernel that has return addresses signed in these bits, as `NT_ARM_PAC_MASK`
    /// says it; 0 if they are not signed. `None` if no kernel does so.
    pub fn signed_in(&'static self, mask: u64) -> Option<&'static Arch> {
        match self.cpu {
            Cpu::Aarch64 => aarch64::signed_in(mask),
            Cpu::X86_64 | Cpu::S390x => None,
        }
    }

    /// This CPU in a process whose code all lies below this address, so that no bit further up
    /// belongs to a return address. 0 if that is not known.
    pub fn with_code_below(&'static self, end: u64) -> &'static Arch {
        match self.cpu {
            Cpu::Aarch64 => aarch64::with_code_below(end),
            Cpu::X86_64 | Cpu::S390x => self,
        }
    }

    /// A return address without its pointer authentication code.
    #[inline]
    pub const fn strip(&self, address: u64) -> u64 {
        if self.address_bits >= 64 {
            address
        } else {
            address & !(u64::MAX << self.address_bits)
        }
    }
}
