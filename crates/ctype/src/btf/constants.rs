//! The names and numbers of BTF ("BPF Type Format (BTF)" of the kernel's documentation, sections
//! cited by their titles; `btf.h`).

/// The only version ("BTF Type and String Encoding").
pub(super) const BTF_VERSION: u8 = 1;
/// The length of the original header; later ones may be longer.
pub(super) const HEADER: usize = 24;

/// `BTF_INFO_KIND` ("Type Encoding").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BtfKind {
    /// `BTF_KIND_INT`
    Int,
    /// `BTF_KIND_PTR`
    Ptr,
    /// `BTF_KIND_ARRAY`
    Array,
    /// `BTF_KIND_STRUCT`
    Struct,
    /// `BTF_KIND_UNION`
    Union,
    /// `BTF_KIND_ENUM`
    Enum,
    /// `BTF_KIND_FWD`
    Fwd,
    /// `BTF_KIND_TYPEDEF`
    Typedef,
    /// `BTF_KIND_VOLATILE`
    Volatile,
    /// `BTF_KIND_CONST`
    Const,
    /// `BTF_KIND_RESTRICT`
    Restrict,
    /// `BTF_KIND_FUNC`
    Func,
    /// `BTF_KIND_FUNC_PROTO`
    FuncProto,
    /// `BTF_KIND_VAR`
    Var,
    /// `BTF_KIND_DATASEC`
    Datasec,
    /// `BTF_KIND_FLOAT`
    Float,
    /// `BTF_KIND_DECL_TAG`
    DeclTag,
    /// `BTF_KIND_TYPE_TAG`
    TypeTag,
    /// `BTF_KIND_ENUM64`
    Enum64,
}

impl BtfKind {
    /// All kinds, starting with number 1.
    const ALL: [BtfKind; 19] = [
        BtfKind::Int,
        BtfKind::Ptr,
        BtfKind::Array,
        BtfKind::Struct,
        BtfKind::Union,
        BtfKind::Enum,
        BtfKind::Fwd,
        BtfKind::Typedef,
        BtfKind::Volatile,
        BtfKind::Const,
        BtfKind::Restrict,
        BtfKind::Func,
        BtfKind::FuncProto,
        BtfKind::Var,
        BtfKind::Datasec,
        BtfKind::Float,
        BtfKind::DeclTag,
        BtfKind::TypeTag,
        BtfKind::Enum64,
    ];

    /// The kind with this number.
    pub(super) fn from_number(number: u32) -> Option<BtfKind> {
        let index = (number as usize).checked_sub(1)?;
        BtfKind::ALL.get(index).copied()
    }

    /// The size of the data for `vlen` parts, after the three words that every type has.
    #[expect(clippy::arithmetic_side_effects, reason = "`vlen` has 16 bits")]
    pub(super) fn data_bytes(self, vlen: usize) -> usize {
        match self {
            BtfKind::Int | BtfKind::Var | BtfKind::DeclTag => 4,
            BtfKind::Array => 12,
            BtfKind::Struct | BtfKind::Union | BtfKind::Datasec | BtfKind::Enum64 => 12 * vlen,
            BtfKind::Enum | BtfKind::FuncProto => 8 * vlen,
            _ => 0,
        }
    }

    /// Whether this is a type that others may refer to, rather than an item that has a type.
    pub(super) fn is_type(self) -> bool {
        !matches!(self, BtfKind::Func | BtfKind::Var | BtfKind::Datasec | BtfKind::DeclTag)
    }
}

/// `BTF_FUNC_EXTERN` and `BTF_VAR_GLOBAL_EXTERN`: the symbol is only declared.
pub(super) const EXTERN: u32 = 2;
/// `BTF_FUNC_STATIC` and `BTF_VAR_STATIC`.
pub(super) const STATIC: u32 = 0;
