//! Numbers of CPUs ([`File::machine`](crate::File::machine); gABI 4.3, "ELF Header", and the
//! processor supplements).

/// Intel 80386 and its 32-bit successors.
pub const EM_386: u16 = 3;
/// 32-bit PowerPC.
pub const EM_PPC: u16 = 20;
/// 64-bit PowerPC.
pub const EM_PPC64: u16 = 21;
/// IBM's S/390, and z/Architecture.
pub const EM_S390: u16 = 22;
/// 32-bit Arm.
pub const EM_ARM: u16 = 40;
/// x86-64.
pub const EM_X86_64: u16 = 62;
/// 64-bit Arm.
pub const EM_AARCH64: u16 = 183;
/// RISC-V.
pub const EM_RISCV: u16 = 243;
