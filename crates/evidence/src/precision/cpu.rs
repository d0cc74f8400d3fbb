//! What an instruction does to the stack of calls; one implementation for each CPU.

use backtrail_arch::{Arch, Registers};

use super::shadow::Shadow;

/// An instruction, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Call,
    Return,
    /// Goes where a register says, and leaves no return address.
    Jump,
    /// Into the kernel.
    System,
    Push,
    Pop,
    Other,
}

/// What a system call may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// The end of a signal handler.
    SignalReturn,
    /// What is mapped where.
    Mappings,
    Other,
}

/// The kernel's frame of a signal, as it lies on the stack when its handler begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalEntry {
    /// Where the handler returns to.
    pub(crate) restorer: u64,
    /// Where what [`Arch::signal_frame`] counts from is, in bytes from the stack pointer.
    pub(crate) frame: u64,
    /// Where `uc_stack` is, from there.
    pub(crate) stack: u64,
}

/// An instruction that has run: what it was, and the registers before and after.
pub(crate) struct Ran<'r> {
    pub(crate) class: Class,
    pub(crate) before: &'r Registers,
    pub(crate) now: &'r Registers,
}

/// A CPU, as a shadow stack needs to know it.
pub(crate) trait Cpu {
    const ARCH: &'static Arch;
    /// Bytes of the longest instruction.
    const LONGEST: usize;
    /// Whether the slot of a call holds its return address.
    const RETURNS_BY_STACK: bool;

    /// Of the instruction that these bytes begin with.
    fn classify(code: &[u8]) -> Class;

    fn system_call(registers: &Registers) -> SystemCall;

    /// The frame of a handler that begins now.
    fn signal_entry(now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> SignalEntry;

    /// Changes the shadow as the instruction did. `is_inside` tells whether two addresses lie in
    /// one function, and the second is not its beginning.
    fn follow(
        shadow: &mut Shadow,
        ran: &Ran<'_>,
        word: &mut dyn FnMut(u64) -> u64,
        is_inside: &dyn Fn(u64, u64) -> bool,
    );

    /// Looks at the instruction that runs next. Returns whether it goes back to something else than
    /// its call told.
    fn arrive(shadow: &mut Shadow, class: Class, now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> bool;
}
