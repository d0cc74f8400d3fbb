//! Parsing opcodes ("Instructions").

use crate::Frame;
use crate::constants::*;

/// A parsed opcode.
#[derive(Clone, Copy)]
pub(super) enum Instruction {
    End,
    Trunc,
    Address {
        frame: fn(u64) -> Frame,
        absolute: bool,
        bytes: usize,
    },
    Omit(Count),
    Rep(Count),
    Reserved,
}

/// A count: inside the opcode, or in the given number of bytes after it.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Internal(u64),
    External { bytes: usize },
}

impl Instruction {
    pub(super) fn of(opcode: u8) -> Instruction {
        match opcode {
            END => Instruction::End,
            TRUNC => Instruction::Trunc,
            PC..OMIT => Instruction::Address {
                frame: match opcode & ADDRESS_KIND_MASK {
                    PC => Frame::Pc,
                    RA => Frame::Ra,
                    _ => Frame::Async,
                },
                absolute: opcode & ADDRESS_ABSOLUTE != 0,
                bytes: usize::from(opcode & ADDRESS_COUNT_MASK) + 1,
            },
            OMIT..REP => Instruction::Omit(Count::of(opcode, OMIT_EXTERNAL, OMIT_COUNT_MASK)),
            REP..0x90 => Instruction::Rep(Count::of(opcode, REP_EXTERNAL, REP_COUNT_MASK)),
            _ => Instruction::Reserved,
        }
    }
}

impl Count {
    fn of(opcode: u8, external: u8, mask: u8) -> Count {
        let count = opcode & mask;
        if opcode & external != 0 {
            Count::External {
                bytes: usize::from(count) + 1,
            }
        } else {
            Count::Internal(u64::from(count) + 1)
        }
    }
}
