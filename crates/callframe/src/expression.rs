//! DWARF expressions in call frame information (DWARF 5, sections 2.5 and 6.4.2).

use backtrail_arch::Register;

use crate::reader::{Cursor, Reader, Source};

/// Where registers and memory come from.
pub(crate) trait Values {
    fn register(&mut self, register: Register) -> Option<u64>;
    fn word(&mut self, address: u64) -> Option<u64>;
}

const DEEPEST: usize = 16;
const MOST_OPERATIONS: u32 = 1024;

struct Stack {
    values: [u64; DEEPEST],
    depth: usize,
}

impl Stack {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth = self.depth.saturating_add(1);
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.depth = self.depth.checked_sub(1)?;
        self.values.get(self.depth).copied()
    }

    /// The value this many entries below the top one.
    fn pick(&self, below: usize) -> Option<u64> {
        let at = self.depth.checked_sub(below)?.checked_sub(1)?;
        self.values.get(at).copied()
    }

    fn two(&mut self, act: impl FnOnce(u64, u64) -> Option<u64>) -> Option<()> {
        let (second, first) = (self.pop()?, self.pop()?);
        self.push(act(first, second)?)
    }

    fn one(&mut self, act: impl FnOnce(u64) -> u64) -> Option<()> {
        let value = self.pop()?;
        self.push(act(value))
    }
}

/// Evaluates an expression that begins with `cfa` on its stack, if given.
pub(crate) fn evaluate<S: Source>(
    code: Cursor,
    cfa: Option<u64>,
    reader: &mut Reader<'_, S>,
    values: &mut impl Values,
) -> Option<u64> {
    let mut stack = Stack {
        values: [0; DEEPEST],
        depth: 0,
    };
    if let Some(cfa) = cfa {
        stack.push(cfa)?;
    }
    let mut cursor = code;
    let mut left = MOST_OPERATIONS;
    while !cursor.is_at_end() {
        left = left.checked_sub(1)?;
        let opcode = reader.u8(&mut cursor)?;
        match opcode {
            // DW_OP_skip and DW_OP_bra.
            0x2f | 0x28 => {
                let distance = i64::from(reader.u16(&mut cursor)? as i16);
                if opcode == 0x2f || stack.pop()? != 0 {
                    let at = cursor.at.checked_add_signed(distance)?;
                    cursor.at = Some(at).filter(|at| (code.at..=code.end).contains(at))?;
                }
            }
            0x06 => {
                let address = stack.pop()?;
                stack.push(values.word(address)?)?;
            }
            0x94 => {
                let bytes = reader.u8(&mut cursor)?;
                let address = stack.pop()?;
                stack.push(part(values, address, bytes)?)?;
            }
            0x70..=0x8f => {
                let value = values.register(Register(opcode.wrapping_sub(0x70)))?;
                stack.push(value.wrapping_add_signed(reader.sleb(&mut cursor)?))?;
            }
            0x92 => {
                let register = u8::try_from(reader.uleb(&mut cursor)?).ok()?;
                let value = values.register(Register(register))?;
                stack.push(value.wrapping_add_signed(reader.sleb(&mut cursor)?))?;
            }
            0x30..=0x4f => stack.push(u64::from(opcode.wrapping_sub(0x30)))?,
            0x03 | 0x08..=0x11 => stack.push(constant(opcode, &mut cursor, reader)?)?,
            0x23 => {
                let more = reader.uleb(&mut cursor)?;
                stack.one(|value| value.wrapping_add(more))?;
            }
            0x15 => {
                let below = reader.u8(&mut cursor)?;
                stack.push(stack.pick(below.into())?)?;
            }
            _ => plain(opcode, &mut stack)?,
        }
    }
    stack.pop()
}

/// Reads this many bytes of memory, which may span two words.
fn part(values: &mut impl Values, address: u64, bytes: u8) -> Option<u64> {
    let bits = u32::from(bytes).checked_mul(8).filter(|bits| (8..=64).contains(bits))?;
    let word = values.word(address)?;
    Some(word & u64::MAX.unbounded_shr(64u32.saturating_sub(bits)))
}

fn constant<S: Source>(opcode: u8, cursor: &mut Cursor, reader: &mut Reader<'_, S>) -> Option<u64> {
    Some(match opcode {
        0x03 | 0x0e | 0x0f => reader.u64(cursor)?,
        0x08 => reader.u8(cursor)?.into(),
        0x09 => i64::from(reader.u8(cursor)? as i8) as u64,
        0x0a => reader.u16(cursor)?.into(),
        0x0b => i64::from(reader.u16(cursor)? as i16) as u64,
        0x0c => reader.u32(cursor)?.into(),
        0x0d => i64::from(reader.u32(cursor)? as i32) as u64,
        0x10 => reader.uleb(cursor)?,
        _ => reader.sleb(cursor)? as u64,
    })
}

/// Operations on the stack alone.
fn plain(opcode: u8, stack: &mut Stack) -> Option<()> {
    let shift = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
    let signed = |a: u64, b: u64| (a as i64, b as i64);
    match opcode {
        0x12 => stack.push(stack.pick(0)?),
        0x13 => stack.pop().map(drop),
        0x14 => stack.push(stack.pick(1)?),
        0x16 => {
            let (top, next) = (stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(next)
        }
        0x17 => {
            let (top, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(third)?;
            stack.push(second)
        }
        0x19 => stack.one(|value| (value as i64).unsigned_abs()),
        0x1a => stack.two(|a, b| Some(a & b)),
        0x1b => stack.two(|a, b| (a as i64).checked_div(b as i64).map(|value| value as u64)),
        0x1c => stack.two(|a, b| Some(a.wrapping_sub(b))),
        0x1d => stack.two(u64::checked_rem),
        0x1e => stack.two(|a, b| Some(a.wrapping_mul(b))),
        0x1f => stack.one(u64::wrapping_neg),
        0x20 => stack.one(|value| !value),
        0x21 => stack.two(|a, b| Some(a | b)),
        0x22 => stack.two(|a, b| Some(a.wrapping_add(b))),
        0x24 => stack.two(|a, b| Some(a.unbounded_shl(shift(b)))),
        0x25 => stack.two(|a, b| Some(a.unbounded_shr(shift(b)))),
        0x26 => stack.two(|a, b| Some((a as i64).unbounded_shr(shift(b)) as u64)),
        0x27 => stack.two(|a, b| Some(a ^ b)),
        0x29 => stack.two(|a, b| Some((a == b).into())),
        0x2a => stack.two(|a, b| Some((signed(a, b).0 >= signed(a, b).1).into())),
        0x2b => stack.two(|a, b| Some((signed(a, b).0 > signed(a, b).1).into())),
        0x2c => stack.two(|a, b| Some((signed(a, b).0 <= signed(a, b).1).into())),
        0x2d => stack.two(|a, b| Some((signed(a, b).0 < signed(a, b).1).into())),
        0x2e => stack.two(|a, b| Some((a != b).into())),
        0x96 => Some(()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Code([u64; 32]);

    impl Source for Code {
        fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
            let from = self.0.get(address as usize / 8..).unwrap_or_default();
            for (word, from) in words.iter_mut().zip(from) {
                *word = *from;
            }
            from.len().min(words.len())
        }
    }

    struct Machine;

    impl Values for Machine {
        fn register(&mut self, register: Register) -> Option<u64> {
            Some(1000 * u64::from(register.0) + 12)
        }

        fn word(&mut self, address: u64) -> Option<u64> {
            Some(!address)
        }
    }

    fn value(bytes: &[u8], cfa: Option<u64>) -> Option<u64> {
        let mut code = Code([0; 32]);
        for (at, byte) in bytes.iter().enumerate() {
            let mut word = code.0[at / 8].to_ne_bytes();
            word[at % 8] = *byte;
            code.0[at / 8] = u64::from_ne_bytes(word);
        }
        let all = Cursor {
            at: 0,
            end: bytes.len() as u64,
        };
        evaluate(all, cfa, &mut Reader::new(&mut code), &mut Machine)
    }

    #[test]
    fn operations() {
        for (bytes, cfa, expected) in [
            // The rule of x86-64's linkage tables: rsp + 8 + ((rip & 15) >= 11) * 8.
            (
                &[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22][..],
                None,
                Some(7028),
            ),
            (&[0x77, 0x78, 0x06], None, Some(!7004)),
            (&[0x94, 4], Some(1), Some(0xffff_fffe)),
            (&[0x31, 0x32, 0x16, 0x1c], None, Some(1)),
            (&[0x31, 0x32, 0x33, 0x17, 0x1c], None, Some(1u64.wrapping_sub(2))),
            (&[0x35, 0x12, 0x1e, 0x14], Some(7), Some(7)),
            (&[0x12, 0x14, 0x22], Some(7), Some(14)),
            (&[0x09, 0xff, 0x11, 0x7f, 0x29], None, Some(1)),
            (&[0x0a, 1, 2, 0x23, 0x81, 1], None, Some(0x282)),
            (&[0x35, 0x30, 0x1b], None, None),
            // Skips one operation, and goes back for ever.
            (&[0x31, 0x2f, 1, 0, 0x32], None, Some(1)),
            (&[0x2f, 0xfd, 0xff], None, None),
            (&[0x22], None, None),
            (&[0xff], None, None),
            (&[], None, None),
        ] {
            assert_eq!(value(bytes, cfa), expected, "{bytes:x?}");
        }
        assert_eq!(value(&[0x31; 17], None), None);
    }
}
