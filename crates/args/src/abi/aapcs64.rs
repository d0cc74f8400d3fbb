//! Procedure Call Standard for the Arm 64-bit Architecture (AAPCS64), 2023Q3, section 6.8.2
//! "Parameter passing rules".

use super::{Bank, Passing, Piece, Place, Placer, Storage, in_registers};
use crate::shape::{Form, Scalar, Shape};

/// x0 to x7 (section 6.1.1).
pub const GENERAL: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// v0 to v7 (section 6.1.2).
pub const VECTOR: [u8; 8] = [64, 65, 66, 67, 68, 69, 70, 71];

/// How an argument is passed; variadic ones are no exception ("Variadic subroutines").
pub fn classify(shape: &Shape) -> Storage {
    let storage = |passing| Storage {
        passing,
        bytes: shape.bytes,
        // B.6: copies of composites are aligned to 8 or 16 bytes.
        align: shape.align.clamp(8, 16),
    };
    if shape.bytes == 0 {
        return storage(Passing::Nothing);
    }
    let homogeneous = homogeneous(shape);
    match (shape.form, homogeneous) {
        // B.3, C.1 to C.6
        (_, Some((members, bytes))) => storage(Passing::Members(members, bytes)),
        // B.4; vectors that do not fit into a register are passed in the same way.
        (_, None) if shape.bytes > 16 => Storage {
            passing: Passing::Reference,
            bytes: shape.bytes,
            align: 8,
        },
        // C.7 to C.15
        _ => storage(Passing::General),
    }
}

/// Section 5.9.5 "Homogeneous Aggregates": the number and size of members, if all are floats or
/// vectors of one size.
fn homogeneous(shape: &Shape) -> Option<(u8, u8)> {
    let base = shape.leaves.first()?.scalar;
    let bytes = match base {
        Scalar::Float(bytes @ (2 | 4 | 8 | 16)) | Scalar::Vector(bytes @ (8 | 16)) => bytes,
        _ => return None,
    };
    let alike = |scalar| scalar == base;
    let fits = shape
        .leaves
        .iter()
        .all(|leaf| leaf.bits.is_none() && alike(leaf.scalar) && leaf.bit.is_multiple_of(bytes * 8));
    let members = shape.bytes / bytes;
    // No padding, and at most four members.
    let dense = fits && shape.bytes == members * bytes && (1..=4).contains(&members);
    let covered = |member| shape.leaves.iter().any(|leaf| leaf.bit == member * bytes * 8);
    let whole = dense && (0..members).all(covered);
    (whole || shape.form == Form::Scalar && fits).then_some((members as u8, bytes as u8))
}

/// Stage C.
pub(super) fn place(placer: &mut Placer, storage: &Storage, part: &mut dyn FnMut(Piece)) -> Option<()> {
    let doublewords = storage.bytes.div_ceil(8);
    match storage.passing {
        Passing::Nothing => return Some(()),
        Passing::Members(members, bytes) => {
            // C.1, C.2
            if let Some(registers) = placer.take(Bank::Vector, members.into()) {
                for (index, &register) in registers.iter().enumerate() {
                    part(Piece {
                        offset: index as u64 * u64::from(bytes),
                        bytes: bytes.into(),
                        place: Place::Register(register),
                    });
                }
                return Some(());
            }
            // C.3
            placer.used[Bank::Vector as usize] = VECTOR.len() as u8;
        }
        Passing::Reference => {
            // C.7, C.14: the address is an ordinary argument.
            match placer.take(Bank::General, 1) {
                Some(registers) => in_registers(registers, 8, part),
                None => {
                    placer.used[Bank::General as usize] = GENERAL.len() as u8;
                    placer.push(8, 8, part)?;
                }
            }
            return Some(());
        }
        _ => {
            // C.8
            let used = &mut placer.used[Bank::General as usize];
            if storage.align == 16 {
                *used = used.next_multiple_of(2).min(GENERAL.len() as u8);
            }
            // C.7, C.9, C.10
            if let Some(registers) = placer.take(Bank::General, doublewords) {
                in_registers(registers, storage.bytes, part);
                return Some(());
            }
            // C.11
            placer.used[Bank::General as usize] = GENERAL.len() as u8;
        }
    }
    // C.4, C.5, C.12 to C.15
    placer.push(storage.bytes, storage.align, part)
}
