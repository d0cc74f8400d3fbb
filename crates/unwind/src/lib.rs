//! Steps up the stack: from a frame's registers to its caller's, by SFrame rows or frame pointers.
//!
//! Callers provide the registers of the innermost frame, a [`Memory`] that reads the stack, and
//! [`Modules`] that give the table for an address. This crate only computes: it does not allocate,
//! lock or panic, and reads memory only through [`Memory`], so that the same code serves a signal
//! handler, a live process and a core.
//!
//! It does not name functions, and does not restore registers other than PC, SP and FP. SFrame does
//! not describe them; only a signal frame restores all of them.
//!
//! ```
//! use backtrail_arch::{Registers, x86_64::ARCH};
//! use backtrail_sframe::write::{FunctionRows, Options, section};
//! use backtrail_sframe::{Abi, Location, Row, Rule, Section, Version};
//! use backtrail_unwind::{AddressKind, Coverage, Memory, Modules, RuleCache, Table, step};
//!
//! struct Stack { start: u64, words: Vec<u64> }
//! impl Memory for Stack {
//!     fn word(&mut self, address: u64) -> Option<u64> {
//!         let offset = address.checked_sub(self.start)?;
//!         self.words.get(offset as usize / 8).copied()
//!     }
//! }
//!
//! struct OneModule { table: Vec<u8>, base: u64 }
//! impl Modules for OneModule {
//!     fn coverage(&self, _address: u64) -> Coverage<'_> {
//!         match Section::parse(&self.table, 0) {
//!             Ok(section) => Coverage::Table(Table { section, index: None, bias: self.base, id: 0 }),
//!             Err(_) => Coverage::NoModule,
//!         }
//!     }
//! }
//!
//! // A function that has not moved the stack pointer yet: its return address is on top of the stack.
//! let rule = Rule::new(Location::register(ARCH.sp.0, 8), Location::saved(-8));
//! let function = FunctionRows::new(0x1000, 0x20, vec![Row { start: 0, rule: Some(rule) }]);
//! let table = section(&[function], &Options::new(Version::V3, Abi::Amd64Little, 0))?.bytes;
//! let modules = OneModule { table, base: 0x7f00_0000_0000 };
//! let mut stack = Stack { start: 0x7ffe_0000, words: vec![0x7f00_0000_4321] };
//!
//! let mut registers = Registers::new(0x7f00_0000_1004);
//! registers.set(ARCH.sp, 0x7ffe_0000);
//! let kind = step(&ARCH, &mut registers, AddressKind::Pc, &modules, &mut stack, &mut RuleCache::new(&mut []));
//! assert_eq!(kind, Ok(AddressKind::Ra));
//! assert_eq!((registers.pc, registers.get(ARCH.sp)), (0x7f00_0000_4321, Some(0x7ffe_0008)));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![cfg_attr(not(feature = "local"), forbid(unsafe_code))]

mod cache;
mod chain;
mod circle;
mod copy;
mod frame;
pub mod goroutine;
#[cfg(all(
    feature = "local",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod local;
mod memo;
mod record;
mod restore;
mod sink;
mod step;
mod trampoline;
mod walk;

pub use cache::{CacheEntry, RuleCache};
pub use chain::{Link, check_end, is_at_start, link};
pub use frame::{Frame, Position};
pub use memo::{Memo, MemoRead, MemoState};
pub use record::MemoStep;
pub use restore::{Restore, Restored, keep_register, step_restoring};
pub use step::{AddressKind, Stop, step};
pub use walk::walk;

use backtrail_arch::{Arch, Register};
use backtrail_sframe::{Index, Location, Rule, Section};

/// Reads the memory of the program being unwound.
pub trait Memory {
    /// The word at `address`, in the program's own byte order; `None` if it cannot be read,
    /// including at `u64::MAX`, where it would extend past the end of memory.
    fn word(&mut self, address: u64) -> Option<u64>;

    /// The word, if it is available without a copy; otherwise callers use [`Memory::word`].
    #[inline(always)]
    fn word_at_hand(&mut self, address: u64) -> Option<u64> {
        self.word(address)
    }

    /// The word before this address, if it is available without a copy.
    #[inline(always)]
    fn word_before_at_hand(&mut self, address: u64) -> Option<u64> {
        self.word_at_hand(address.wrapping_sub(8))
    }

    /// Two consecutive words, if both are available without a copy.
    #[inline(always)]
    fn words_at_hand(&mut self, address: u64) -> Option<(u64, u64)> {
        Some((self.word_at_hand(address)?, self.word_at_hand(address.wrapping_add(8))?))
    }

    /// Whether the word at `address` equals `value` in the bits of `mask`. Used to compare with the
    /// last walk: for memory that has been unmapped since, the answer may be true.
    #[inline(always)]
    fn is(&mut self, address: u64, mask: u64, value: u64) -> bool {
        self.word(address).is_some_and(|word| word & mask == value)
    }

    /// Whether the word at `address` is `first`, and the next word equals `second` in the bits of
    /// `mask`.
    #[inline(always)]
    fn are(&mut self, address: u64, first: u64, mask: u64, second: u64) -> bool {
        self.is(address, u64::MAX, first) && self.is(address.wrapping_add(8), mask, second)
    }
}

/// The unwind table for an address.
#[derive(Clone, Copy, Debug)]
pub struct Table<'t> {
    /// The SFrame section.
    pub section: Section<'t>,
    /// The section's own index, if one was made; it speeds up look-ups in large tables.
    pub index: Option<&'t Index<'t>>,
    /// Address in the process minus address in the table.
    pub bias: u64,
    /// A number that identifies this table, and no other, while a [`RuleCache`] is in use.
    pub id: u32,
}

/// What is known about an address.
#[derive(Clone, Copy, Debug)]
pub enum Coverage<'t> {
    /// A module with a table.
    Table(Table<'t>),
    /// A module whose rows come one by one from [`Modules::described`]. The number identifies them,
    /// like a table's; `bias` is as there.
    Described {
        /// As [`Table::id`].
        id: u32,
        /// As [`Table::bias`].
        bias: u64,
    },
    /// Code without any table, such as code made at run time: see [`Modules::uncovered`].
    FramePointer,
    /// Not known code.
    NoModule,
}

/// What call frame information says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Described {
    /// How to reach the caller.
    Caller {
        /// The rule, as in a table.
        rule: Rule,
        /// Whether the caller was interrupted.
        signal_frame: bool,
    },
    /// The outermost frame.
    Outermost,
    /// Nothing, or nothing that a rule can express.
    NotCovered,
}

/// How to leave a frame that no table row describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncovered {
    /// Not known: the walk stops.
    Unknown,
    /// By the chain of saved frame pointers.
    FramePointer,
    /// By this rule, which is based on the frame pointer, like [`Uncovered::FramePointer`].
    Linked(Rule),
    /// By this rule, derived from the instructions.
    Rule(Rule),
    /// By this rule, if the link register has an address in other code; else like
    /// [`Uncovered::FramePointer`].
    Leaf(Rule),
    /// By this rule, which needs no proof: it follows from what the instructions are for.
    Exact(Rule),
    /// By the next return address on a stack of tagged words, as Erlang's.
    Tagged {
        /// Where the code keeps its stack pointer, if it runs on another stack.
        stack: Option<Location>,
        /// What the instructions show.
        rule: Option<Rule>,
        /// The register with an address in the memory that such a stack is in, below it.
        heap: Register,
    },
    /// By the rule of this function, an interpreter: the code runs in the interpreter's frame, and
    /// an unknown number of bytes below it.
    Hosted {
        /// The interpreter's addresses: its start, and its end.
        function: (u64, u64),
        /// The interpreter's rule.
        rule: Rule,
    },
    /// It has no caller: the stack begins there.
    Outermost,
}

/// The meaning of the word on top of the stack, for interrupted code whose instructions don't show
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTop {
    /// Anything.
    Other,
    /// The return address: the code has not touched the stack yet.
    ReturnAddress,
    /// It may be the return address; the frame pointer is then still the caller's.
    Unclear,
}

/// Provides the table of the module that covers an address.
pub trait Modules {
    /// Whether [`Modules::is_lasting`] is ever true.
    const CAN_LAST: bool = false;

    /// The CPU, if only one is possible: walks are compiled for it, and ignore the one that they
    /// are given.
    const ARCH: Option<&'static Arch> = None;

    /// Whether [`Modules::on_top`] is to be called.
    const LOOKS_ON_TOP: bool = false;

    /// The coverage of `address`.
    fn coverage(&self, address: u64) -> Coverage<'_>;

    /// What is known about an address whose coverage is [`Coverage::Described`].
    fn described(&self, _address: u64) -> Described {
        Described::NotCovered
    }

    /// How to leave the frame at `pc`, which no table row describes; `in_table` if its module has a
    /// table that leaves it out.
    fn uncovered(&self, _pc: u64, _kind: AddressKind, in_table: bool) -> Uncovered {
        match in_table {
            true => Uncovered::Unknown,
            false => Uncovered::FramePointer,
        }
    }

    /// Whether `ra`, found without a table row, follows a call that can lead to `callee`, an
    /// address in the frame that it was found from.
    fn is_called(&self, _ra: u64, _callee: u64) -> bool {
        true
    }

    /// Whether `ra` follows a call that leads to code in this range of addresses.
    fn calls_into(&self, _ra: u64, _function: (u64, u64)) -> bool {
        false
    }

    /// Whether `address` lies in the stack that `sp` points to, as far as known. A frame that was
    /// found without a table row is accepted only if it does.
    fn is_same_stack(&self, _sp: u64, _address: u64) -> bool {
        true
    }

    /// The meaning of `word`, on top of the stack, for the interrupted code at `pc`, which is
    /// assumed to keep a frame pointer: `frame` bytes above the stack pointer, or 0.
    fn on_top(&self, _word: u64, _pc: u64, _frame: u64) -> OnTop {
        OnTop::Other
    }

    /// Whether the frame at `pc`, whose row is `rule`, is linked into the chain of frame pointers
    /// though the row does not need one: some compilers always keep it.
    fn links_frames(&self, _pc: u64, _kind: AddressKind, _rule: &Rule) -> bool {
        false
    }

    /// Whether the coverage of `address` stays the same while a [`RuleCache`] is in use, so that it
    /// need not be looked up again.
    fn is_lasting(&self, _address: u64) -> bool {
        false
    }
}
