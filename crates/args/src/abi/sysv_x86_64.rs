//! System V Application Binary Interface, AMD64 Architecture Processor Supplement 1.0, section
//! 3.2.3 "Parameter Passing".

use super::{Bank, Passing, Piece, Place, Placer, Storage, in_registers};
use crate::shape::{Form, LARGEST, Scalar, Shape};

/// rdi, rsi, rdx, rcx, r8, r9 ("Passing", 2).
pub const GENERAL: [u8; 6] = [5, 4, 1, 2, 8, 9];
/// xmm0 to xmm7 ("Passing", 3).
pub const VECTOR: [u8; 8] = [17, 18, 19, 20, 21, 22, 23, 24];

/// "Classes".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// INTEGER
    Integer,
    /// SSE
    Sse,
    /// SSEUP
    SseUp,
    /// X87
    X87,
    /// X87UP
    X87Up,
    /// COMPLEX_X87
    ComplexX87,
    /// NO_CLASS
    NoClass,
    /// MEMORY
    Memory,
}

/// The widest vector registers that a program was compiled for; wider vectors are passed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// 16 bytes.
    Sse,
    /// 32 bytes.
    Avx,
    /// 64 bytes.
    Avx512,
}

impl Vectors {
    fn bytes(self) -> u64 {
        match self {
            Vectors::Sse => 16,
            Vectors::Avx => 32,
            Vectors::Avx512 => 64,
        }
    }
}

const EIGHTBYTES: usize = LARGEST as usize / 8;

/// The classes of the eightbytes of a value. The first is MEMORY if all are.
pub fn classes(shape: &Shape, vectors: Vectors) -> ([Class; EIGHTBYTES], usize) {
    let memory = ([Class::Memory; EIGHTBYTES], 1);
    if shape.form == Form::Complex && shape.leaves.iter().any(|leaf| matches!(leaf.scalar, Scalar::X87(_))) {
        return ([Class::ComplexX87; EIGHTBYTES], 1);
    }
    // "If the size of an object is larger than eight eightbytes, or it contains unaligned fields,
    // it has class MEMORY."
    if shape.bytes > LARGEST {
        return memory;
    }
    let mut classes = [Class::NoClass; EIGHTBYTES];
    for leaf in &shape.leaves {
        let bytes = leaf.scalar.bytes().max(1);
        let end = leaf.bit.saturating_add(leaf.bits.unwrap_or(bytes * 8));
        if end > shape.bytes * 8 || leaf.bits == Some(0) {
            continue;
        }
        if leaf.bits.is_none() && !leaf.bit.is_multiple_of(bytes.min(16) * 8) {
            return memory;
        }
        let (first, last) = ((leaf.bit / 64) as usize, ((end - 1) / 64) as usize);
        for (eightbyte, merging) in classes.iter_mut().enumerate().take(last + 1).skip(first) {
            let class = match (leaf.scalar, eightbyte == first) {
                (Scalar::Integer(_), _) => Class::Integer,
                (Scalar::Vector(bytes), _) if bytes > vectors.bytes() => return memory,
                (Scalar::Float(_) | Scalar::Vector(_), true) => Class::Sse,
                (Scalar::Float(_) | Scalar::Vector(_), false) => Class::SseUp,
                (Scalar::X87(_), true) => Class::X87,
                (Scalar::X87(_), false) => Class::X87Up,
            };
            *merging = merged(*merging, class);
        }
    }
    let count = (shape.bytes.div_ceil(8) as usize).min(EIGHTBYTES);
    if clean_up(&mut classes[..count]).is_none() {
        return memory;
    }
    (classes, count)
}

/// "Classification", 4: two fields in one eightbyte.
fn merged(one: Class, other: Class) -> Class {
    use Class::{ComplexX87, Integer, Memory, NoClass, Sse, X87, X87Up};
    match (one, other) {
        _ if one == other => one,
        (NoClass, class) | (class, NoClass) => class,
        (Memory, _) | (_, Memory) => Memory,
        (Integer, _) | (_, Integer) => Integer,
        (X87 | X87Up | ComplexX87, _) | (_, X87 | X87Up | ComplexX87) => Memory,
        _ => Sse,
    }
}

/// "Classification", 5: the post merger clean-up. `None`: the whole is passed in memory.
fn clean_up(classes: &mut [Class]) -> Option<()> {
    if classes.contains(&Class::Memory) {
        return None;
    }
    let preceded = |classes: &[Class], index: usize, by: &[Class]| index > 0 && by.contains(&classes[index - 1]);
    for index in 0..classes.len() {
        if classes[index] == Class::X87Up && !preceded(classes, index, &[Class::X87]) {
            return None;
        }
    }
    if classes.len() > 2 && (classes[0] != Class::Sse || classes[1..].iter().any(|&class| class != Class::SseUp)) {
        return None;
    }
    for index in 0..classes.len() {
        if classes[index] == Class::SseUp && !preceded(classes, index, &[Class::Sse, Class::SseUp]) {
            classes[index] = Class::Sse;
        }
    }
    Some(())
}

/// How an argument is passed. Variadic vectors of more than 16 bytes are passed in memory
/// ("Passing").
pub fn classify(shape: &Shape, named: bool, vectors: Vectors) -> Storage {
    let (classes, count) = classes(shape, vectors);
    let passing = match classes[..count] {
        [] => Passing::Nothing,
        // "Passing", 1 and 5.
        [Class::Memory | Class::X87 | Class::ComplexX87, ..] => Passing::Memory,
        [Class::Sse, Class::SseUp, ..] if count > 2 && !named => Passing::Memory,
        [Class::Sse, Class::SseUp, ..] => Passing::Members(1, shape.bytes as u8),
        [one] => Passing::Eightbytes([bank(one), None]),
        [one, other, ..] => Passing::Eightbytes([bank(one), bank(other)]),
    };
    Storage {
        passing: match passing {
            Passing::Eightbytes([None, None]) => Passing::Nothing,
            passing => passing,
        },
        bytes: shape.bytes,
        align: shape.align,
    }
}

fn bank(class: Class) -> Option<Bank> {
    match class {
        Class::Integer => Some(Bank::General),
        Class::Sse | Class::SseUp => Some(Bank::Vector),
        _ => None,
    }
}

/// "Returning of Values", 2: the caller passes an address in rdi.
pub fn is_result_in_memory(shape: &Shape, vectors: Vectors) -> bool {
    matches!(classes(shape, vectors), ([Class::Memory, ..], 1..))
}

/// "Passing": left to right; if too few registers are left for an argument, all of it is on the
/// stack.
pub(super) fn place(placer: &mut Placer, storage: &Storage, part: &mut dyn FnMut(Piece)) -> Option<()> {
    let before = placer.used;
    let in_registers = match storage.passing {
        Passing::Nothing => return Some(()),
        Passing::Members(1, _) => {
            let registers = placer.take(Bank::Vector, 1);
            registers.map(|registers| {
                part(Piece {
                    offset: 0,
                    bytes: storage.bytes,
                    place: Place::Register(registers[0]),
                });
            })
        }
        Passing::Eightbytes(banks) => {
            let taken = banks.map(|bank| bank.map(|bank| placer.take(bank, 1)));
            let all = !taken.contains(&Some(None));
            for (offset, registers) in (0..).step_by(8).zip(taken).filter(|_| all) {
                if let Some(Some(registers)) = registers {
                    part(Piece {
                        offset,
                        bytes: (storage.bytes.checked_sub(offset)?).min(8),
                        place: Place::Register(registers[0]),
                    });
                }
            }
            all.then_some(())
        }
        // Not in C: how C++ classes and Rust types may be passed.
        Passing::Reference => match placer.take(Bank::General, 1) {
            Some(registers) => {
                in_registers(registers, 8, part);
                Some(())
            }
            None => return placer.push(8, 8, part),
        },
        _ => None,
    };
    if in_registers.is_none() {
        placer.used = before;
        placer.push(storage.bytes, storage.align, part)?;
    }
    Some(())
}
