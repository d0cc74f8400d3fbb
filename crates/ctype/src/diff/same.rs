//! Whether two types mean the same to code that was compiled for one of them: by size, sign,
//! members and arguments, not by spelling.

use rustc_hash::FxHashMap;

use super::Side;
use super::reach::{Node, Places};
use crate::constants::{Encoding, Kind};
use crate::error::Result;
use crate::measure::{AlignmentRule, Measures};
use crate::read::{Type, TypeId, Types};

/// The deepest nesting of types that are compared; what is deeper counts as the same.
const MAX_DEPTH: usize = 100;

/// The result of a comparison, from the least difference to the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Likeness {
    /// Code can't tell them apart.
    Same,
    /// They have one representation, but compilers do not take one for the other without a
    /// conversion: qualifiers, an enum for an int, the target of a pointer.
    Alike,
    /// Code compiled for one of them fails with the other.
    Different,
}

/// Compares types of two sides.
pub(super) struct Comparison<'s, 'd> {
    sides: [&'s Side<'d>; 2],
    places: [Places; 2],
    measures: [FxHashMap<usize, Measures<'d>>; 2],
    /// Pairs that were compared; those that are being compared count as the same.
    known: FxHashMap<(Node, Node), Likeness>,
}

/// A type that is neither a typedef nor qualified.
struct Resolved<'d> {
    node: Node,
    found: Type<'d>,
    /// The name of the typedef that led here.
    alias: &'d [u8],
}

impl<'d> Resolved<'d> {
    /// The name by which the type is known.
    fn name(&self) -> Result<&'d [u8]> {
        let name = self.found.name()?;
        Ok(if name.is_empty() { self.alias } else { name })
    }
}

impl<'s, 'd> Comparison<'s, 'd> {
    pub(super) fn new(old: &'s Side<'d>, new: &'s Side<'d>) -> Comparison<'s, 'd> {
        Comparison {
            sides: [old, new],
            places: [Places::of(old), Places::of(new)],
            measures: [FxHashMap::default(), FxHashMap::default()],
            known: FxHashMap::default(),
        }
    }

    fn at(&mut self, old: Node, new: Node, depth: usize) -> Likeness {
        if depth > MAX_DEPTH {
            return Likeness::Same;
        }
        // What can't be read can't be compared.
        let (Ok(old), Ok(new)) = (self.resolve(0, old), self.resolve(1, new)) else {
            return Likeness::Same;
        };
        let qualified = match old.qualified == new.qualified {
            true => Likeness::Same,
            false => Likeness::Alike,
        };
        let (old, new) = match (old.found, new.found) {
            (None, None) => return qualified,
            (None, _) | (_, None) => return Likeness::Different,
            (Some(found), Some(other)) => (
                Resolved {
                    node: old.node,
                    found,
                    alias: old.alias,
                },
                Resolved {
                    node: new.node,
                    found: other,
                    alias: new.alias,
                },
            ),
        };
        let pair = (old.node, new.node);
        if let Some(&known) = self.known.get(&pair) {
            return known.max(qualified);
        }
        self.known.insert(pair, Likeness::Same);
        let likeness = self.bodies(&old, &new, depth).unwrap_or(Likeness::Same);
        self.known.insert(pair, likeness);
        likeness.max(qualified)
    }

    /// Compares the types with these ids in the dicts of their units, or in their parents. Named
    /// structs, unions and enums are compared by their names: changes inside of them are
    /// differences of their own.
    pub(super) fn compare(&mut self, old: Node, new: Node) -> Likeness {
        let old = self.places[0].node(self.sides[0], old.unit, old.id);
        let new = self.places[1].node(self.sides[1], new.unit, new.id);
        self.at(old, new, 0)
    }

    pub(super) fn sides(&self) -> [&'s Side<'d>; 2] {
        self.sides
    }

    fn types(&self, side: usize, unit: usize) -> Types<'d> {
        self.sides[side].units[unit].1
    }

    /// Looks through typedefs and qualifiers; nothing for no type at all.
    fn resolve(&self, side: usize, mut node: Node) -> Result<Maybe<'d>> {
        let (mut qualified, mut alias) = (false, &b""[..]);
        let mut found = None;
        for _ in 0..crate::read::MAX_REFERENCES {
            if node.id.is_none() {
                break;
            }
            let next = self.types(side, node.unit).get(node.id)?;
            let kind = next.kind();
            qualified |= kind.is_qualifier();
            if !kind.is_qualifier() && kind != Kind::Typedef {
                found = Some(next);
                break;
            }
            if kind == Kind::Typedef {
                alias = next.name()?;
                // The format has no such qualifier; debug information that is compared has.
                qualified |= alias.starts_with(b"_Atomic ");
            }
            node = self.places[side].node(self.sides[side], node.unit, next.reference()?);
        }
        Ok(Maybe {
            node,
            found,
            qualified: qualified || found.is_some_and(|found| self.has_qualified_elements(side, node, found)),
            alias,
        })
    }

    /// Whether this is an array of qualified elements. An array is qualified if its elements are:
    /// gcc qualifies both, clang only the elements.
    fn has_qualified_elements(&self, side: usize, mut node: Node, mut found: Type<'d>) -> bool {
        for _ in 0..crate::read::MAX_REFERENCES {
            let kind = found.kind();
            let next = match kind {
                Kind::Array => found.array().map(|array| array.contents),
                Kind::Typedef => found.reference(),
                _ => return kind.is_qualifier(),
            };
            let Ok(next) = next else { return false };
            node = self.places[side].node(self.sides[side], node.unit, next);
            match self.types(side, node.unit).get(node.id) {
                Ok(next) => found = next,
                Err(_) => return false,
            }
        }
        false
    }

    fn bodies(&mut self, old: &Resolved<'d>, new: &Resolved<'d>, depth: usize) -> Result<Likeness> {
        use Kind::{Array, Enum, Float, Forward, Function, Integer, Pointer, Slice, Struct, Union, Unknown};
        let (before, after) = (&old.found, &new.found);
        Ok(match (before.kind(), after.kind()) {
            (Integer, Integer) => integers(before, after)?,
            (Float, Float) => {
                let same = before.size() == after.size()
                    && before.encoding()?.format == after.encoding()?.format
                    && is_quadruple(before.name()?) == is_quadruple(after.name()?);
                same_if(same)
            }
            (Integer, Enum) | (Enum, Integer) => match before.size() == after.size() {
                true => Likeness::Alike,
                false => Likeness::Different,
            },
            (Pointer, Pointer) => {
                let target = self.pair(old, new, before.reference()?, after.reference()?);
                match self.at(target.0, target.1, depth + 1) {
                    // An address of anything is one of something too.
                    Likeness::Different if self.is_void(0, target.0) || self.is_void(1, target.1) => Likeness::Alike,
                    other => other,
                }
            }
            (Array, Array) => {
                let (one, other) = (before.array()?, after.array()?);
                let elements = self.pair(old, new, one.contents, other.contents);
                match one.count == other.count {
                    true => self.at(elements.0, elements.1, depth + 1),
                    false => Likeness::Different,
                }
            }
            (Function, Function) => self.functions(old, new, depth)?,
            (Slice, Slice) => {
                let (one, other) = (before.slice()?, after.slice()?);
                let of = self.pair(old, new, one.of, other.of);
                match (one.bits, one.offset) == (other.bits, other.offset) {
                    true => self.at(of.0, of.1, depth + 1),
                    false => Likeness::Different,
                }
            }
            (Struct | Union | Enum | Forward, Struct | Union | Enum | Forward) => self.aggregates(old, new, depth)?,
            // A type that the format cannot express may be what it was.
            (Unknown, _) | (_, Unknown) => Likeness::Same,
            _ => Likeness::Different,
        })
    }

    fn pair(&self, old: &Resolved<'d>, new: &Resolved<'d>, one: TypeId, other: TypeId) -> (Node, Node) {
        (
            self.places[0].node(self.sides[0], old.node.unit, one),
            self.places[1].node(self.sides[1], new.node.unit, other),
        )
    }

    fn is_void(&self, side: usize, node: Node) -> bool {
        let resolved = self.resolve(side, node);
        resolved.is_ok_and(|it| {
            it.found
                .is_none_or(|found| found.kind() == Kind::Integer && found.size() == 0)
        })
    }

    fn functions(&mut self, old: &Resolved<'d>, new: &Resolved<'d>, depth: usize) -> Result<Likeness> {
        let returned = self.pair(old, new, old.found.reference()?, new.found.reference()?);
        let mut likeness = self.at(returned.0, returned.1, depth + 1);
        let (one, varies) = old.found.arguments()?;
        let (other, also_varies) = new.found.arguments()?;
        // `int f()` says nothing of its arguments.
        if (one.len() == 0 && varies) || (other.len() == 0 && also_varies) {
            let same = one.len() == other.len() && varies == also_varies;
            return Ok(likeness.max(if same { Likeness::Same } else { Likeness::Alike }));
        }
        if one.len() != other.len() || varies != also_varies {
            return Ok(Likeness::Different);
        }
        for (one, other) in one.zip(other) {
            let arguments = self.pair(old, new, one?, other?);
            likeness = likeness.max(self.at(arguments.0, arguments.1, depth + 1));
        }
        Ok(likeness)
    }

    /// Those with one name are the same here; others are by their contents.
    fn aggregates(&mut self, old: &Resolved<'d>, new: &Resolved<'d>, depth: usize) -> Result<Likeness> {
        let kind = |found: &Type<'d>| found.forwarded().unwrap_or(found.kind());
        let (before, after) = (&old.found, &new.found);
        if kind(before) != kind(after) {
            return Ok(Likeness::Different);
        }
        let (name, other) = (old.name()?, new.name()?);
        if name == other && !name.is_empty() {
            return Ok(Likeness::Same);
        }
        let is_declared = |found: &Type<'d>| found.kind() == Kind::Forward;
        if is_declared(before) || is_declared(after) {
            return Ok(Likeness::Alike);
        }
        let renamed = if name == other { Likeness::Same } else { Likeness::Alike };
        if kind(before) == Kind::Enum {
            let (values, others) = (before.all_values()?, after.all_values()?);
            let kept = values.iter().all(|value| others.contains(value));
            return Ok(match before.size() == after.size() && kept {
                true if values.len() == others.len() => renamed,
                true => Likeness::Alike,
                false => Likeness::Different,
            });
        }
        if before.size() != after.size() {
            return Ok(Likeness::Different);
        }
        let others = after.members()?.collect::<Result<Vec<_>>>()?;
        let mut taken = vec![false; others.len()];
        let mut likeness = renamed;
        for (index, member) in before.members()?.enumerate() {
            let member = member?;
            let mut best = None;
            // Most members are where they were.
            for at in std::iter::once(index).chain(0..others.len()) {
                let Some(other) = others.get(at).filter(|other| other.offset == member.offset) else {
                    continue;
                };
                if taken[at] {
                    continue;
                }
                let of = self.pair(old, new, member.id, other.id);
                let mut like = self.at(of.0, of.1, depth + 1);
                let is_named = member.name == other.name;
                if !is_named {
                    like = like.max(Likeness::Alike);
                }
                if best.is_none_or(|(least, _)| like < least) {
                    best = Some((like, at));
                }
                if is_named && (like == Likeness::Same || !member.name.is_empty()) {
                    best = Some((like, at));
                    break;
                }
            }
            let Some((like, at)) = best.filter(|(like, _)| *like != Likeness::Different) else {
                return Ok(Likeness::Different);
            };
            taken[at] = true;
            likeness = likeness.max(like);
        }
        // The others are in former padding, or more members of a union.
        if taken.contains(&false) {
            likeness = likeness.max(Likeness::Alike);
        }
        Ok(likeness)
    }

    /// The size of a type in bytes, if it has one.
    pub(super) fn size(&mut self, side: usize, node: Node) -> Option<u64> {
        let types = self.types(side, node.unit);
        let measures = self.measures[side].entry(node.unit);
        let measures = measures.or_insert_with(|| Measures::new(types, AlignmentRule::StrictestMember));
        measures.size(node.id).ok()
    }
}

/// Like [`Resolved`], or no type at all, and whether qualifiers led to it.
struct Maybe<'d> {
    node: Node,
    found: Option<Type<'d>>,
    qualified: bool,
    alias: &'d [u8],
}

/// Whether a float of this name has quadruple precision. The format has one encoding for it and for
/// `long double`, which on x86 has other bits and is passed in other registers.
fn is_quadruple(name: &[u8]) -> bool {
    let mut words = name.split(|&byte| byte == b' ');
    words.any(|word| matches!(word, b"_Float128" | b"__float128"))
}

fn same_if(same: bool) -> Likeness {
    if same { Likeness::Same } else { Likeness::Different }
}

/// Characters are small numbers, and whether a number has a sign matters to code that extends it;
/// a truth value has fewer values than a byte.
fn integers(before: &Type<'_>, after: &Type<'_>) -> Result<Likeness> {
    let (one, other) = (before.encoding()?, after.encoding()?);
    let bits = |encoding: Encoding| (encoding.offset, encoding.bits);
    let has = |flag: u8| [one, other].map(|encoding| encoding.format & flag != 0);
    let [bool, also_bool] = has(Encoding::BOOL);
    let [signed, also_signed] = has(Encoding::SIGNED);
    Ok(match () {
        () if before.size() != after.size() => Likeness::Different,
        () if bool != also_bool => Likeness::Alike,
        () if bits(one) != bits(other) || signed != also_signed => Likeness::Different,
        () => Likeness::Same,
    })
}
