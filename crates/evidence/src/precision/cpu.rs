//! What an instruction does to the stack of calls; one implementation for each CPU.

use backtrail_arch::{Arch, Registers};

use super::shadow::Shadow;

/// The kind of an instruction, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Call,
    Return,
    /// Jumps to the address in a register, without a return address.
    Jump,
    /// A system call.
    System,
    Push,
    Pop,
    Other,
}

/// The effect of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// The end of a signal handler.
    SignalReturn,
    /// Changes mappings.
    Mappings,
    Other,
}

/// The kernel's frame of a signal, as it lies on the stack when its handler begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalEntry {
    /// The return address of the handler.
    pub(crate) restorer: u64,
    /// The base of [`Arch::signal_frame`], in bytes from the stack pointer.
    pub(crate) frame: u64,
    /// `uc_stack`, relative to that base.
    pub(crate) stack: u64,
}

/// An instruction that has run: what it was, and the registers before and after.
pub(crate) struct Ran<'r> {
    pub(crate) class: Class,
    pub(crate) before: &'r Registers,
    pub(crate) now: &'r Registers,
}

/// A CPU, as far as a shadow stack depends on it.
pub(crate) trait Cpu {
    const ARCH: &'static Arch;
    /// Bytes of the longest instruction.
    const LONGEST: usize;
    /// Whether the slot of a call holds its return address.
    const RETURNS_BY_STACK: bool;

    /// Classifies the instruction at the start of these bytes.
    fn classify(code: &[u8]) -> Class;

    fn system_call(registers: &Registers) -> SystemCall;

    /// The frame of a handler that starts now.
    fn signal_entry(now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> SignalEntry;

    /// Changes the shadow as the instruction did. `is_inside` returns whether two addresses lie in
    /// one function, and the second is not its start.
    fn follow(
        shadow: &mut Shadow,
        ran: &Ran<'_>,
        word: &mut dyn FnMut(u64) -> u64,
        is_inside: &dyn Fn(u64, u64) -> bool,
    );

    /// Looks at the instruction that runs next. Returns whether it returns to another address than
    /// that of its call.
    fn arrive(shadow: &mut Shadow, class: Class, now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> bool;
}
