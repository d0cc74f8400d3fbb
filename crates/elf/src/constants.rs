//! Names and numbers of the ELF specification (gABI 4.3) and its GNU extensions that are used here.

pub(crate) const ELFCLASS32: u8 = 1;
pub(crate) const ELFCLASS64: u8 = 2;
pub(crate) const ELFDATA2LSB: u8 = 1;
pub(crate) const ELFDATA2MSB: u8 = 2;

/// Size of `Elf64_Ehdr`.
pub(crate) const EHDR_BYTES: usize = 64;
/// Size of `Elf32_Ehdr`.
pub(crate) const EHDR32_BYTES: usize = 52;
/// Size of `Elf64_Phdr`.
pub(crate) const PHDR_BYTES: usize = 56;
/// Size of `Elf32_Phdr`.
pub(crate) const PHDR32_BYTES: usize = 32;
/// Size of `Elf64_Shdr`.
pub(crate) const SHDR_BYTES: usize = 64;
/// Size of `Elf32_Shdr`.
pub(crate) const SHDR32_BYTES: usize = 40;
/// Size of `Elf64_Sym`.
pub(crate) const SYM_BYTES: usize = 24;
/// Size of `Elf32_Sym`.
pub(crate) const SYM32_BYTES: usize = 16;
/// Size of `Elf64_Rela`.
pub(crate) const RELA_BYTES: usize = 24;

/// `R_X86_64_32`, `_64`, `_PC32` and `_PC64`.
pub(crate) const X86_64_RELOCATIONS: [u32; 4] = [10, 1, 2, 24];
/// `R_AARCH64_ABS32`, `_ABS64`, `_PREL32` and `_PREL64`.
pub(crate) const AARCH64_RELOCATIONS: [u32; 4] = [258, 257, 261, 260];
/// `R_390_32`, `_64`, `_PC32` and `_PC64`.
pub(crate) const S390X_RELOCATIONS: [u32; 4] = [4, 22, 5, 23];
/// `R_386_32` and `_PC32`; the machine has no 8-byte ones.
pub(crate) const I386_RELOCATIONS: [u32; 4] = [1, R_NONE, 2, R_NONE];
/// `R_ARM_ABS32` and `_REL32`.
pub(crate) const ARM_RELOCATIONS: [u32; 4] = [2, R_NONE, 3, R_NONE];
/// `R_PPC_ADDR32` and `_REL32`.
pub(crate) const PPC_RELOCATIONS: [u32; 4] = [1, R_NONE, 26, R_NONE];
/// `R_PPC64_ADDR32`, `_ADDR64`, `_REL32` and `_REL64`.
pub(crate) const PPC64_RELOCATIONS: [u32; 4] = [1, 38, 26, 44];
/// `R_*_NONE`: nothing to do.
pub(crate) const R_NONE: u32 = 0;

pub(crate) const ET_REL: u16 = 1;
pub(crate) const ET_EXEC: u16 = 2;
pub(crate) const ET_DYN: u16 = 3;
pub(crate) const ET_CORE: u16 = 4;

pub(crate) use crate::machines::*;

/// `e_phnum`: the number is in `sh_info` of section 0.
pub(crate) const PN_XNUM: u16 = 0xffff;
/// `e_shstrndx`: the number is in `sh_link` of section 0.
pub(crate) const SHN_XINDEX: u16 = 0xffff;
pub(crate) const SHN_UNDEF: u16 = 0;
/// Section numbers from here on are reserved for special meanings.
pub(crate) const SHN_LORESERVE: u16 = 0xff00;

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub(crate) const PT_GNU_SFRAME: u32 = 0x6474_e554;

pub(crate) const PF_X: u32 = 1;

pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_STRTAB: u32 = 3;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOTE: u32 = 7;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_DYNSYM: u32 = 11;
pub(crate) const SHT_GNU_SFRAME: u32 = 0x6fff_fff4;

pub(crate) const SHF_ALLOC: u64 = 2;
pub(crate) const SHF_EXECINSTR: u64 = 4;
pub(crate) const SHF_COMPRESSED: u64 = 0x800;

pub(crate) const ELFCOMPRESS_ZLIB: u32 = 1;
pub(crate) const ELFCOMPRESS_ZSTD: u32 = 2;
/// Size of `Elf64_Chdr`.
pub(crate) const CHDR_BYTES: usize = 24;
/// Size of `Elf32_Chdr`.
pub(crate) const CHDR32_BYTES: usize = 12;

pub(crate) const NT_GNU_BUILD_ID: u32 = 3;
/// `ELF_NOTE_GOBUILDID_TAG`, `cmd/link/internal/ld/elf.go`.
pub(crate) const NT_GO_BUILD_ID: u32 = 4;

/// Notes of cores (`linux/elf.h`), all of the owner `CORE`.
pub(crate) const NT_PRSTATUS: u32 = 1;
pub(crate) const NT_PRFPREG: u32 = 2;
pub(crate) const NT_PRPSINFO: u32 = 3;
pub(crate) const NT_AUXV: u32 = 6;
/// Of AArch64, by Linux.
pub(crate) const NT_ARM_SVE: u32 = 0x405;
pub(crate) const NT_ARM_PAC_MASK: u32 = 0x406;
pub(crate) const NT_FILE: u32 = 0x4649_4c45;
pub(crate) const NT_SIGINFO: u32 = 0x5349_4749;

pub(crate) const DT_NULL: u64 = 0;
pub(crate) const DT_HASH: u64 = 4;
pub(crate) const DT_STRTAB: u64 = 5;
pub(crate) const DT_SYMTAB: u64 = 6;
pub(crate) const DT_STRSZ: u64 = 10;
pub(crate) const DT_GNU_HASH: u64 = 0x6fff_fef5;

pub(crate) const STB_LOCAL: u8 = 0;
pub(crate) const STT_NOTYPE: u8 = 0;
pub(crate) const STT_FUNC: u8 = 2;
pub(crate) const STT_SECTION: u8 = 3;
pub(crate) const STT_TLS: u8 = 6;
pub(crate) const STT_GNU_IFUNC: u8 = 10;

/// `PF_W`.
pub(crate) const PF_W: u32 = 2;
/// `PF_R`.
pub(crate) const PF_R: u32 = 4;
pub(crate) const PT_NULL: u32 = 0;
pub(crate) const PT_INTERP: u32 = 3;
pub(crate) const PT_PHDR: u32 = 6;
pub(crate) const PT_GNU_PROPERTY: u32 = 0x6474_e553;
pub(crate) const SHT_NULL: u32 = 0;
pub(crate) const SHT_PROGBITS: u32 = 1;
pub(crate) const SHT_HASH: u32 = 5;
pub(crate) const SHT_REL: u32 = 9;
pub(crate) const SHT_GROUP: u32 = 17;
pub(crate) const SHT_SYMTAB_SHNDX: u32 = 18;
/// `SHT_CREL`: relocations in the compact form of LLVM.
pub(crate) const SHT_CREL: u32 = 0x4000_0014;
pub(crate) const SHT_GNU_HASH: u32 = 0x6fff_fff6;
pub(crate) const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
pub(crate) const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
pub(crate) const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;
pub(crate) const SHF_INFO_LINK: u64 = 0x40;
pub(crate) const SHF_GROUP: u64 = 0x200;
pub(crate) const SHN_ABS: u16 = 0xfff1;
pub(crate) const DT_PLTRELSZ: u64 = 2;
pub(crate) const DT_RELA: u64 = 7;
pub(crate) const DT_RELASZ: u64 = 8;
pub(crate) const DT_SONAME: u64 = 14;
pub(crate) const DT_REL: u64 = 17;
pub(crate) const DT_JMPREL: u64 = 23;
pub(crate) const DT_RELRSZ: u64 = 35;
pub(crate) const DT_RELR: u64 = 36;
/// Android's packed relocations.
pub(crate) const DT_ANDROID_REL: u64 = 0x6000_000f;
pub(crate) const DT_ANDROID_RELA: u64 = 0x6000_0011;
pub(crate) const DT_VERSYM: u64 = 0x6fff_fff0;
pub(crate) const DT_VERDEF: u64 = 0x6fff_fffc;
pub(crate) const DT_VERNEED: u64 = 0x6fff_fffe;

/// Offsets of fields in `Elf64_Ehdr`, for messages.
pub(crate) const E_TYPE: u64 = 16;
pub(crate) const E_SHOFF: u64 = 40;
pub(crate) const E_PHENTSIZE: u64 = 54;
pub(crate) const E_PHNUM: u64 = 56;

/// Segments are aligned to pages of up to 2 MiB; more than a GiB means damage.
pub(crate) const MAX_SEGMENT_ALIGN: u64 = 1 << 30;
/// No CPU has wider user-space addresses, and the sum of two cannot overflow.
pub(crate) const MAX_ADDRESS: u64 = 1 << 62;
