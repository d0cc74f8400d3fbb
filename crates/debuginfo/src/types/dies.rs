//! The entries of a unit that types are built from, read in one pass.

use gimli::{
    AttributeValue, DwAt, DwLang, DwTag, Expression, Operation, Unit, UnitHeader, UnitOffset, UnitSectionOffset,
    UnitType, constants as dw,
};

use rustc_hash::FxHashMap;

use crate::containers::{elements, node};
use crate::reader::Slice;
use crate::sections::Dwarf;
use crate::split::{SplitUnit, rest_of};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// A reference to an entry elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ref {
    /// By its offset in the unit.
    Unit(u64),
    /// In `.debug_info`.
    Info(u64),
    /// In `.debug_info` of the supplementary file.
    Supplementary(u64),
    /// The type of a type unit, by its signature.
    Signature(u64),
}

/// The parts of an entry that types need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Die<'d> {
    /// Offset in the unit.
    pub(super) offset: u64,
    pub(super) tag: DwTag,
    pub(super) name: &'d [u8],
    /// `DW_AT_linkage_name`: the name of the symbol.
    pub(super) linkage: &'d [u8],
    /// `DW_AT_virtuality`: whether a function is virtual.
    pub(super) is_virtual: bool,
    /// `DW_AT_vtable_elem_location`: the place of a virtual function in its table. gcc leaves it
    /// out of destructors.
    pub(super) slot: Option<u64>,
    /// The index of the innermost namespace around it, if it is not in another entry.
    pub(super) namespace: u32,
    /// `DW_AT_type`, or `DW_AT_discr` of a variant part.
    pub(super) of: Option<Ref>,
    /// `DW_AT_specification`, `DW_AT_abstract_origin` or `DW_AT_signature`: the entry with the
    /// rest.
    pub(super) origin: Option<Ref>,
    /// The enclosing entry, and the end of this one's own entries.
    pub(super) parent: u32,
    pub(super) end: u32,
    pub(super) size: Option<u64>,
    pub(super) bits: Option<u64>,
    /// The bits from the start of the enclosing type, or the attributes that give them.
    pub(super) place: Place,
    /// `DW_AT_encoding`
    pub(super) encoding: dw::DwAte,
    /// `DW_AT_const_value`, or `DW_AT_discr_value` of a variant.
    pub(super) value: Option<i128>,
    /// `DW_AT_count`
    pub(super) count: Option<u64>,
    /// `DW_AT_lower_bound`
    pub(super) lower: Option<i64>,
    /// `DW_AT_upper_bound`
    pub(super) upper: Option<i64>,
    /// Where a function begins, or a variable is.
    pub(super) address: Option<u64>,
    pub(super) declaration: bool,
    pub(super) external: bool,
    pub(super) prototyped: bool,
    pub(super) vector: bool,
    /// The number of the source file in the unit's line table.
    pub(super) file: Option<u64>,
}

/// The location of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// `DW_AT_data_member_location`
    pub(super) bytes: u64,
    /// `DW_AT_data_bit_offset`
    pub(super) data_bits: Option<u64>,
    /// `DW_AT_bit_offset`, from the most significant bit of the storage.
    pub(super) bits_from_top: Option<u64>,
    /// The location is an expression; of a variant, it has several or unknown values.
    pub(super) computed: bool,
}

/// A unit.
pub(super) struct Parsed<'d> {
    /// The unit's offset in its section.
    pub(super) start: u64,
    pub(super) name: Vec<u8>,
    pub(super) language: Option<DwLang>,
    pub(super) kind: UnitKind,
    /// For a skeleton, the reference to its rest.
    pub(super) rest: Option<SplitUnit>,
    /// The id that a skeleton and its rest share.
    pub(super) id: Option<u64>,
    pub(super) dies: Vec<Die<'d>>,
    /// Namespaces: the name of each, and the index of the one around it.
    pub(super) namespaces: Vec<(&'d [u8], u32)>,
    /// What [`super::Parts::name_in_full`] makes: the full names of types, and the names of the
    /// tables of their virtual functions, by the index of the type.
    pub(super) full_names: FxHashMap<u32, Vec<u8>>,
    pub(super) table_names: FxHashMap<u32, Vec<u8>>,
}

/// The kind of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitKind {
    Compilation,
    Partial,
    /// The type's signature, and its offset.
    Type(u64, u64),
    /// The rest is in another file.
    Skeleton,
}

/// Whether types are built from entries with this tag.
fn matters(tag: DwTag) -> bool {
    is_type(tag)
        || matches!(
            tag,
            dw::DW_TAG_member
                | dw::DW_TAG_inheritance
                | dw::DW_TAG_variant_part
                | dw::DW_TAG_variant
                | dw::DW_TAG_enumerator
                | dw::DW_TAG_subrange_type
                | dw::DW_TAG_formal_parameter
                | dw::DW_TAG_unspecified_parameters
                | dw::DW_TAG_subprogram
                | dw::DW_TAG_variable
                | dw::DW_TAG_template_type_parameter
        )
}

/// Whether entries with this tag are types.
pub(super) fn is_type(tag: DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_base_type
            | dw::DW_TAG_unspecified_type
            | dw::DW_TAG_pointer_type
            | dw::DW_TAG_structure_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_class_type
            | dw::DW_TAG_interface_type
            | dw::DW_TAG_enumeration_type
            | dw::DW_TAG_array_type
            | dw::DW_TAG_subroutine_type
            | dw::DW_TAG_typedef
            | dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type
            | dw::DW_TAG_ptr_to_member_type
            | dw::DW_TAG_string_type
            | dw::DW_TAG_set_type
            | dw::DW_TAG_file_type
    )
}

/// Whether entries with this tag are classes, in C++ terms.
pub(super) fn is_class(tag: DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type
    )
}

/// Reads a unit.
pub(super) fn parse<'d>(dwarf: &Dwarf<'d>, header: UnitHeader<Slice<'d>>) -> gimli::Result<Parsed<'d>> {
    let UnitSectionOffset(start) = header.offset();
    let kind = match header.type_() {
        UnitType::Compilation => UnitKind::Compilation,
        UnitType::Partial => UnitKind::Partial,
        UnitType::Type {
            type_signature,
            type_offset,
        }
        | UnitType::SplitType {
            type_signature,
            type_offset,
        } => UnitKind::Type(type_signature.0, type_offset.0 as u64),
        UnitType::Skeleton(_) => UnitKind::Skeleton,
        UnitType::SplitCompilation(_) => UnitKind::Compilation,
    };
    let unit = dwarf.unit(header)?;
    let mut parsed = Parsed {
        start: start as u64,
        name: name(&unit),
        language: None,
        kind,
        rest: rest_of(dwarf, &unit)?,
        id: unit.dwo_id.map(|id| id.0),
        dies: Vec::new(),
        namespaces: Vec::new(),
        full_names: FxHashMap::default(),
        table_names: FxHashMap::default(),
    };
    if parsed.rest.is_some() {
        parsed.kind = UnitKind::Skeleton;
    }
    let mut entries = unit.entries_raw(None)?;
    // For each depth the entry that was kept there, or none if its children are not kept.
    let mut around: Vec<u32> = Vec::new();
    // The namespaces around the entry, with their depths.
    let mut spaces: Vec<(usize, u32)> = Vec::new();
    while !entries.is_empty() {
        let depth = usize::try_from(entries.next_depth()).unwrap_or(0);
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        let next = parsed.dies.len() as u32;
        for &ended in around.get(depth..).unwrap_or_default() {
            if let Some(die) = parsed.dies.get_mut(ended as usize) {
                die.end = next;
            }
        }
        around.resize(depth, NONE);
        let (tag, specs) = (abbreviation.tag(), abbreviation.attributes());
        let parent = around.last().copied().unwrap_or(NONE);
        let root = depth == 0;
        while spaces.pop_if(|(of, _)| *of >= depth).is_some() {}
        let (in_unit, namespace) = match spaces.last() {
            Some(&(of, namespace)) => (of + 1 == depth, namespace),
            None => (depth == 1, NONE),
        };
        if tag == dw::DW_TAG_namespace && !root {
            let mut name = &b"(anonymous namespace)"[..];
            for &spec in specs {
                let attribute = entries.read_attribute(spec)?;
                if attribute.name() == dw::DW_AT_name {
                    name = dwarf.attr_string(&unit, attribute.value())?.slice();
                }
            }
            spaces.push((depth, parsed.namespaces.len() as u32));
            parsed.namespaces.push((name, namespace));
            around.push(NONE);
            continue;
        }
        let kept = root
            || (matters(tag) && is_kept(tag, in_unit, parent, &parsed.dies))
                && (tag != dw::DW_TAG_template_type_parameter || has_elements(&parsed.dies, parent));
        if !kept {
            entries.skip_attributes(specs)?;
            around.push(NONE);
            continue;
        }
        let mut die = Die::new(offset, tag, parent);
        die.namespace = namespace;
        for &spec in specs {
            let attribute = entries.read_attribute(spec)?;
            match (root, attribute.name()) {
                (true, dw::DW_AT_language) => {
                    if let AttributeValue::Language(language) = attribute.value() {
                        parsed.language = Some(language);
                    }
                }
                (true, _) => {}
                (false, name) => die.set(dwarf, &unit, name, attribute.value(), &attribute)?,
            }
        }
        match root {
            true => around.push(NONE),
            false => {
                parsed.dies.push(die);
                around.push(next);
            }
        }
    }
    let end = parsed.dies.len() as u32;
    for ended in around {
        if let Some(die) = parsed.dies.get_mut(ended as usize) {
            die.end = end;
        }
    }
    Ok(parsed)
}

/// The unit's name as GNU tools print it: with the folder in front, unless it is absolute.
fn name(unit: &Unit<Slice<'_>>) -> Vec<u8> {
    let name = unit.name.map(|name| name.slice()).unwrap_or_default();
    match unit.comp_dir.map(|folder| folder.slice()) {
        Some(folder) if !name.starts_with(b"/") && !folder.is_empty() => [folder, b"/", name].concat(),
        _ => name.to_vec(),
    }
}

/// Parameters are kept in functions and function types, variables directly in the unit, in
/// namespaces and in classes. Ranges are in arrays, and are types of their own in languages other
/// than C.
fn is_kept(tag: DwTag, in_unit: bool, parent: u32, dies: &[Die<'_>]) -> bool {
    match tag {
        dw::DW_TAG_variable => in_unit || dies.get(parent as usize).is_some_and(|parent| is_class(parent.tag)),
        dw::DW_TAG_member
        | dw::DW_TAG_enumerator
        | dw::DW_TAG_formal_parameter
        | dw::DW_TAG_unspecified_parameters
        | dw::DW_TAG_variant => parent != NONE,
        _ => true,
    }
}

/// Whether an entry is a class of a library whose type parameters say what its elements are, or a
/// node of one. Those of other classes are as many as all types.
fn has_elements(dies: &[Die<'_>], at: u32) -> bool {
    dies.get(at as usize)
        .is_some_and(|die| elements(die.name).is_some() || node(die.name).is_some())
}

impl<'d> Die<'d> {
    fn new(offset: UnitOffset, tag: DwTag, parent: u32) -> Die<'d> {
        Die {
            offset: offset.0 as u64,
            tag,
            name: &[],
            linkage: &[],
            is_virtual: false,
            slot: None,
            namespace: NONE,
            of: None,
            origin: None,
            parent,
            end: 0,
            size: None,
            bits: None,
            place: Place::default(),
            encoding: dw::DwAte(0),
            value: None,
            count: None,
            lower: None,
            upper: None,
            address: None,
            declaration: false,
            external: false,
            prototyped: false,
            vector: false,
            file: None,
        }
    }

    fn set(
        &mut self,
        dwarf: &Dwarf<'d>,
        unit: &Unit<Slice<'d>>,
        name: DwAt,
        value: AttributeValue<Slice<'d>>,
        attribute: &gimli::Attribute<Slice<'d>>,
    ) -> gimli::Result<()> {
        let flag = || matches!(value, AttributeValue::Flag(true));
        match name {
            dw::DW_AT_name => self.name = dwarf.attr_string(unit, value)?.slice(),
            dw::DW_AT_linkage_name | dw::DW_AT_MIPS_linkage_name => {
                self.linkage = dwarf.attr_string(unit, value)?.slice();
            }
            dw::DW_AT_virtuality => {
                self.is_virtual = matches!(
                    value,
                    AttributeValue::Virtuality(dw::DW_VIRTUALITY_virtual | dw::DW_VIRTUALITY_pure_virtual)
                );
            }
            dw::DW_AT_vtable_elem_location => {
                if let AttributeValue::Exprloc(expression) = value {
                    self.slot = constant_of(expression, unit);
                }
            }
            dw::DW_AT_type | dw::DW_AT_discr => self.of = reference(&value),
            dw::DW_AT_specification | dw::DW_AT_abstract_origin | dw::DW_AT_signature => {
                self.origin = reference(&value)
            }
            dw::DW_AT_byte_size => self.size = attribute.udata_value(),
            dw::DW_AT_bit_size => self.bits = attribute.udata_value(),
            dw::DW_AT_data_bit_offset => self.place.data_bits = attribute.udata_value(),
            dw::DW_AT_bit_offset => self.place.bits_from_top = attribute.udata_value(),
            dw::DW_AT_data_member_location => match (attribute.udata_value(), value) {
                (Some(bytes), _) => self.place.bytes = bytes,
                (None, AttributeValue::Exprloc(expression)) => match constant_offset(expression, unit) {
                    Some(bytes) => self.place.bytes = bytes,
                    None => self.place.computed = true,
                },
                _ => self.place.computed = true,
            },
            dw::DW_AT_low_pc => self.address = dwarf.attr_address(unit, value).ok().flatten(),
            // The part that is called comes first.
            dw::DW_AT_ranges => {
                let first = dwarf.attr_ranges(unit, value).ok().flatten();
                let first = first.and_then(|mut ranges| ranges.next().ok().flatten());
                self.address = self.address.or(first.map(|range| range.begin));
            }
            dw::DW_AT_location => {
                if let AttributeValue::Exprloc(expression) = value {
                    self.address = fixed_address(expression, dwarf, unit);
                }
            }
            dw::DW_AT_encoding => {
                if let AttributeValue::Encoding(encoding) = value {
                    self.encoding = encoding;
                }
            }
            dw::DW_AT_const_value => self.value = constant(&value, attribute),
            dw::DW_AT_discr_value => {
                self.value = constant(&value, attribute);
                self.place.computed |= self.value.is_none();
            }
            // Values of such a type are not what their bits are.
            dw::DW_AT_GNU_bias => self.place.computed = true,
            dw::DW_AT_discr_list => self.place.computed = true,
            dw::DW_AT_count => self.count = attribute.udata_value(),
            dw::DW_AT_lower_bound => self.lower = bound(&value, attribute),
            dw::DW_AT_upper_bound => self.upper = bound(&value, attribute),
            dw::DW_AT_decl_file => {
                self.file = match value {
                    AttributeValue::FileIndex(index) => Some(index),
                    _ => attribute.udata_value(),
                }
            }
            dw::DW_AT_declaration => self.declaration = flag(),
            dw::DW_AT_external => self.external = flag(),
            dw::DW_AT_prototyped => self.prototyped = flag(),
            dw::DW_AT_GNU_vector => self.vector = flag(),
            _ => {}
        }
        Ok(())
    }
}

/// A bound of an array, unless it is computed. Both kinds of numbers are used for both signs: no
/// elements are up to -1, and up to 0xffffffffffffffff.
fn bound(value: &AttributeValue<Slice<'_>>, attribute: &gimli::Attribute<Slice<'_>>) -> Option<i64> {
    constant(value, attribute).map(|bound| bound as i64)
}

fn constant(value: &AttributeValue<Slice<'_>>, attribute: &gimli::Attribute<Slice<'_>>) -> Option<i128> {
    match *value {
        AttributeValue::Sdata(value) => Some(value.into()),
        AttributeValue::Udata(value) => Some(value.into()),
        _ => attribute.udata_value().map(i128::from),
    }
}

pub(super) fn reference(value: &AttributeValue<Slice<'_>>) -> Option<Ref> {
    Some(match *value {
        AttributeValue::UnitRef(offset) => Ref::Unit(offset.0 as u64),
        AttributeValue::DebugInfoRef(offset) => Ref::Info(offset.0 as u64),
        AttributeValue::DebugInfoRefSup(offset) => Ref::Supplementary(offset.0 as u64),
        AttributeValue::DebugTypesRef(signature) => Ref::Signature(signature.0),
        _ => return None,
    })
}

/// The address of a variable that never moves.
fn fixed_address<'d>(expression: Expression<Slice<'d>>, dwarf: &Dwarf<'d>, unit: &Unit<Slice<'d>>) -> Option<u64> {
    let mut operations = expression.operations(unit.encoding());
    let address = match operations.next().ok()?? {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => dwarf.address(unit, index).ok()?,
        _ => return None,
    };
    operations.next().ok()?.is_none().then_some(address)
}

/// The number that an expression consists of.
fn constant_of(expression: Expression<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Option<u64> {
    let mut operations = expression.operations(unit.encoding());
    match (operations.next().ok()??, operations.next()) {
        (Operation::UnsignedConstant { value }, Ok(None)) => Some(value),
        _ => None,
    }
}

/// The only expression that compilers use for the location of a member (DWARF 2).
fn constant_offset(expression: Expression<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Option<u64> {
    let mut operations = expression.operations(unit.encoding());
    match (operations.next().ok()??, operations.next()) {
        (Operation::PlusConstant { value }, Ok(None)) => Some(value),
        _ => None,
    }
}
