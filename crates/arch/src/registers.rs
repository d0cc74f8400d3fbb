//! Register values, each known or unknown.

use crate::Register;

/// Number of registers that are tracked: DWARF numbers 0 to 31 (the general registers of every CPU
/// here, and SP).
pub const REGISTERS: usize = 32;

/// The register values of a frame. Registers that the frame's callee may have changed are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Program counter.
    pub pc: u64,
    values: [u64; REGISTERS],
    known: u32,
}

impl Registers {
    /// Registers of which only the program counter is known.
    pub const fn new(pc: u64) -> Self {
        Registers {
            pc,
            values: [0; REGISTERS],
            known: 0,
        }
    }

    /// The value of `register`, if known.
    #[expect(clippy::indexing_slicing, reason = "the number was compared")]
    #[inline]
    pub const fn get(&self, register: Register) -> Option<u64> {
        if (register.0 as usize) < REGISTERS && self.known >> register.0 & 1 != 0 {
            Some(self.values[register.0 as usize])
        } else {
            None
        }
    }

    /// Sets `register`; a number past the last is ignored.
    #[expect(clippy::indexing_slicing, reason = "the number was compared")]
    #[inline]
    pub const fn set(&mut self, register: Register, value: u64) {
        if (register.0 as usize) < REGISTERS {
            self.values[register.0 as usize] = value;
            self.known |= 1 << register.0;
        }
    }

    /// Whether no other registers are known.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below the length"
    )]
    #[inline]
    pub const fn are_only(&self, registers: &[Register]) -> bool {
        let mut others = self.known;
        let mut index = 0;
        while index < registers.len() {
            others &= !1u32.unbounded_shl(registers[index].0 as u32);
            index += 1;
        }
        others == 0
    }

    /// Forgets every register.
    #[inline]
    pub const fn forget_all(&mut self) {
        self.known = 0;
    }

    /// Forgets `register`.
    #[inline]
    pub const fn forget(&mut self, register: Register) {
        if (register.0 as usize) < REGISTERS {
            self.known &= !(1 << register.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown() {
        let mut registers = Registers::new(1);
        assert_eq!(registers.get(Register(7)), None);
        registers.set(Register(7), 70);
        registers.set(Register(6), 60);
        registers.set(Register(3), 30);
        registers.set(Register(200), 1);
        assert_eq!(registers.get(Register(3)), Some(30));
        assert_eq!(registers.get(Register(200)), None);
        registers.forget(Register(7));
        assert_eq!(registers.get(Register(7)), None);
        assert_eq!(registers.get(Register(6)), Some(60));
        assert!(registers.are_only(&[Register(3), Register(6), Register(7)]));
        assert!(!registers.are_only(&[Register(3), Register(200)]));
        registers.forget_all();
        assert_eq!(registers.get(Register(6)), None);
    }
}
