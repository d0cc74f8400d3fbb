//! Type names as GNU tools print them: like C's, but with declarators without a name.

use crate::constants::Kind;
use crate::error::{Error, ErrorKind, Result};
use crate::read::{Type, TypeId, Types};

/// Limits on nested function arguments, on the parts of a declarator, and on the length of a name.
/// Real names have a few hundred bytes.
const MAX_DEPTH: usize = 40;
const MAX_PARTS: usize = 100;
const MAX_BYTES: usize = 32 << 10;

/// The order in which to print the dimensions of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dimensions {
    /// The innermost first (binutils up to 2.44).
    InnerFirst,
    /// As in C.
    OuterFirst,
}

/// The levels of a declarator's parts: parts that bind tighter come later.
const BASE: usize = 0;
const POINTER: usize = 1;
const ARRAY: usize = 2;
const FUNCTION: usize = 3;

/// The parts of a name, by level.
#[derive(Default)]
struct Parts<'d> {
    levels: [Vec<Type<'d>>; 4],
    /// When each level got its first part: the declarator needs parentheses if that is not the
    /// order of binding.
    first: [Option<usize>; 4],
    levels_met: usize,
}

/// The name of a type.
pub(crate) fn spell(types: Types<'_>, id: TypeId, dimensions: Dimensions) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    append(types, id, dimensions, 0, &mut out)?;
    Ok(out)
}

fn append(types: Types<'_>, id: TypeId, dimensions: Dimensions, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    if depth > MAX_DEPTH || out.len() > MAX_BYTES {
        return Err(Error::new(ErrorKind::TooLong(id.0), 0));
    }
    let parts = Parts::collect(types, id, dimensions)?;
    let late = |level: usize| parts.first[level].is_some_and(|met| met > level);
    let (pointers, arrays) = (late(POINTER), late(ARRAY));
    let open = match (pointers, arrays) {
        (true, _) => Some(POINTER),
        (_, true) => Some(ARRAY),
        _ => None,
    };
    let close = match (arrays, pointers) {
        (true, _) => Some(ARRAY),
        (_, true) => Some(POINTER),
        _ => None,
    };
    let mut opened = false;
    let mut space = false;
    for (level, parts) in parts.levels.iter().enumerate() {
        for part in parts {
            if space {
                out.push(b' ');
            }
            if open == Some(level) && !opened {
                out.push(b'(');
                opened = true;
            }
            append_part(types, part, dimensions, depth, out)?;
            space = !matches!(part.kind(), Kind::Pointer | Kind::Array);
        }
        if close == Some(level) {
            out.push(b')');
        }
    }
    Ok(())
}

impl<'d> Parts<'d> {
    fn collect(types: Types<'d>, id: TypeId, dimensions: Dimensions) -> Result<Parts<'d>> {
        let mut parts = Parts::default();
        // A qualifier applies to the pointer or, before there is one, to the base.
        let mut qualifiable = BASE;
        for part in chain(types, id)?.into_iter().rev() {
            let (level, in_front) = match part.kind() {
                Kind::Array => (ARRAY, dimensions == Dimensions::OuterFirst),
                Kind::Function => (FUNCTION, false),
                Kind::Pointer => (POINTER, false),
                kind if kind.is_qualifier() => (qualifiable, qualifiable == BASE),
                _ => (BASE, false),
            };
            if parts.first[level].is_none() {
                parts.first[level] = Some(parts.levels_met);
                parts.levels_met += 1;
            }
            if level == POINTER {
                qualifiable = POINTER;
            }
            let place = if in_front { 0 } else { parts.levels[level].len() };
            parts.levels[level].insert(place, part);
        }
        Ok(parts)
    }
}

/// The types that make up a name, from the outermost declarator to the base type.
fn chain(types: Types<'_>, id: TypeId) -> Result<Vec<Type<'_>>> {
    let mut chain = Vec::new();
    let mut next = id;
    for _ in 0..MAX_PARTS {
        let part = types.get(next)?;
        next = match part.kind() {
            // Slices have no name of their own; neither does a nameless typedef.
            Kind::Slice => part.slice()?.of,
            Kind::Typedef if part.name()?.is_empty() => part.reference()?,
            Kind::Array => {
                chain.push(part);
                part.array()?.contents
            }
            Kind::Pointer | Kind::Function | Kind::Volatile | Kind::Const | Kind::Restrict => {
                chain.push(part);
                part.reference()?
            }
            _ => {
                chain.push(part);
                return Ok(chain);
            }
        };
    }
    Err(Error::new(ErrorKind::TooLong(id.0), 0))
}

fn append_part(
    types: Types<'_>,
    part: &Type<'_>,
    dimensions: Dimensions,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let name = part.name()?;
    match part.kind() {
        Kind::Integer | Kind::Float if name.is_empty() => {
            return Err(part.error(ErrorKind::Nameless(part.id().0)));
        }
        Kind::Pointer => out.push(b'*'),
        Kind::Array => out.extend(format!("[{}]", part.array()?.count).bytes()),
        Kind::Function => append_arguments(types, part, dimensions, depth, out)?,
        Kind::Struct | Kind::Union | Kind::Enum => append_tagged(part.kind(), name, out),
        Kind::Forward => append_tagged(part.forwarded()?, name, out),
        kind if kind.is_qualifier() => out.extend(kind.name().bytes()),
        Kind::Unknown if name.is_empty() => out.extend(b"(nonrepresentable type)"),
        Kind::Unknown => {
            out.extend(b"(nonrepresentable type ");
            out.extend(name);
            out.push(b')');
        }
        _ => out.extend(name),
    }
    Ok(())
}

fn append_tagged(kind: Kind, name: &[u8], out: &mut Vec<u8>) {
    out.extend(kind.name().bytes());
    out.push(b' ');
    out.extend(name);
}

fn append_arguments(
    types: Types<'_>,
    function: &Type<'_>,
    dimensions: Dimensions,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (arguments, variadic) = function.arguments()?;
    out.extend(b"(*) (");
    let mut separator: &[u8] = b"";
    for argument in arguments {
        out.extend(separator);
        append(types, argument?, dimensions, depth + 1, out)?;
        separator = b", ";
    }
    if variadic {
        out.extend(separator);
        out.extend(b"...");
    }
    out.push(b')');
    Ok(())
}
