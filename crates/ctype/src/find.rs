//! Finding symbols and types by name, and describing them with the offsets of struct members.

use crate::constants::{Kind, SymbolKind};
use crate::error::{Error, ErrorKind, Result};
use crate::measure::{AlignmentRule, Measures};
use crate::print::{Name, Plain};
use crate::read::{Symbol, Type, TypeId, Types};

/// The most members to list, because nested nameless structs could have any number.
const MAX_MEMBERS: usize = 1 << 20;
/// The deepest nesting of nameless structs.
const MAX_DEPTH: usize = 40;

/// The kind of item that has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A function.
    Function,
    /// A data object.
    Object,
    /// A variable from the variable section, which is stored by name.
    Variable,
    /// A type.
    Type(Kind),
}

impl What {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            What::Function => "function",
            What::Object => "object",
            What::Variable => "variable",
            What::Type(kind) => kind.name(),
        }
    }
}

/// An item that has the name, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The kind of item.
    pub what: What,
    /// The id of its type or, for a type, its own id.
    pub id: TypeId,
}

/// The description of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The C declaration without a semicolon; for a struct, union or enum, without its body.
    pub declaration: String,
    /// The size in bytes; `None` for a function, or if the size is unknown.
    pub size: Option<u64>,
    /// The members of a struct or union, including those of nameless members.
    pub members: Vec<Member>,
    /// The names of an enum's values, and these in decimal.
    pub values: Vec<(String, String)>,
    /// A function's return type, arguments, and whether it is variadic.
    pub signature: Option<Signature>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name.
    pub name: String,
    /// The C declaration, without the width of a bit field.
    pub declaration: String,
    /// The type alone.
    pub type_name: String,
    /// The offset from the struct's start, in bits.
    pub bit_offset: u64,
    /// The size of its type in bytes, if known.
    pub size: Option<u64>,
    /// The width of a bit field in bits.
    pub bits: Option<u16>,
}

/// The types of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The return type.
    pub returns: String,
    /// The argument types.
    pub arguments: Vec<String>,
    /// Whether the function is variadic.
    pub variadic: bool,
}

/// Finds everything with a name in a dict, not in its parent: symbols, then types. Skips items that
/// can't be read.
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
        // Compilers store objects twice, also as variables.
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

/// Describes an item found by this name.
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
            for (name, value) in of.all_values()? {
                description
                    .values
                    .push((String::from_utf8_lossy(name).into_owned(), value));
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
