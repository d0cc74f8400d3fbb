//! Frames, and positions of walks.

use backtrail_arch::Registers;

use crate::step::AddressKind;

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Whether it is a program counter or a return address.
    pub kind: AddressKind,
}

/// The position of a walk: a frame's registers, and the kind of its program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The registers.
    pub registers: Registers,
    /// [`AddressKind::Pc`] in interrupted code; [`AddressKind::Ra`] if the registers are those
    /// after a call has returned.
    pub kind: AddressKind,
}

impl Position {
    /// The position of code that was interrupted with these registers.
    pub const fn interrupted(registers: Registers) -> Position {
        Position {
            registers,
            kind: AddressKind::Pc,
        }
    }
}
