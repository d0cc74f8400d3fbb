//! Frames, and where a walk is.

use backtrail_arch::Registers;

use crate::step::AddressKind;

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Which of the two.
    pub kind: AddressKind,
}

/// Where a walk is: a frame's registers, and what its program counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The registers.
    pub registers: Registers,
    /// [`AddressKind::Pc`] in code that was interrupted; [`AddressKind::Ra`] where the registers
    /// are those after a call has returned.
    pub kind: AddressKind,
}

impl Position {
    /// Code that was interrupted with these registers.
    pub const fn interrupted(registers: Registers) -> Position {
        Position {
            registers,
            kind: AddressKind::Pc,
        }
    }
}
