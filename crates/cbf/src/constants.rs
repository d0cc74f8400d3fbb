//! The information byte and the opcodes, by the names of the format's description.

/// "General Format": the described version, in the upper six bits of the information byte.
pub const VERSION: u8 = 0;
/// "General Format": the lowest bit of the version in the information byte.
pub const VERSION_SHIFT: u32 = 2;
/// "General Format": the bits of the information byte that hold the word size.
pub const SIZE_MASK: u8 = 0x03;

/// "`end`/`trunc`": the end of the backtrace.
pub const END: u8 = 0x00;
/// "`end`/`trunc`": the end of the data; the stack went on.
pub const TRUNC: u8 = 0x01;
/// "`pc`, `ra`, `async`": a program counter value follows.
pub const PC: u8 = 0x10;
/// "`pc`, `ra`, `async`": a return address follows.
pub const RA: u8 = 0x20;
/// "`pc`, `ra`, `async`": an async resume point follows.
pub const ASYNC: u8 = 0x30;
/// "`omit`": frames were left out.
pub const OMIT: u8 = 0x40;
/// "`rep`": the previous frame again.
pub const REP: u8 = 0x80;

/// "`pc`, `ra`, `async`": the bits that distinguish the three opcodes.
pub const ADDRESS_KIND_MASK: u8 = 0x30;
/// "`pc`, `ra`, `async`": the `a` bit. The value is the address itself, not its distance from the
/// previous address.
pub const ADDRESS_ABSOLUTE: u8 = 0x08;
/// "`pc`, `ra`, `async`": the length of the value in bytes, minus one.
pub const ADDRESS_COUNT_MASK: u8 = 0x07;
/// "`omit`": the `x` bit. The opcode's count field holds the length of the count that follows, in
/// bytes, minus one.
pub const OMIT_EXTERNAL: u8 = 0x20;
/// "`omit`": the count, or its length in bytes, minus one.
pub const OMIT_COUNT_MASK: u8 = 0x1f;
/// "`rep`": the `x` bit, as for `omit`.
pub const REP_EXTERNAL: u8 = 0x08;
/// "`rep`": the number of further copies, or the length of that number in bytes, minus one.
pub const REP_COUNT_MASK: u8 = 0x07;
