//! The table of arguments: docs/args-format.md. Reading needs no memory besides the table's own.

pub(crate) mod bits;
mod compute;
mod read;
pub mod write;

pub use compute::{Operation, Outcome, Step, compute};
pub use read::{CallSite, Function, Name, Parameter, Parameters, Signature, Table, Values};

use crate::abi::{Bank, Passing, Storage};
use crate::error::Result;

/// Name of the section.
pub const SECTION: &str = ".backtrail.args";
/// The magic number ("Header").
pub const MAGIC: u16 = 0xba75;
/// The version that is read and written.
pub const VERSION: u8 = 2;
/// Offset of the type section's CRC-32 in the header.
pub const TYPES_AT: usize = 8;
/// Size of the header in bytes.
pub(crate) const HEADER: usize = 88;

/// The byte in the header that says where places are recorded: at calls,
const AT_CALLS: u8 = 0;
/// everywhere,
const EVERYWHERE: u8 = 1;
/// everywhere in functions whose number of calls says so.
const CHOSEN: u8 = 2;
/// Number of records in a group; the table gives the position of each group.
pub(crate) const GROUP: usize = 32;

/// "Pools": records of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Parameters,
    Signatures,
    Values,
    Places,
    Entries,
    Storages,
    Functions,
    Names,
}

/// The number of pools.
pub(crate) const POOLS: usize = Pool::Names as usize + 1;

/// "Signatures": flags.
pub(crate) mod flag {
    /// Arguments may be taken from the caller's call.
    pub(crate) const TRUSTED: u64 = 1;
    /// The first place of an argument contains the address for the result.
    pub(crate) const RESULT_ADDRESS: u64 = 2;
    /// The function is variadic.
    pub(crate) const VARIADIC: u64 = 4;
    /// Number of flag bits; above them is the number of the dict, from 1.
    pub(crate) const BITS: u32 = 3;
}

/// Where a value is in its function's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nowhere.
    Lost,
    /// A register's value plus this offset.
    Register(u8, i64),
    /// The memory at this offset from a register's value.
    AtRegister(u8, i64),
    /// The address at this offset from the canonical frame address.
    Frame(i64),
    /// The memory at this offset from the canonical frame address.
    AtFrame(i64),
    /// A number.
    Constant(i64),
    /// An address in the file.
    Address(u64),
    /// The memory at an address in the file.
    AtAddress(u64),
    /// A register's value at the function's entry plus this offset.
    Entry(u8, i64),
    /// Several consecutive parts: the first bit of their list, and their number.
    Parts(u64, u8),
    /// Computed from other values: the first bit of the list of [steps](Step), and their number.
    Computed(u64, u8),
}

/// "Entries": from this number on, registers stand for parameters that are in no register, by their
/// index among all parameters.
pub const PARAMETERS: u8 = 128;

/// "Jumps": in place of the callee's address, if the jump is also the only way to each function
/// that the next one leads to by jumps.
pub const BEYOND: i64 = 1;

/// "Values": kinds.
pub(crate) mod kind {
    pub(crate) const LOST: u64 = 0;
    pub(crate) const FRAME: u64 = 1;
    pub(crate) const AT_FRAME: u64 = 2;
    pub(crate) const CONSTANT: u64 = 3;
    pub(crate) const ADDRESS: u64 = 4;
    pub(crate) const AT_ADDRESS: u64 = 5;
    pub(crate) const PARTS: u64 = 6;
    pub(crate) const COMPUTED: u64 = 7;
    /// From here on, three kinds for each register.
    pub(crate) const REGISTERS: u64 = 8;
    pub(crate) const REGISTER: u64 = 0;
    pub(crate) const AT_REGISTER: u64 = 1;
    pub(crate) const ENTRY: u64 = 2;
}

/// "Storages": a number for each; 0 if it is unknown or cannot be expressed.
pub(crate) fn storage_code(storage: Option<&Storage>) -> u64 {
    let Some(storage) = storage else { return 0 };
    let bank = |bank: Option<Bank>| match bank {
        None => 0,
        Some(Bank::General) => 1,
        Some(Bank::Vector) => 2,
    };
    let (passing, detail) = match storage.passing {
        Passing::Nothing => (1, 0),
        Passing::Eightbytes([one, other]) => (2, bank(one) * 3 + bank(other)),
        Passing::Members(count, bytes) => (3, u64::from(count) << 8 | u64::from(bytes)),
        Passing::General => (4, 0),
        Passing::Reference => (5, 0),
        Passing::Memory => (6, 0),
    };
    let align = u64::from(storage.align.trailing_zeros());
    if storage.bytes >= 1 << 40 || align > 7 {
        return 0;
    }
    // Usual storages have small numbers: eight or four bytes in one register.
    passing | align << 3 | detail << 6 | storage.bytes << 18
}

/// The storage with this number.
pub(crate) fn storage_of(code: u64) -> Option<Storage> {
    let bank = |number: u64| match number {
        1 => Some(Bank::General),
        2 => Some(Bank::Vector),
        _ => None,
    };
    let detail = code >> 6 & 0xfff;
    let passing = match code & 7 {
        1 => Passing::Nothing,
        2 => Passing::Eightbytes([bank(detail / 3), bank(detail % 3)]),
        3 => Passing::Members((detail >> 8) as u8, detail as u8),
        4 => Passing::General,
        5 => Passing::Reference,
        6 => Passing::Memory,
        _ => return None,
    };
    Some(Storage {
        passing,
        bytes: code >> 18,
        align: 1 << (code >> 3 & 7),
    })
}
