//! Symbols and types by name: what they are, with the members of structs and where they lie.

use crate::constants::{Kind, SymbolKind};
use crate::error::{Error, ErrorKind, Result};
use crate::measure::{AlignmentRule, Measures};
use crate::print::{Name, Plain};
use crate::read::{Symbol, Type, TypeId, Types};

/// Members that are listed: nameless structs in each other could have any number.
const MAX_MEMBERS: usize = 1 << 20;
/// Nameless structs in each other.
const MAX_DEPTH: usize = 40;

/// What has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A function.
    Function,
    /// A data object.
    Object,
    /// A variable that is told by name only.
    Variable,
    /// A type.
    Type(Kind),
}

impl What {
    /// The word for it, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            What::Function => "function",
            What::Object => "object",
            What::Variable => "variable",
            What::Type(kind) => kind.name(),
        }
    }
}

/// Something of a name, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub what: What,
    /// Its type, or itself.
    pub id: TypeId,
}

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The C declaration, without a semicolon; of a struct, union or enum without its body.
    pub declaration: String,
    /// Bytes; `None` of a function and where the size is not known.
    pub size: Option<u64>,
    /// The members of a struct or union. Those of nameless members are among them.
    pub members: Vec<Member>,
    /// The values of an enum.
    pub values: Vec<(String, i32)>,
    /// Of a function: what it returns, its arguments, and whether more may follow.
    pub signature: Option<Signature>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name.
    pub name: String,
    /// The C declaration, without the bits of a bit field.
    pub declaration: String,
    /// The type alone.
    pub type_name: String,
    /// Bits from the struct's start.
    pub bit_offset: u64,
    /// Bytes of its type, where they are known.
    pub size: Option<u64>,
    /// Bits of a bit field.
    pub bits: Option<u16>,
}

/// The types of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What it returns.
    pub returns: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Whether more may follow.
    pub variadic: bool,
}

/// All that has a name in a dict, its parent not included: symbols, then types. What can't be read
/// is passed over.
pub fn find(types: Types<'_>, symbols: &[Symbol<'_>], name: Name<'_>) -> Vec<Found> {
    let dict = types.dict();
    let mut all = Vec::new();
    if name.kind.is_none() {
        let wanted = name.name.as_bytes();
        for (kind, what) in [
            (SymbolKind::Function, What::Function),
            (SymbolKind::Object, What::Object),
        ] {
            let typed = dict.symbol_types(kind, symbols).flatten();
            let found = typed
                .filter(|(name, _)| *name == wanted)
                .map(|(_, id)| Found { what, id });
            all.extend(found);
        }
        // Compilers tell objects twice.
        let variables = dict.variables().flatten().filter(|(name, _)| *name == wanted);
        for (_, id) in variables {
            if !all.iter().any(|found| found.id == id) {
                all.push(Found {
                    what: What::Variable,
                    id,
                });
            }
        }
    }
    let named = dict.ids().filter(|&id| name.is_of(types, id));
    all.extend(named.filter_map(|id| {
        let kind = types.get(id).ok()?.kind();
        Some(Found {
            what: What::Type(kind),
            id,
        })
    }));
    all
}

/// Describes what was found by this name.
pub fn describe(types: Types<'_>, found: Found, name: &str) -> Result<Description> {
    let plain = &mut Plain::new(types);
    let of = types.get(found.id)?;
    let declaration = match found.what {
        What::Type(Kind::Typedef) => {
            let declared = plain.declaration(of.reference()?, name)?;
            format!("typedef {declared}")
        }
        What::Type(_) => plain.declaration(found.id, "")?,
        _ => plain.declaration(found.id, name)?,
    };
    let mut description = Description {
        declaration,
        size: None,
        members: Vec::new(),
        values: Vec::new(),
        signature: None,
    };
    let mut measures = Measures::new(types, AlignmentRule::StrictestMember);
    match of.kind() {
        Kind::Function => description.signature = Some(signature(&of, plain)?),
        Kind::Struct | Kind::Union if matches!(found.what, What::Type(_)) => {
            members(types, &of, 0, 0, plain, &mut measures, &mut description.members)?;
        }
        Kind::Enum => {
            for enumerator in of.enumerators()? {
                let enumerator = enumerator?;
                let name = String::from_utf8_lossy(enumerator.name).into_owned();
                description.values.push((name, enumerator.value));
            }
        }
        _ => {}
    }
    if of.kind() != Kind::Function {
        description.size = measures.size(found.id).ok();
    }
    Ok(description)
}

fn signature(of: &Type<'_>, plain: &mut Plain<'_>) -> Result<Signature> {
    let (arguments, variadic) = of.arguments()?;
    let arguments: Result<Vec<String>> = arguments.map(|id| plain.declaration(id?, "")).collect();
    Ok(Signature {
        returns: plain.declaration(of.reference()?, "")?,
        arguments: arguments?,
        variadic,
    })
}

fn members<'d>(
    types: Types<'d>,
    of: &Type<'d>,
    base: u64,
    depth: usize,
    plain: &mut Plain<'d>,
    measures: &mut Measures<'d>,
    all: &mut Vec<Member>,
) -> Result<()> {
    for member in of.members()? {
        let member = member?;
        if depth > MAX_DEPTH || all.len() > MAX_MEMBERS {
            return Err(Error::new(ErrorKind::TooLong(of.id().0), 0));
        }
        let bit_offset = base.saturating_add(member.offset);
        let inner = types.get(member.id).ok();
        if let Some(inner) = inner.filter(|inner| matches!(inner.kind(), Kind::Struct | Kind::Union))
            && member.name.is_empty()
        {
            members(types, &inner, bit_offset, depth + 1, plain, measures, all)?;
            continue;
        }
        let slice = inner.filter(|inner| inner.kind() == Kind::Slice);
        let slice = slice.map(|slice| slice.slice()).transpose()?;
        let name = String::from_utf8_lossy(member.name).into_owned();
        all.push(Member {
            declaration: plain.declaration(member.id, &name)?,
            type_name: plain.declaration(member.id, "")?,
            name,
            bit_offset: bit_offset.saturating_add(slice.map_or(0, |slice| slice.offset.into())),
            size: measures.size(slice.map_or(member.id, |slice| slice.of)).ok(),
            bits: slice.map(|slice| slice.bits),
        });
    }
    Ok(())
}
