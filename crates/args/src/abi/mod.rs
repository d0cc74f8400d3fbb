//! Calling conventions, one file for each. A type is *classified* into its [`Storage`], which does
//! not depend on other arguments; storages are then *placed* in order into registers and onto the
//! stack.

pub mod aapcs64;
pub mod sysv_x86_64;

use crate::shape::{DataModel, Shape};
use backtrail_arch::Cpu;

/// A register bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bank {
    /// Integers and addresses.
    General,
    /// Floats and vectors.
    Vector,
}

/// How an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Passing {
    /// Not passed: it has no bytes.
    Nothing,
    /// Each eightbyte in the next register of its bank, all of them or none; `None` is padding.
    Eightbytes([Option<Bank>; 2]),
    /// A number of members of a number of bytes each, each in the next vector register, all of them
    /// or none. A float or a vector is one member.
    Members(u8, u8),
    /// In as many general registers as it needs, all or none.
    General,
    /// By the address of a copy.
    Reference,
    /// On the stack.
    Memory,
}

/// What is needed to place an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Storage {
    /// How it is passed.
    pub passing: Passing,
    /// Size of its type in bytes.
    pub bytes: u64,
    /// Its alignment on the stack in bytes; a power of two.
    pub align: u64,
}

/// Where a part of an argument is at its function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a register, by its DWARF number, from its lowest byte on.
    Register(u8),
    /// In memory, this many bytes above the canonical frame address.
    Stack(u64),
}

/// A part of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Offset of the part in the argument, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its place.
    pub place: Place,
}

/// A calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// System V Application Binary Interface, AMD64 Architecture Processor Supplement.
    SysvX86_64,
    /// Procedure Call Standard for the Arm 64-bit Architecture.
    Aapcs64,
}

impl Abi {
    /// All calling conventions.
    pub const ALL: [Abi; 2] = [Abi::SysvX86_64, Abi::Aapcs64];

    /// The C ABI of a CPU.
    pub fn of(cpu: Cpu) -> Option<Abi> {
        match cpu {
            Cpu::X86_64 => Some(Abi::SysvX86_64),
            Cpu::Aarch64 => Some(Abi::Aapcs64),
            Cpu::S390x => None,
        }
    }

    /// The properties that sizes of types depend on.
    pub fn data_model(self) -> DataModel {
        DataModel {
            pointer: 8,
            x87: self == Abi::SysvX86_64,
        }
    }

    /// Instruction addresses are multiples of two to this power.
    pub fn shift(self) -> u32 {
        match self {
            Abi::SysvX86_64 => 0,
            Abi::Aapcs64 => 2,
        }
    }

    /// DWARF numbers of the general registers that pass arguments, in order.
    pub fn general_registers(self) -> &'static [u8] {
        match self {
            Abi::SysvX86_64 => &sysv_x86_64::GENERAL,
            Abi::Aapcs64 => &aapcs64::GENERAL,
        }
    }

    /// How an argument of this shape is passed. `named` is false for variadic arguments.
    pub fn classify(self, shape: &Shape, named: bool) -> Storage {
        match self {
            Abi::SysvX86_64 => sysv_x86_64::classify(shape, named, sysv_x86_64::Vectors::Sse),
            Abi::Aapcs64 => aapcs64::classify(shape),
        }
    }

    /// Whether a result of this shape is stored at an address that the caller passes like a first
    /// argument.
    pub fn passes_result_address(self, result: &Shape) -> bool {
        match self {
            Abi::SysvX86_64 => sysv_x86_64::is_result_in_memory(result, sysv_x86_64::Vectors::Sse),
            // The address has a register of its own.
            Abi::Aapcs64 => false,
        }
    }

    /// Starts a list of arguments.
    pub fn placer(self, passes_result_address: bool) -> Placer {
        Placer {
            abi: self,
            used: [u8::from(passes_result_address), 0],
            stack: 0,
        }
    }
}

/// Assigns places to arguments, in order.
#[derive(Clone, Copy, Debug)]
pub struct Placer {
    abi: Abi,
    /// Number of used registers in each bank.
    used: [u8; 2],
    /// Number of used bytes on the stack.
    stack: u64,
}

impl Placer {
    /// Calls `part` for each part of the next argument. An argument passed by reference has one:
    /// its address. `None` if sizes make no sense.
    pub fn next(&mut self, storage: &Storage, part: &mut dyn FnMut(Piece)) -> Option<()> {
        match self.abi {
            Abi::SysvX86_64 => sysv_x86_64::place(self, storage, part),
            Abi::Aapcs64 => aapcs64::place(self, storage, part),
        }
    }

    /// Takes `count` registers of a bank, if that many are left.
    fn take(&mut self, bank: Bank, count: u64) -> Option<&'static [u8]> {
        let table = match (self.abi, bank) {
            (Abi::SysvX86_64, Bank::General) => &sysv_x86_64::GENERAL[..],
            (Abi::SysvX86_64, Bank::Vector) => &sysv_x86_64::VECTOR,
            (Abi::Aapcs64, Bank::General) => &aapcs64::GENERAL,
            (Abi::Aapcs64, Bank::Vector) => &aapcs64::VECTOR,
        };
        let used = &mut self.used[bank as usize];
        let taken = table.get(usize::from(*used)..)?.get(..usize::try_from(count).ok()?)?;
        *used += taken.len() as u8;
        Some(taken)
    }

    /// Takes stack space for a whole argument, or for its address.
    fn push(&mut self, bytes: u64, align: u64, part: &mut dyn FnMut(Piece)) -> Option<()> {
        let at = self.stack.checked_next_multiple_of(align.max(8))?;
        self.stack = at.checked_add(bytes)?.checked_next_multiple_of(8)?;
        part(Piece {
            offset: 0,
            bytes,
            place: Place::Stack(at),
        });
        Some(())
    }
}

/// Places a value of `bytes` in registers, eight bytes in each.
fn in_registers(registers: &[u8], bytes: u64, part: &mut dyn FnMut(Piece)) {
    for (index, &register) in registers.iter().enumerate() {
        let offset = index as u64 * 8;
        part(Piece {
            offset,
            bytes: (bytes - offset).min(8),
            place: Place::Register(register),
        });
    }
}
