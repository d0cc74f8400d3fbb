//! The specification's names and numbers (`ctf.h` and "The CTF File Format", sections cited by
//! their titles).

/// `CTF_MAGIC` ("CTF Preamble").
pub const CTF_MAGIC: u16 = 0xdff2;
/// `CTFA_MAGIC` ("CTF archives").
pub const CTFA_MAGIC: u64 = 0x8b47_f2a4_d762_3eeb;
/// `CTF_MODEL_ILP32`, the data model of an archive: pointers of 4 bytes.
pub(crate) const CTF_MODEL_ILP32: u64 = 1;
/// `CTF_MODEL_LP64`: pointers of 8 bytes.
pub(crate) const CTF_MODEL_LP64: u64 = 2;
/// The name of the member that is every other one's parent, and of the section (`_CTF_SECTION`).
pub const CTF_SECTION: &[u8] = b".ctf";
/// The magic number of another format, the CTF of Solaris, illumos and the BSDs.
pub const SUN_CTF_MAGIC: u16 = 0xcff1;
/// `BTF_MAGIC`.
pub const BTF_MAGIC: u16 = 0xeb9f;
/// The upper 48 bits of the word after the BTF header, which distinguish CTF version 4 from BTF.
pub const CTF4_MAGIC: u64 = 0xd167_ae03_a2c5;

/// The version of a dict ("CTF Preamble").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Version {
    /// `CTF_VERSION_1`: ids and sizes of 16 bits.
    V1 = 1,
    /// `CTF_VERSION_1_UPGRADED_3`: version 1, rewritten by a library of version 3.
    V1Upgraded = 2,
    /// `CTF_VERSION_2`: ids of 32 bits.
    V2 = 3,
    /// `CTF_VERSION_3`: a header with symbol indexes.
    V3 = 4,
}

impl Version {
    /// The version with this number.
    pub const fn from_number(number: u8) -> Option<Version> {
        match number {
            1 => Some(Version::V1),
            2 => Some(Version::V1Upgraded),
            3 => Some(Version::V2),
            4 => Some(Version::V3),
            _ => None,
        }
    }

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Version::V1 => "CTF_VERSION_1",
            Version::V1Upgraded => "CTF_VERSION_1_UPGRADED_3",
            Version::V2 => "CTF_VERSION_2",
            Version::V3 => "CTF_VERSION_3",
        }
    }
}

/// `ctp_flags` ("CTF file-wide flags").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// `CTF_F_COMPRESS`: everything after the header is one zlib stream.
    pub const COMPRESS: Flags = Flags(0x1);
    /// `CTF_F_NEWFUNCINFO`: the function section has a type for each symbol.
    pub const NEWFUNCINFO: Flags = Flags(0x2);
    /// `CTF_F_IDXSORTED`: the index sections are sorted by name.
    pub const IDXSORTED: Flags = Flags(0x4);
    /// `CTF_F_DYNSTR`: external strings and symbols are those of `.dynstr` and `.dynsym`.
    pub const DYNSTR: Flags = Flags(0x8);
    /// `CTF_F_MAX`: all flags.
    pub const MAX: u8 = 0xf;

    /// The flags and the specification's names for them.
    pub const NAMES: [(Flags, &'static str); 4] = [
        (Flags::COMPRESS, "CTF_F_COMPRESS"),
        (Flags::NEWFUNCINFO, "CTF_F_NEWFUNCINFO"),
        (Flags::IDXSORTED, "CTF_F_IDXSORTED"),
        (Flags::DYNSTR, "CTF_F_DYNSTR"),
    ];

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The kind of a type ("Type indexes and type IDs", "Type kinds").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// `CTF_K_UNKNOWN`: a type that the format can't represent.
    Unknown = 0,
    /// `CTF_K_INTEGER`
    Integer = 1,
    /// `CTF_K_FLOAT`
    Float = 2,
    /// `CTF_K_POINTER`
    Pointer = 3,
    /// `CTF_K_ARRAY`
    Array = 4,
    /// `CTF_K_FUNCTION`
    Function = 5,
    /// `CTF_K_STRUCT`
    Struct = 6,
    /// `CTF_K_UNION`
    Union = 7,
    /// `CTF_K_ENUM`
    Enum = 8,
    /// `CTF_K_FORWARD`: a struct, union or enum that is only declared.
    Forward = 9,
    /// `CTF_K_TYPEDEF`
    Typedef = 10,
    /// `CTF_K_VOLATILE`
    Volatile = 11,
    /// `CTF_K_CONST`
    Const = 12,
    /// `CTF_K_RESTRICT`
    Restrict = 13,
    /// `CTF_K_SLICE`: some bits of an integer, float or enum.
    Slice = 14,
}

impl Kind {
    /// All kinds, each at the index of its number.
    pub const ALL: [Kind; 15] = [
        Kind::Unknown,
        Kind::Integer,
        Kind::Float,
        Kind::Pointer,
        Kind::Array,
        Kind::Function,
        Kind::Struct,
        Kind::Union,
        Kind::Enum,
        Kind::Forward,
        Kind::Typedef,
        Kind::Volatile,
        Kind::Const,
        Kind::Restrict,
        Kind::Slice,
    ];

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.get(number as usize).copied()
    }

    /// The kind's name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Unknown => "unknown",
            Kind::Integer => "integer",
            Kind::Float => "float",
            Kind::Pointer => "pointer",
            Kind::Array => "array",
            Kind::Function => "function",
            Kind::Struct => "struct",
            Kind::Union => "union",
            Kind::Enum => "enum",
            Kind::Forward => "forward",
            Kind::Typedef => "typedef",
            Kind::Volatile => "volatile",
            Kind::Const => "const",
            Kind::Restrict => "restrict",
            Kind::Slice => "slice",
        }
    }

    /// The keyword that C requires before a name of this kind: `struct`, `union`, `enum` or none.
    pub const fn keyword(self) -> Option<&'static str> {
        match self {
            Kind::Struct | Kind::Union | Kind::Enum => Some(self.name()),
            _ => None,
        }
    }

    /// Whether the kind is a qualifier.
    pub const fn is_qualifier(self) -> bool {
        matches!(self, Kind::Volatile | Kind::Const | Kind::Restrict)
    }
}

/// The encoding of an integer, a float or a slice ("Integer types", "Floating-point types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// For integers, bits (`CTF_INT_*`); for floats, a number (`CTF_FP_*`).
    pub format: u8,
    /// The offset of the value from the start of the storage, in bits.
    pub offset: u16,
    /// The width of the value in bits.
    pub bits: u16,
}

impl Encoding {
    /// `CTF_INT_SIGNED`
    pub const SIGNED: u8 = 0x1;
    /// `CTF_INT_CHAR`
    pub const CHAR: u8 = 0x2;
    /// `CTF_INT_BOOL`
    pub const BOOL: u8 = 0x4;
}

/// The kind of a symbol: which of a dict's two tables has its type ("Data objects", "Functions").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    /// `STT_OBJECT`
    Object,
    /// `STT_FUNC`
    Function,
}

/// Symbols that linkers define; they are not in the tables.
pub(crate) const SKIPPED_SYMBOLS: [&[u8]; 8] = [
    b"_START_",
    b"_END_",
    b"_DYNAMIC",
    b"_GLOBAL_OFFSET_TABLE_",
    b"_PROCEDURE_LINKAGE_TABLE_",
    b"_edata",
    b"_end",
    b"_etext",
];
