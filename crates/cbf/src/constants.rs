//! The information byte and the opcodes, by the names of the format's description.

/// "General Format": the version that is described, in the upper six bits of the information byte.
pub const VERSION: u8 = 0;
/// "General Format": where the version begins in the information byte.
pub const VERSION_SHIFT: u32 = 2;
/// "General Format": the bits of the information byte that tell the word size.
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

/// "`pc`, `ra`, `async`": the bits that tell the three apart.
pub const ADDRESS_KIND_MASK: u8 = 0x30;
/// "`pc`, `ra`, `async`": the `a` bit. The address is the value itself, not its distance to the
/// address before.
pub const ADDRESS_ABSOLUTE: u8 = 0x08;
/// "`pc`, `ra`, `async`": bytes of the value, less one.
pub const ADDRESS_COUNT_MASK: u8 = 0x07;
/// "`omit`": the `x` bit. The count follows, in as many bytes (less one) as the opcode's count
/// says.
pub const OMIT_EXTERNAL: u8 = 0x20;
/// "`omit`": the count, less one; or the bytes of the count, less one.
pub const OMIT_COUNT_MASK: u8 = 0x1f;
/// "`rep`": the `x` bit, as for `omit`.
pub const REP_EXTERNAL: u8 = 0x08;
/// "`rep`": the count of further copies, less one; or the bytes of that count, less one.
pub const REP_COUNT_MASK: u8 = 0x07;
