//! The specification's names and numbers. Section numbers are those of the version 1 text.

use backtrail_arch::Arch;
use backtrail_wire::Endian;

/// `SFRAME_MAGIC` (section 1.1).
pub const SFRAME_MAGIC: u16 = 0xdee2;

/// Size of the header in bytes, without the auxiliary header (section 1.2).
pub const HEADER_SIZE: usize = 28;

/// The version of a section (section 1.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Version {
    /// `SFRAME_VERSION_1`: binutils 2.40.
    V1 = 1,
    /// `SFRAME_VERSION_2`: binutils 2.41 to 2.45.
    V2 = 2,
    /// `SFRAME_VERSION_3`: binutils 2.46 and later.
    V3 = 3,
}

impl Version {
    /// All versions.
    pub const ALL: [Version; 3] = [Version::V1, Version::V2, Version::V3];

    /// The version with this number.
    pub const fn from_number(number: u8) -> Option<Version> {
        match number {
            1 => Some(Version::V1),
            2 => Some(Version::V2),
            3 => Some(Version::V3),
            _ => None,
        }
    }

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Version::V1 => "SFRAME_VERSION_1",
            Version::V2 => "SFRAME_VERSION_2",
            Version::V3 => "SFRAME_VERSION_3",
        }
    }
}

/// Section-wide flags (section 1.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// `SFRAME_F_FDE_SORTED`: FDEs are sorted by start address.
    pub const FDE_SORTED: Flags = Flags(0x1);
    /// `SFRAME_F_FRAME_POINTER`: all functions keep a frame pointer (withdrawn in version 3).
    pub const FRAME_POINTER: Flags = Flags(0x2);
    /// `SFRAME_F_FDE_FUNC_START_PCREL`: a start field is relative to itself, not to the section's
    /// start (version 2, errata; version 3).
    pub const FDE_FUNC_START_PCREL: Flags = Flags(0x4);

    /// The known flags and the specification's names for them.
    pub const NAMES: [(Flags, &'static str); 3] = [
        (Flags::FDE_SORTED, "SFRAME_F_FDE_SORTED"),
        (Flags::FRAME_POINTER, "SFRAME_F_FRAME_POINTER"),
        (Flags::FDE_FUNC_START_PCREL, "SFRAME_F_FDE_FUNC_START_PCREL"),
    ];

    /// The flags that are defined in a version.
    pub const fn known(version: Version) -> Flags {
        match version {
            Version::V1 => Flags(0x3),
            Version::V2 => Flags(0x7),
            Version::V3 => Flags(0x5),
        }
    }

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// `sfh_abi_arch` (section 1.2.1; s390x since the errata of version 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Abi {
    /// `SFRAME_ABI_AARCH64_ENDIAN_BIG`
    Aarch64Big = 1,
    /// `SFRAME_ABI_AARCH64_ENDIAN_LITTLE`
    Aarch64Little = 2,
    /// `SFRAME_ABI_AMD64_ENDIAN_LITTLE`
    Amd64Little = 3,
    /// `SFRAME_ABI_S390X_ENDIAN_BIG`
    S390xBig = 4,
}

impl Abi {
    /// All ABIs.
    pub const ALL: [Abi; 4] = [Abi::Aarch64Big, Abi::Aarch64Little, Abi::Amd64Little, Abi::S390xBig];

    /// The ABI with this number.
    pub const fn from_number(number: u8) -> Option<Abi> {
        match number {
            1 => Some(Abi::Aarch64Big),
            2 => Some(Abi::Aarch64Little),
            3 => Some(Abi::Amd64Little),
            4 => Some(Abi::S390xBig),
            _ => None,
        }
    }

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Abi::Aarch64Big => "SFRAME_ABI_AARCH64_ENDIAN_BIG",
            Abi::Aarch64Little => "SFRAME_ABI_AARCH64_ENDIAN_LITTLE",
            Abi::Amd64Little => "SFRAME_ABI_AMD64_ENDIAN_LITTLE",
            Abi::S390xBig => "SFRAME_ABI_S390X_ENDIAN_BIG",
        }
    }

    /// The ABI's byte order, as its name states.
    pub const fn endian(self) -> Endian {
        match self {
            Abi::Aarch64Big | Abi::S390xBig => Endian::Big,
            Abi::Aarch64Little | Abi::Amd64Little => Endian::Little,
        }
    }

    /// The CPU.
    #[inline]
    pub const fn arch(self) -> &'static Arch {
        match self {
            Abi::Aarch64Big | Abi::Aarch64Little => &backtrail_arch::aarch64::ARCH,
            Abi::Amd64Little => &backtrail_arch::x86_64::ARCH,
            Abi::S390xBig => &backtrail_arch::s390x::ARCH,
        }
    }

    /// `sfh_cfa_fixed_ra_offset` as producers write it: bytes from the CFA to the return address,
    /// or 0 if that has no fixed location (section 1.2).
    pub const fn fixed_ra_offset(self) -> i8 {
        match self {
            Abi::Amd64Little => -8,
            _ => 0,
        }
    }
}

/// `fretype`: the width of a row's start offset (section 1.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FreType {
    /// `SFRAME_FRE_TYPE_ADDR1`
    Addr1 = 0,
    /// `SFRAME_FRE_TYPE_ADDR2`
    Addr2 = 1,
    /// `SFRAME_FRE_TYPE_ADDR4`
    Addr4 = 2,
}

impl FreType {
    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            FreType::Addr1 => "SFRAME_FRE_TYPE_ADDR1",
            FreType::Addr2 => "SFRAME_FRE_TYPE_ADDR2",
            FreType::Addr4 => "SFRAME_FRE_TYPE_ADDR4",
        }
    }

    /// The narrowest type that holds `start`.
    pub const fn for_start(start: u32) -> FreType {
        match start {
            0..=0xff => FreType::Addr1,
            0x100..=0xffff => FreType::Addr2,
            _ => FreType::Addr4,
        }
    }

    /// The width of the start offset in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self as usize
    }
}

/// How to decode the words of an FDE's rows (version 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FdeType {
    /// `SFRAME_FDE_TYPE_DEFAULT`: offsets from SP or FP and the CFA.
    Default = 0,
    /// `SFRAME_FDE_TYPE_FLEX`: each offset has a control word.
    Flex = 1,
}

/// `sfde_func_info` (section 1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FdeInfo(pub u8);

impl FdeInfo {
    const PCMASK: u8 = 0x10;
    const PAUTH_KEY_B: u8 = 0x20;
    const SIGNAL: u8 = 0x80;

    /// Builds the info byte from its parts.
    pub const fn new(fre_type: FreType, pcmask: bool, pauth_key_b: bool, signal: bool) -> FdeInfo {
        let mut bits = fre_type as u8;
        if pcmask {
            bits |= Self::PCMASK;
        }
        if pauth_key_b {
            bits |= Self::PAUTH_KEY_B;
        }
        if signal {
            bits |= Self::SIGNAL;
        }
        FdeInfo(bits)
    }

    /// `fretype`, bits 0 to 3; `None` if the number is unknown.
    #[inline]
    pub const fn fre_type(self) -> Option<FreType> {
        match self.0 & 0xf {
            0 => Some(FreType::Addr1),
            1 => Some(FreType::Addr2),
            2 => Some(FreType::Addr4),
            _ => None,
        }
    }

    /// The same info byte with another `fretype`.
    pub const fn with_fre_type(self, fre_type: FreType) -> FdeInfo {
        FdeInfo(self.0 & !0xf | fre_type as u8)
    }

    /// Whether `fdetype` is `SFRAME_FDE_TYPE_PCMASK`, bit 4.
    #[inline]
    pub const fn pcmask(self) -> bool {
        self.0 & Self::PCMASK != 0
    }

    /// Whether `pauth_key` is `SFRAME_AARCH64_PAUTH_KEY_B`, bit 5.
    #[inline]
    pub const fn pauth_key_b(self) -> bool {
        self.0 & Self::PAUTH_KEY_B != 0
    }

    /// Whether this is a signal frame, bit 7 (version 3).
    #[inline]
    pub const fn signal(self) -> bool {
        self.0 & Self::SIGNAL != 0
    }
}

/// The width of a row's words (`fre_offset_size`, section 1.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum WordSize {
    /// `SFRAME_FRE_OFFSET_1B`
    One = 0,
    /// `SFRAME_FRE_OFFSET_2B`
    Two = 1,
    /// `SFRAME_FRE_OFFSET_4B`
    Four = 2,
}

impl WordSize {
    /// The width in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self as usize
    }
}

/// `sframe_fre_info` (section 1.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FreInfo(pub u8);

impl FreInfo {
    const BASE_SP: u8 = 0x01;
    const MANGLED_RA: u8 = 0x80;
    /// The most words that a row can have: `fre_offset_count` has four bits.
    pub const MAX_COUNT: usize = 15;

    /// Builds the info byte from its parts; `count` is at most [`FreInfo::MAX_COUNT`].
    pub const fn new(base_sp: bool, count: usize, size: WordSize, mangled_ra: bool) -> FreInfo {
        let mut bits = ((count & Self::MAX_COUNT) as u8) << 1 | (size as u8) << 5;
        if base_sp {
            bits |= Self::BASE_SP;
        }
        if mangled_ra {
            bits |= Self::MANGLED_RA;
        }
        FreInfo(bits)
    }

    /// `fre_cfa_base_reg_id`, bit 0: whether the CFA's base is SP rather than FP.
    #[inline]
    pub const fn base_sp(self) -> bool {
        self.0 & Self::BASE_SP != 0
    }

    /// `fre_offset_count`, bits 1 to 4: the number of words that follow.
    #[inline]
    pub const fn count(self) -> usize {
        (self.0 >> 1) as usize & Self::MAX_COUNT
    }

    /// `fre_offset_size`, bits 5 and 6; `None` if the number is unknown.
    #[inline]
    pub const fn word_size(self) -> Option<WordSize> {
        match self.0 >> 5 & 3 {
            0 => Some(WordSize::One),
            1 => Some(WordSize::Two),
            2 => Some(WordSize::Four),
            _ => None,
        }
    }

    /// `fre_mangled_ra_p`, bit 7.
    #[inline]
    pub const fn mangled_ra(self) -> bool {
        self.0 & Self::MANGLED_RA != 0
    }
}

/// Control word of a FLEX row (version 3), without its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlexControl(pub u32);

impl FlexControl {
    const REG_P: u32 = 1;
    const DEREF_P: u32 = 2;
    const REGISTER_SHIFT: u32 = 3;

    /// Padding in place of a control word; no offset word follows it.
    pub const PADDING: FlexControl = FlexControl(0);

    /// Builds the control word from its parts; without a register, the base is the CFA.
    pub const fn new(register: Option<u8>, deref: bool) -> FlexControl {
        let base = match register {
            Some(number) => (number as u32) << Self::REGISTER_SHIFT | Self::REG_P,
            None => 0,
        };
        FlexControl(if deref { base | Self::DEREF_P } else { base })
    }

    /// `reg_p`, bit 0, and the DWARF register from bit 3 up; `None` if the base is the CFA.
    #[inline]
    pub const fn register(self) -> Option<u32> {
        if self.0 & Self::REG_P != 0 {
            Some(self.0 >> Self::REGISTER_SHIFT)
        } else {
            None
        }
    }

    /// `deref_p`, bit 1.
    #[inline]
    pub const fn deref(self) -> bool {
        self.0 & Self::DEREF_P != 0
    }
}

/// Size of a repeated block in version 1, which does not store it: its only PCMASK FDEs are x86-64
/// PLTs.
pub const V1_REPEAT: u8 = 16;

/// s390x: the CFA offset is stored as `(offset - 160) / 8` (version 2, errata; version 3).
pub const S390X_CFA_ADJUSTMENT: i64 = 160;
/// s390x: see [`S390X_CFA_ADJUSTMENT`].
pub const S390X_CFA_ALIGNMENT: i64 = 8;

/// The largest number of rows of a function in version 3, where `num_fres` has 16 bits.
pub const V3_MAX_ROWS: usize = 0xffff;
