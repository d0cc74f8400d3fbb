//! Converts entries of debug information to a graph of types.

use backtrail_ctype::graph::{Body, Function, Graph, Node, Span};
use backtrail_ctype::link::{Unit, UnitSymbol};
use backtrail_ctype::{Array, Encoding, Enumerator, Kind, Slice, StructMember, SymbolKind, TypeId};
use gimli::{DwLang, constants as dw};
use rustc_hash::FxHashMap;

use super::dies::{Die, NONE, Parsed, Ref, is_type};
use super::left_out::{LeftOut, Reason};
use super::{All, MAX_ORIGINS};
use crate::containers::containers;

/// `CTF_FP_*` ("Floating-point types"), by the encoding and the size in bytes.
const FLOATS: [(dw::DwAte, u64, u8); 8] = [
    (dw::DW_ATE_float, 4, 1),
    (dw::DW_ATE_float, 8, 2),
    (dw::DW_ATE_float, 16, 6),
    (dw::DW_ATE_float, 12, 6),
    (dw::DW_ATE_complex_float, 8, 3),
    (dw::DW_ATE_complex_float, 16, 4),
    (dw::DW_ATE_complex_float, 32, 5),
    (dw::DW_ATE_complex_float, 24, 5),
];

/// clang calls the complex numbers of all sizes `complex`, which C takes for `_Complex double`.
fn complex_name(size: u64) -> &'static [u8] {
    match size {
        8 => b"complex float",
        16 => b"complex double",
        _ => b"complex long double",
    }
}

/// Limit of see-through types in a row; real ones have two at most.
const MAX_ATOMIC: usize = 64;

/// An entry: the number of its unit, and its own number there.
pub(crate) type Place = (u32, u32);

/// Builds the types of one unit.
pub(super) struct Builder<'p, 'd> {
    pub(super) all: &'p All<'d>,
    pub(super) graph: Graph<'p>,
    ids: FxHashMap<Place, TypeId>,
    /// Types that have an id but are not built yet, and whether they get their names.
    pending: Vec<(Place, TypeId, bool)>,
    pub(super) elements: Elements,
    void: Option<TypeId>,
    /// The placeholder for types that are not represented.
    unrepresented: Option<TypeId>,
    pub(super) left_out: LeftOut,
    /// The types of the unit that are built.
    which: Which,
    /// Whether the types are made to be compared only, so that they may have what C lacks.
    pub(super) compared: bool,
}

/// What is known of the elements of a unit's containers.
#[derive(Default)]
pub(super) struct Elements {
    /// The nodes of each unit, by their name and the type in them.
    pub(super) nodes: FxHashMap<u32, FxHashMap<(&'static str, Place), Place>>,
    /// Types of elements. Structs of one name may differ, so these have no names.
    pub(super) copies: FxHashMap<Place, TypeId>,
}

/// The types of a unit that are built.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Only types of arguments and results, for a language other than C, that C has too: numbers,
    /// enums, addresses of numbers, functions, containers or anything, and types that consist of
    /// these. All other types have no representation.
    Arguments,
    /// The named types of a language other than C, as far as C can express them.
    Foreign,
}

/// Builds the unit's types, functions and variables.
pub(super) fn unit<'p>(all: &'p All<'_>, number: u32, compared: bool) -> (Unit<'p>, LeftOut) {
    units(all, std::iter::once(number as usize), compared)
}

/// Like `unit`, and returns the id of each entry that is a type.
pub(super) fn unit_with_ids<'p>(all: &'p All<'_>, number: u32) -> (Unit<'p>, FxHashMap<Place, TypeId>) {
    let (unit, builder) = build(all, std::iter::once(number as usize), Which::All, false);
    (unit, builder.ids)
}

/// Builds the types of arguments and results that C has too, for a unit in another language.
/// Returns the id of each entry that is one of them.
pub(super) fn arguments_with_ids<'p>(all: &'p All<'_>, number: u32) -> (Unit<'p>, FxHashMap<Place, TypeId>) {
    let (unit, builder) = build(all, std::iter::once(number as usize), Which::Arguments, false);
    (unit, builder.ids)
}

/// Builds the named types of a unit in a language other than C, as far as C can express them; to be
/// compared, its functions and variables too.
pub(super) fn foreign<'p>(all: &'p All<'_>, number: u32, compared: bool) -> (Unit<'p>, LeftOut) {
    let (unit, builder) = build(all, std::iter::once(number as usize), Which::Foreign, compared);
    (unit, builder.left_out)
}

/// Builds several units as one.
pub(super) fn units<'p>(all: &'p All<'_>, numbers: impl Iterator<Item = usize>, compared: bool) -> (Unit<'p>, LeftOut) {
    let (unit, builder) = build(all, numbers, Which::All, compared);
    (unit, builder.left_out)
}

fn build<'p, 'd>(
    all: &'p All<'d>,
    numbers: impl Iterator<Item = usize>,
    which: Which,
    compared: bool,
) -> (Unit<'p>, Builder<'p, 'd>) {
    let mut builder = Builder {
        all,
        graph: Graph::new(),
        ids: FxHashMap::default(),
        pending: Vec::new(),
        elements: Elements::default(),
        void: None,
        unrepresented: None,
        left_out: LeftOut::default(),
        which,
        compared,
    };
    let mut unit = Unit::default();
    let mut seen = FxHashMap::default();
    let dies = numbers.flat_map(|number| {
        let dies = all.units[number].dies.iter().enumerate();
        dies.map(move |(index, die)| ((number as u32, index as u32), die))
    });
    for (at, die) in dies {
        if which == Which::Arguments {
            builder.argument(at, die);
        } else if which == Which::Foreign {
            if is_foreign_root(die) {
                builder.type_at(at);
            } else if compared && die.parent == NONE {
                builder.foreign_symbol(at, die, &mut unit, &mut seen);
            }
        } else if is_type(die.tag) {
            builder.type_at(at);
        } else if die.parent == NONE && matches!(die.tag, dw::DW_TAG_subprogram | dw::DW_TAG_variable) {
            builder.symbol(at, die, &mut unit, &mut seen);
        }
        builder.make_pending();
    }
    if which == Which::Arguments {
        builder.separate();
    }
    unit.types = std::mem::take(&mut builder.graph);
    (unit, builder)
}

/// Whether a type of a language other than C is built even if no other refers to it. Classes have
/// typedefs of the same few names.
fn is_foreign_root(die: &Die<'_>) -> bool {
    let is_named = !die.name.is_empty() && !die.declaration;
    is_named
        && match die.tag {
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type | dw::DW_TAG_enumeration_type => {
                true
            }
            dw::DW_TAG_typedef => die.parent == NONE,
            _ => false,
        }
}

impl<'p, 'd> Builder<'p, 'd> {
    pub(super) fn die(&self, at: Place) -> &'p Die<'d> {
        &self.all.units[at.0 as usize].dies[at.1 as usize]
    }

    pub(super) fn parsed(&self, at: Place) -> &'p Parsed<'d> {
        &self.all.units[at.0 as usize]
    }

    /// The direct children of an entry.
    pub(super) fn children(&self, at: Place) -> Vec<(Place, Die<'d>)> {
        let parsed = self.parsed(at);
        let end = (self.die(at).end as usize).min(parsed.dies.len());
        let range = at.1 as usize + 1..end.max(at.1 as usize + 1);
        let children = range.filter(|&index| parsed.dies[index].parent == at.1);
        children
            .map(|index| ((at.0, index as u32), parsed.dies[index]))
            .collect()
    }

    /// The id of the entry's type; `void` if it has none.
    pub(super) fn type_of(&mut self, die: &Die<'d>, at: Place) -> TypeId {
        let Some(reference) = die.of else { return self.void() };
        match self.all.resolve(at.0, reference) {
            Some(to) if is_type(self.die(to).tag) || self.die(to).tag == dw::DW_TAG_subrange_type => self.type_at(to),
            _ => {
                self.left_out.add(Reason::Reference, die.name);
                self.unrepresented()
            }
        }
    }

    /// The id of the type of an entry. The type is built later, unless it already is.
    pub(super) fn type_at(&mut self, at: Place) -> TypeId {
        if let Some(&known) = self.ids.get(&at) {
            return known;
        }
        let mut seen_through = at;
        for _ in 0..MAX_ATOMIC {
            let die = self.die(seen_through);
            // The type is in a type unit.
            if let Some(signature @ Ref::Signature(_)) = die.origin
                && let Some(to) = self.all.resolve(seen_through.0, signature)
            {
                seen_through = to;
                continue;
            }
            // Compilers of other languages have nameless names of types.
            let is_name = match die.tag {
                dw::DW_TAG_subrange_type | dw::DW_TAG_typedef => die.of.is_some(),
                tag => tag == dw::DW_TAG_unspecified_type,
            };
            let is_seen_through = die.tag == dw::DW_TAG_immutable_type
                || die.tag == dw::DW_TAG_atomic_type && !self.compared
                || is_name && matches!(die.name, b"" | b"void")
                || self.which == Which::Arguments && self.is_typedef_of_class(die, seen_through);
            if !is_seen_through {
                break;
            }
            match die.of.and_then(|of| self.all.resolve(seen_through.0, of)) {
                Some(to) if is_type(self.die(to).tag) => seen_through = to,
                _ => return self.void(),
            }
        }
        if let Some(&known) = self.ids.get(&seen_through) {
            self.ids.insert(at, known);
            return known;
        }
        let id = self.graph.add_nameless(Body::Unknown);
        self.ids.insert(seen_through, id);
        self.ids.insert(at, id);
        self.pending.push((seen_through, id, true));
        id
    }

    /// Adds a type that is identified by its members instead of its name.
    pub(super) fn nameless_at(&mut self, at: Place) -> TypeId {
        let id = self.graph.add_nameless(Body::Unknown);
        self.pending.push((at, id, false));
        id
    }

    pub(super) fn void(&mut self) -> TypeId {
        let signed = Encoding {
            format: Encoding::SIGNED,
            offset: 0,
            bits: 0,
        };
        let void = Node {
            name: &b"void"[..],
            root: true,
            body: Body::Number(Kind::Integer, 0, signed),
        };
        *self.void.get_or_insert_with(|| self.graph.add(void))
    }

    fn unrepresented(&mut self) -> TypeId {
        *self
            .unrepresented
            .get_or_insert_with(|| self.graph.add_nameless(Body::Unknown))
    }

    fn make_pending(&mut self) {
        while let Some((at, id, named)) = self.pending.pop() {
            let die = *self.die(at);
            let body = self.body(at, &die);
            let name = match body {
                _ if !named => &[],
                Body::Array(_) | Body::Function(_) | Body::Reference(Kind::Pointer, _) => &[],
                Body::Reference(kind, _) if kind.is_qualifier() => &[],
                Body::Aggregate(..) if self.which == Which::Arguments && self.is_internal(at) => &[],
                Body::Aggregate(..) if self.which == Which::Arguments && self.is_variant(at) => &[],
                Body::Number(Kind::Float, size, _) if die.name == b"complex" => complex_name(size),
                _ => self.name(at, &die),
            };
            self.graph.replace(id, Node { name, root: true, body });
        }
    }

    /// The name of a type: in full, if the unit's types have such names.
    fn name(&self, at: Place, die: &Die<'d>) -> &'p [u8] {
        let full = |at: Place| self.parsed(at).full_names.get(&at.1).map(Vec::as_slice);
        match (full(at), die.origin) {
            (Some(name), _) => name,
            // A class that is defined outside of the one that declares it.
            (None, Some(origin)) if self.compared && die.name.is_empty() => {
                let origin = self.all.resolve(at.0, origin);
                origin.and_then(full).unwrap_or(die.name)
            }
            _ => die.name,
        }
    }

    /// Whether a class of a library is inside another one. All vectors have such a class of one
    /// name, but with different members.
    fn is_internal(&self, at: Place) -> bool {
        let die = self.die(at);
        die.name.starts_with(b"_") && self.is_in_class(die, at)
    }

    /// Whether this is a typedef inside a class. Many classes have one of this name, for different
    /// types.
    fn is_typedef_of_class(&self, die: &Die<'d>, at: Place) -> bool {
        die.tag == dw::DW_TAG_typedef && self.is_in_class(die, at)
    }

    fn is_in_class(&self, die: &Die<'d>, at: Place) -> bool {
        let is_class = |tag| matches!(tag, dw::DW_TAG_structure_type | dw::DW_TAG_class_type);
        die.parent != NONE && is_class(self.die((at.0, die.parent)).tag)
    }

    /// Builds the type of an argument or a result, unless the function is only declared, as most
    /// functions of a class are.
    fn argument(&mut self, at: Place, die: &Die<'d>) {
        let is_declared = |function: &Die<'_>| function.declaration;
        let is_described = match die.tag {
            dw::DW_TAG_subprogram => !is_declared(die),
            dw::DW_TAG_formal_parameter => die.parent != NONE && !is_declared(self.die((at.0, die.parent))),
            _ => false,
        };
        let typed = is_described.then(|| self.typed(at)).flatten();
        if let Some(typed) = typed {
            let die = *self.die(typed);
            self.type_of(&die, typed);
        }
    }

    /// The entry itself, or the one of its origins that has its type. With link-time optimization,
    /// origins are in other units.
    fn typed(&self, mut at: Place) -> Option<Place> {
        for _ in 0..MAX_ORIGINS {
            let die = self.die(at);
            if die.of.is_some() {
                return Some(at);
            }
            at = self.all.resolve(at.0, die.origin?)?;
        }
        None
    }

    /// The substitute for a type of another language; `None` if C has the type too.
    fn foreign(&mut self, at: Place, die: &Die<'d>) -> Option<Body> {
        match die.tag {
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                let to = match self.pointed_to(at, die) {
                    Some(to) => Some(self.type_at(to)),
                    None => self.boxed(at, die),
                };
                Some(Body::Reference(Kind::Pointer, to.unwrap_or_else(|| self.void())))
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                let children = self.children(at);
                if children.iter().any(|(_, child)| child.tag == dw::DW_TAG_variant_part) {
                    return Some(self.variants(at, die).unwrap_or(Body::Unknown));
                }
                // A virtual base has no fixed offset.
                let is_unlike = children.iter().any(|(_, member)| member.place.computed);
                is_unlike.then_some(Body::Unknown)
            }
            dw::DW_TAG_base_type
            | dw::DW_TAG_array_type
            | dw::DW_TAG_string_type
            | dw::DW_TAG_subrange_type
            | dw::DW_TAG_subroutine_type
            | dw::DW_TAG_enumeration_type
            | dw::DW_TAG_typedef
            | dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type => None,
            _ => Some(Body::Unknown),
        }
    }

    /// What C has instead of a type of another language; `None` if C has the type too.
    fn outlined(&mut self, at: Place, die: &Die<'d>) -> Option<Body> {
        let kind = match die.tag {
            dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                return Some(Body::Reference(Kind::Pointer, self.type_of(die, at)));
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type => Kind::Struct,
            dw::DW_TAG_union_type => Kind::Union,
            dw::DW_TAG_ptr_to_member_type if self.compared => return Some(self.member_pointer(at, die)),
            _ => return None,
        };
        // Which members a value has depends on the value.
        let varies = |(_, child): (Place, Die<'_>)| child.tag == dw::DW_TAG_variant_part;
        let is_opaque = !die.declaration && self.children(at).into_iter().any(varies);
        is_opaque.then(|| Body::Aggregate(kind, die.size.unwrap_or(0), Span::default()))
    }

    /// The type that an address leads to, through typedefs and qualifiers, if values show it: a
    /// number, a function, or a container of a library.
    fn pointed_to(&self, at: Place, die: &Die<'d>) -> Option<Place> {
        let mut at = self.all.resolve(at.0, die.of?)?;
        for _ in 0..MAX_ATOMIC {
            let die = self.die(at);
            match die.tag {
                dw::DW_TAG_base_type | dw::DW_TAG_subroutine_type => return Some(at),
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type => {
                    // Also if this unit only declares it: types that refer to it are then shared.
                    return containers(die.name).next().is_some().then_some(at);
                }
                dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type => {
                    at = self.all.resolve(at.0, die.of?)?;
                }
                _ => return None,
            }
        }
        None
    }

    fn body(&mut self, at: Place, die: &Die<'d>) -> Body {
        if self.which == Which::Arguments
            && let Some(body) = self.foreign(at, die)
        {
            return body;
        }
        if self.which == Which::Foreign
            && let Some(body) = self.outlined(at, die)
        {
            return body;
        }
        if die.tag == dw::DW_TAG_subrange_type && !self.is_as_large(at, die) {
            return match self.range(at, die) {
                Some(range) => range,
                None => self.cannot(Reason::Kind(die.tag), die),
            };
        }
        let mut reference = |kind| Body::Reference(kind, self.type_of(die, at));
        match die.tag {
            dw::DW_TAG_pointer_type => reference(Kind::Pointer),
            // Of those that are compared, a typedef with a name that says so.
            dw::DW_TAG_typedef | dw::DW_TAG_subrange_type | dw::DW_TAG_atomic_type => reference(Kind::Typedef),
            dw::DW_TAG_const_type => reference(Kind::Const),
            dw::DW_TAG_volatile_type => reference(Kind::Volatile),
            dw::DW_TAG_restrict_type => reference(Kind::Restrict),
            dw::DW_TAG_base_type => self.number(die),
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type => self.aggregate(Kind::Struct, at, die),
            dw::DW_TAG_union_type => self.aggregate(Kind::Union, at, die),
            dw::DW_TAG_enumeration_type => self.enumeration(at, die),
            dw::DW_TAG_array_type => self.array(at, die),
            dw::DW_TAG_string_type => self.text(die),
            dw::DW_TAG_subroutine_type => Body::Function(self.function(at, die)),
            dw::DW_TAG_unspecified_type => Body::Reference(Kind::Typedef, self.void()),
            tag => self.cannot(Reason::Kind(tag), die),
        }
    }

    fn cannot(&mut self, reason: Reason, die: &Die<'d>) -> Body {
        self.left_out.add(reason, die.name);
        Body::Unknown
    }

    fn number(&mut self, die: &Die<'d>) -> Body {
        let size = die.size.unwrap_or(0);
        if die.place.computed {
            return self.cannot(Reason::Encoding(die.encoding), die);
        }
        // clang gives `_BitInt(37)` four bytes and no width; wide ones are passed unlike
        // `__int128`.
        let is_of_bits = die.name.windows(7).any(|part| part == b"_BitInt" || part == b"_ExtInt");
        if is_of_bits && (die.bits.is_none() || size > 8) {
            return self.cannot(Reason::Encoding(die.encoding), die);
        }
        let all = size.saturating_mul(8);
        let encoding = |format| Encoding {
            format,
            offset: 0,
            bits: u16::try_from(die.bits.map_or(all, |bits| bits.min(all))).unwrap_or(u16::MAX),
        };
        let float = FLOATS
            .iter()
            .find(|(ate, bytes, _)| (*ate, *bytes) == (die.encoding, size));
        if let Some((_, _, format)) = float {
            return Body::Number(Kind::Float, size, encoding(*format));
        }
        let format = match die.encoding {
            dw::DW_ATE_boolean => Encoding::BOOL,
            dw::DW_ATE_signed => Encoding::SIGNED,
            dw::DW_ATE_unsigned => 0,
            dw::DW_ATE_signed_char => Encoding::SIGNED | Encoding::CHAR,
            dw::DW_ATE_unsigned_char | dw::DW_ATE_UTF => Encoding::CHAR,
            other => return self.cannot(Reason::Encoding(other), die),
        };
        Body::Number(Kind::Integer, size, encoding(format))
    }

    fn aggregate(&mut self, kind: Kind, at: Place, die: &Die<'d>) -> Body {
        if die.declaration {
            // Names are without their namespaces, so that another class may have this one.
            let is_sure = self.which != Which::Arguments || containers(die.name).next().is_some();
            return if is_sure { Body::Forward(kind) } else { Body::Unknown };
        }
        let mut members = Vec::new();
        for (place, member) in self.children(at) {
            // C's members have a type, and an external member is not part of a value.
            let is_part = matches!(member.tag, dw::DW_TAG_member | dw::DW_TAG_inheritance);
            if !is_part || member.of.is_none() || member.external {
                continue;
            }
            if member.place.computed {
                self.left_out.add(Reason::Place, member.name);
                continue;
            }
            let member = self.member(place, &member);
            // Some compilers have members of the type's description, not of its values.
            if member.offset > die.size.unwrap_or(0).saturating_mul(8) {
                self.left_out.add(Reason::Place, member.name);
                continue;
            }
            members.push(member);
        }
        if self.which == Which::Foreign {
            // Compilers of Rust put members where they fit best; C has them in their order.
            members.sort_by_key(|member| member.offset);
        }
        if self.which == Which::Arguments {
            members.extend(self.elements_shown(at, die));
        }
        if self.compared {
            members.extend(self.virtual_functions(at));
        }
        Body::Aggregate(kind, die.size.unwrap_or(0), self.graph.add_members(members))
    }

    pub(super) fn member(&mut self, at: Place, member: &Die<'d>) -> StructMember<'d> {
        let id = self.type_of(member, at);
        // A base class is a member with the name of its class.
        let base = member.of.filter(|_| member.tag == dw::DW_TAG_inheritance);
        let base = base.and_then(|of| self.all.resolve(at.0, of));
        let name = base.map_or(member.name, |base| self.die(base).name);
        let start = member.place.bytes.wrapping_mul(8);
        let Some(bits) = member.bits else {
            let offset = member.place.data_bits.unwrap_or(start);
            return StructMember { name, offset, id };
        };
        let offset = match (member.place.data_bits, member.place.bits_from_top) {
            (Some(offset), _) => offset,
            (None, None) => start,
            (None, Some(top)) if self.all.big => start.wrapping_add(top),
            // Counted from the other end of the storage.
            (None, Some(top)) => {
                let storage = member.size.or_else(|| self.size_of(member, at)).unwrap_or(4);
                let end = start.wrapping_add(storage.wrapping_mul(8));
                end.wrapping_sub(top).wrapping_sub(bits)
            }
        };
        // LLVM gives other members a width too, if their compiler has rounded their sizes.
        if !self.is_number(member, at) {
            return StructMember { name, offset, id };
        }
        let slice = Slice {
            of: id,
            offset: 0,
            bits: u16::try_from(bits).unwrap_or(u16::MAX),
        };
        let bytes = bits.div_ceil(8).max(1).next_power_of_two();
        StructMember {
            name,
            offset,
            id: self.graph.add_nameless(Body::Slice(bytes, slice)),
        }
    }

    /// Numbers of a range that take fewer bytes than the type that it restricts: they have a sign
    /// if the least of them has.
    fn range(&self, at: Place, die: &Die<'d>) -> Option<Body> {
        let size = die
            .size
            .filter(|size| matches!(size, 1 | 2 | 4 | 8) && !die.place.computed)?;
        let format = if die.lower? < 0 { Encoding::SIGNED } else { 0 };
        let mut of = self.all.resolve(at.0, die.of?)?;
        for _ in 0..MAX_ATOMIC {
            let die = self.die(of);
            match die.tag {
                dw::DW_TAG_base_type => {
                    let is_number = matches!(die.encoding, dw::DW_ATE_signed | dw::DW_ATE_unsigned);
                    let encoding = Encoding {
                        format,
                        offset: 0,
                        bits: size as u16 * 8,
                    };
                    return is_number.then_some(Body::Number(Kind::Integer, size, encoding));
                }
                dw::DW_TAG_subrange_type | dw::DW_TAG_typedef | dw::DW_TAG_const_type => {
                    of = self.all.resolve(of.0, die.of?)?;
                }
                _ => return None,
            }
        }
        None
    }

    /// Characters of a fixed number.
    fn text(&mut self, die: &Die<'d>) -> Body {
        let count = die.size.and_then(|size| u32::try_from(size).ok());
        let Some(count) = count.filter(|&count| count > 0) else {
            return self.cannot(Reason::Kind(die.tag), die);
        };
        let encoding = Encoding {
            format: Encoding::CHAR,
            offset: 0,
            bits: 8,
        };
        let contents = self.graph.add(Node {
            name: &b"character"[..],
            root: true,
            body: Body::Number(Kind::Integer, 1, encoding),
        });
        let index = contents;
        Body::Array(Array { contents, index, count })
    }

    /// Whether values of a range have the size of the type that it restricts.
    fn is_as_large(&self, at: Place, die: &Die<'d>) -> bool {
        die.of.is_some() && (die.size.is_none() || die.size == self.size_of(die, at))
    }

    /// Whether the type is a number or an enum, through typedefs and qualifiers.
    fn is_number(&self, die: &Die<'d>, at: Place) -> bool {
        let mut of = die.of.and_then(|of| self.all.resolve(at.0, of));
        for _ in 0..MAX_ATOMIC {
            let Some(at) = of else { return false };
            let die = self.die(at);
            match die.tag {
                dw::DW_TAG_base_type | dw::DW_TAG_enumeration_type => return true,
                dw::DW_TAG_typedef
                | dw::DW_TAG_const_type
                | dw::DW_TAG_volatile_type
                | dw::DW_TAG_atomic_type
                | dw::DW_TAG_subrange_type => of = die.of.and_then(|of| self.all.resolve(at.0, of)),
                _ => return false,
            }
        }
        false
    }

    /// Bytes of a number, through typedefs and qualifiers.
    pub(super) fn size_of(&self, die: &Die<'d>, at: Place) -> Option<u64> {
        let mut at = self.all.resolve(at.0, die.of?)?;
        for _ in 0..MAX_ATOMIC {
            let die = self.die(at);
            if die.size.is_some() {
                return die.size;
            }
            at = self.all.resolve(at.0, die.of?)?;
        }
        None
    }

    fn enumeration(&mut self, at: Place, die: &Die<'d>) -> Body {
        if die.declaration {
            return Body::Forward(Kind::Enum);
        }
        let mut values = Vec::new();
        for (_, value) in self.children(at) {
            if value.tag != dw::DW_TAG_enumerator {
                continue;
            }
            match value.value.and_then(|value| i32::try_from(value).ok()) {
                Some(number) => values.push(Enumerator {
                    name: value.name,
                    value: number,
                }),
                None => self.left_out.add(Reason::Enumerator, value.name),
            }
        }
        Body::Enum(die.size.unwrap_or(4), self.graph.add_values(values))
    }

    fn array(&mut self, at: Place, die: &Die<'d>) -> Body {
        if die.vector && !self.compared {
            return self.cannot(Reason::Vector, die);
        }
        let mut contents = self.type_of(die, at);
        let mut dimensions = Vec::new();
        for (place, dimension) in self.children(at) {
            if dimension.tag == dw::DW_TAG_subrange_type {
                let Ok(count) = u32::try_from(self.elements(at.0, &dimension)) else {
                    return self.cannot(Reason::Elements, die);
                };
                dimensions.push((self.type_of(&dimension, place), count));
            }
        }
        // The last dimension is the innermost.
        let outermost = dimensions.first().copied();
        for &(index, count) in dimensions.iter().skip(1).rev() {
            contents = self.graph.add_nameless(Body::Array(Array { contents, index, count }));
        }
        let (index, count) = outermost.unwrap_or((contents, 0));
        let array = Array { contents, index, count };
        if die.vector {
            return self.vector(at, die, array);
        }
        Body::Array(array)
    }

    /// The number of elements in a dimension; 0 if it is open or computed.
    fn elements(&self, unit: u32, dimension: &Die<'d>) -> u64 {
        if let Some(count) = dimension.count {
            return count;
        }
        let default = self.all.units[unit as usize]
            .language
            .and_then(DwLang::default_lower_bound);
        let lower = dimension.lower.unwrap_or(default.unwrap_or(0) as i64);
        let count = |upper: i64| upper.checked_sub(lower)?.checked_add(1);
        let count = dimension.upper.and_then(count).unwrap_or(0);
        u64::try_from(count).unwrap_or(0)
    }

    pub(super) fn function(&mut self, at: Place, die: &Die<'d>) -> Function {
        let returns = self.type_of(die, at);
        let (mut arguments, mut variadic) = (Vec::new(), false);
        for (place, child) in self.children(at) {
            match child.tag {
                dw::DW_TAG_formal_parameter => arguments.push(self.type_of(&child, place)),
                dw::DW_TAG_unspecified_parameters => variadic = true,
                _ => {}
            }
        }
        Function {
            returns,
            arguments: self.graph.add_arguments(arguments),
            variadic,
        }
    }

    /// Adds a function or variable that the unit defines or declares.
    fn symbol(
        &mut self,
        at: Place,
        die: &Die<'d>,
        unit: &mut Unit<'p>,
        seen: &mut FxHashMap<(SymbolKind, &'d [u8]), usize>,
    ) {
        let origin = die.origin.and_then(|origin| self.all.resolve(at.0, origin));
        let declared = origin.map(|origin| *self.die(origin));
        let name = match (die.name, &declared) {
            (b"", Some(declared)) => declared.name,
            (name, _) => name,
        };
        let external = die.external || declared.is_some_and(|declared| declared.external);
        let (kind, id) = match die.tag {
            dw::DW_TAG_subprogram => {
                // A copy of a function that is described elsewhere has no parameters with types.
                let described = match (origin, declared) {
                    (Some(origin), Some(declared)) if die.of.is_none() && !die.prototyped => (origin, declared),
                    _ => (at, *die),
                };
                let function = self.function(described.0, &described.1);
                (SymbolKind::Function, self.graph.add_nameless(Body::Function(function)))
            }
            _ => {
                let typed = match (die.of, origin, declared) {
                    (None, Some(origin), Some(declared)) => (origin, declared),
                    _ => (at, *die),
                };
                (SymbolKind::Object, self.type_of(&typed.1, typed.0))
            }
        };
        if name.is_empty() {
            return;
        }
        let symbol = UnitSymbol {
            name,
            kind,
            id,
            local: !external,
            declared: die.declaration,
        };
        let next = unit.symbols.len();
        let known = *seen.entry((kind, name)).or_insert(next);
        if !symbol.declared {
            unit.addresses
                .extend(die.address.map(|address| (address, known as u32)));
        }
        match unit.symbols.get_mut(known) {
            None => unit.symbols.push(symbol),
            // The definition follows its declaration.
            Some(known) if known.declared && !symbol.declared => *known = symbol,
            Some(_) => return,
        }
        if kind == SymbolKind::Object && !symbol.declared {
            unit.variables.push((name, id));
        }
    }
}
