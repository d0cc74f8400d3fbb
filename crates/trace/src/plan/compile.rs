//! Compiles a description into a plan: checks every class, and assigns registers to the fields that
//! others refer to.

use super::compiled::{ClockPlan, EventIds, EventPlan, Plan, StreamPlan};
use super::field::Field;
use super::flat::FlatEvent;
use super::labels::LabelIndex;
use super::shape::{ArrayPlan, Count, FieldId, OptionPlan, Shape};
use super::usual::UsualHeader;
use super::whole::Whole;
use crate::constants::MAX_NESTING;
use crate::description::{
    Array, BitMap, Description, DescriptionError, DescriptionErrorKind, Enumeration, FieldClass, Integer, Length,
    Optional, Range, Reference, Role, Scope, Storage, Struct, Variant,
};
#[cfg(feature = "render")]
use crate::slot::SharedSlot;
use std::collections::{HashMap, HashSet};

impl Plan {
    /// Checks and compiles a description.
    ///
    /// # Errors
    ///
    /// The description contradicts itself; the error contains the place.
    pub fn new(description: Description) -> Result<Plan> {
        compile(description)
    }
}

fn compile(description: Description) -> Result<Plan> {
    let mut compiler = Compiler {
        clocks: description.clocks.len(),
        fields: Vec::new(),
        slots: 0,
        wanted: HashSet::new(),
        defined: Vec::new(),
        options: Vec::new(),
        any_slots: HashMap::new(),
        place: Place::default(),
    };
    let (packet_header, streams) = compiler.description(&description)?;
    Ok(Plan {
        fields: compiler.fields,
        slots: compiler.slots as usize,
        packet_header,
        streams,
        description,
        #[cfg(feature = "render")]
        pieces: SharedSlot::default(),
    })
}

#[derive(Clone, Copy, Default)]
struct Place {
    scope: Option<Scope>,
    stream: Option<u64>,
    event: Option<u64>,
    field: u32,
}

struct Compiler {
    clocks: usize,
    fields: Vec<Field>,
    slots: u32,
    /// The fields that lengths and tags of the description refer to.
    wanted: HashSet<Reference>,
    /// The wanted integers that come before the current field in every packet, innermost last.
    defined: Vec<Defined>,
    /// Places of options' names in the current path.
    options: Vec<usize>,
    /// Registers of integers that are referred to in any of several options.
    any_slots: HashMap<Reference, u32>,
    place: Place,
}

struct Defined {
    reference: Reference,
    slot: u32,
    signed: bool,
}

impl Defined {
    fn is_like(&self, other: &Defined) -> bool {
        self.reference == other.reference && self.signed == other.signed
    }
}

type Result<T> = std::result::Result<T, DescriptionError>;

impl Compiler {
    fn error(&self, kind: DescriptionErrorKind) -> DescriptionError {
        DescriptionError {
            kind,
            scope: self.place.scope,
            stream: self.place.stream,
            event: self.place.event,
            field: self.place.field,
        }
    }

    fn description(&mut self, description: &Description) -> Result<(Option<FieldId>, Vec<StreamPlan>)> {
        if description.clocks.iter().any(|clock| clock.frequency == 0) {
            return Err(self.error(DescriptionErrorKind::Frequency));
        }
        self.collect_references(description);
        let packet_header = self.root(Scope::PacketHeader, description.packet_header.as_ref())?;
        // The names of the RFC's files identify the class.
        let by_file = description.session.is_some();
        if description.streams.len() > 1 && !by_file && !self.has_role(packet_header, Role::StreamClassId) {
            return Err(self.error(DescriptionErrorKind::NoStreamId));
        }
        let after_packet_header = self.defined.len();
        let mut ids = HashSet::new();
        let mut streams = Vec::new();
        for class in &description.streams {
            self.defined.truncate(after_packet_header);
            self.place = Place {
                stream: Some(class.id),
                ..Place::default()
            };
            if !ids.insert(class.id) {
                return Err(self.error(DescriptionErrorKind::DuplicateStream(class.id)));
            }
            let clock = match class.clock {
                Some(index) => {
                    let clock = description.clocks.get(index).cloned();
                    let unknown = self.error(DescriptionErrorKind::UnknownClock(index));
                    Some(ClockPlan::new(clock.ok_or(unknown)?))
                }
                None => None,
            };
            let packet_context = self.root(Scope::PacketContext, class.packet_context.as_ref())?;
            let event_header = self.root(Scope::EventHeader, class.event_header.as_ref())?;
            if class.events.len() > 1 && !self.has_role(event_header, Role::EventClassId) {
                return Err(self.error(DescriptionErrorKind::NoEventId));
            }
            let event_context = self.root(Scope::StreamEventContext, class.event_context.as_ref())?;
            let mut events = Vec::new();
            let mut events_by_id = EventIds::default();
            let after_stream = self.defined.len();
            for (index, event) in class.events.iter().enumerate() {
                self.defined.truncate(after_stream);
                self.place.event = Some(event.id);
                if events_by_id.insert(event.id, index) {
                    return Err(self.error(DescriptionErrorKind::DuplicateEvent(event.id)));
                }
                let context = self.root(Scope::EventContext, event.context.as_ref())?;
                let payload = self.root(Scope::EventPayload, event.payload.as_ref())?;
                events.push(EventPlan {
                    context,
                    payload,
                    flat: FlatEvent::of(&self.fields, [event_context, context, payload]),
                });
            }
            streams.push(StreamPlan {
                clock,
                packet_context,
                event_header,
                usual_header: event_header.and_then(|header| UsualHeader::of(&self.fields, header)),
                event_context,
                events,
                events_by_id,
            });
        }
        Ok((packet_header, streams))
    }

    fn collect_references(&mut self, description: &Description) {
        for (stream, class) in description.streams.iter().enumerate() {
            for event in 0..class.events.len().max(1) {
                for scope in Scope::ALL {
                    // The other scopes are the same for each event of the stream.
                    if event > 0 && scope < Scope::EventContext {
                        continue;
                    }
                    if let Some(root) = description.root(scope, stream, event) {
                        collect_struct(root, 0, &mut self.wanted);
                    }
                }
            }
        }
        if let Some(root) = &description.packet_header {
            collect_struct(root, 0, &mut self.wanted);
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ids and slots are those that the compiler gave out; the description limits the depth"
    )]
    fn has_role(&self, root: Option<FieldId>, role: Role) -> bool {
        // The root's own fields are the last ones, since children are compiled before their parent.
        let Some(root) = root else { return false };
        let mut pending = vec![root];
        while let Some(id) = pending.pop() {
            let field = &self.fields[id as usize];
            if field.role() == Some(role) {
                return true;
            }
            match &field.shape {
                Shape::Struct(members) => pending.extend(members.iter()),
                Shape::Variant { options, .. } => pending.extend(options.iter().map(|option| option.field)),
                Shape::Optional { field, .. } => pending.push(*field),
                _ => {}
            }
        }
        false
    }

    fn root(&mut self, scope: Scope, root: Option<&Struct>) -> Result<Option<FieldId>> {
        let Some(root) = root else { return Ok(None) };
        self.place.scope = Some(scope);
        self.place.field = 0;
        let mut path = Reference::new(scope, &[]);
        let id = self.structure(root, &mut path, "", 0)?;
        self.place.scope = None;
        Ok(Some(id))
    }

    fn class(&mut self, class: &FieldClass, path: &mut Reference, name: &str, depth: usize) -> Result<FieldId> {
        if depth >= MAX_NESTING {
            return Err(self.error(DescriptionErrorKind::TooDeep));
        }
        match class {
            FieldClass::Integer(integer) => self.integer(integer, path, name, Shape::Integer(*integer)),
            FieldClass::Enumeration(class) => self.enumeration(class, path, name),
            FieldClass::Float(float) => {
                if !matches!(float.size, 32 | 64) {
                    return Err(self.error(DescriptionErrorKind::FloatSize(float.size)));
                }
                let align = self.alignment(float.align)?;
                Ok(self.push(name, align, None, Shape::Float(*float)))
            }
            FieldClass::String(encoding) => Ok(self.push(name, 8, None, Shape::String(*encoding))),
            FieldClass::Struct(class) => self.structure(class, path, name, depth),
            FieldClass::Array(class) => self.array(class, path, name, depth),
            FieldClass::Variant(class) => self.variant(class, path, name, depth),
            FieldClass::Optional(class) => self.optional(class, path, name, depth),
            FieldClass::BitMap(class) => self.bit_map(class, path, name),
            FieldClass::Boolean(integer) => self.integer(integer, path, name, Shape::Boolean(*integer)),
        }
    }

    fn alignment(&self, align: u32) -> Result<u64> {
        if align.is_power_of_two() {
            Ok(u64::from(align))
        } else {
            Err(self.error(DescriptionErrorKind::Alignment(align)))
        }
    }

    fn integer(&mut self, integer: &Integer, path: &Reference, name: &str, shape: Shape) -> Result<FieldId> {
        if !(1..=64).contains(&integer.size) {
            return Err(self.error(DescriptionErrorKind::IntegerSize(integer.size)));
        }
        let align = self.alignment(integer.align)?;
        let outer_align = match integer.storage {
            Storage::Bits | Storage::Reversed => align,
            Storage::Unit(unit) if integer.size <= unit => align.max(self.alignment(unit)?),
            Storage::Unit(_) => return Err(self.error(DescriptionErrorKind::IntegerSize(integer.size))),
            // Whole bytes, whatever the alignment.
            Storage::Leb128 if align >= 8 => align,
            Storage::Leb128 => return Err(self.error(DescriptionErrorKind::Alignment(integer.align))),
        };
        if let Some(clock) = integer.clock.filter(|&clock| clock >= self.clocks) {
            return Err(self.error(DescriptionErrorKind::UnknownClock(clock)));
        }
        let slot = self.slot(path, integer.signed);
        Ok(self.push_with(name, (align, outer_align), slot, shape))
    }

    /// The register of a wanted integer.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "fewer slots than fields, which have 32-bit ids"
    )]
    fn slot(&mut self, path: &Reference, signed: bool) -> Option<u32> {
        let in_options = (!self.options.is_empty()).then(|| self.without_options(path));
        let any = in_options.filter(|any| self.wanted.contains(any));
        let own = self.wanted.contains(path).then(|| path.clone());
        let new = match any.as_ref().map(|any| self.any_slots.get(any)) {
            // The same register in all options.
            Some(Some(&slot)) => slot,
            None if own.is_none() => return None,
            _ => {
                self.slots += 1;
                self.slots - 1
            }
        };
        if let Some(any) = &any {
            self.any_slots.insert(any.clone(), new);
        }
        for reference in own.into_iter().chain(any) {
            self.defined.push(Defined {
                reference,
                slot: new,
                signed,
            });
        }
        Some(new)
    }

    fn without_options(&self, path: &Reference) -> Reference {
        let names = path.path.iter().enumerate();
        let names = names.filter(|(place, _)| !self.options.contains(place));
        Reference {
            scope: path.scope,
            path: names.map(|(_, name)| name.clone()).collect(),
            any_option: true,
        }
    }

    fn enumeration(&mut self, class: &Enumeration, path: &Reference, name: &str) -> Result<FieldId> {
        for mapping in &class.mappings {
            self.check_ranges(&mapping.ranges)?;
        }
        let mappings = LabelIndex::new(class.mappings.clone().into_boxed_slice());
        self.integer(&class.integer, path, name, Shape::Enumeration(class.integer, mappings))
    }

    fn check_ranges(&self, ranges: &[Range]) -> Result<()> {
        match ranges.iter().all(|range| range.first <= range.last) {
            true => Ok(()),
            false => Err(self.error(DescriptionErrorKind::Range)),
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "ids and slots are those that the compiler gave out; the description limits the depth"
    )]
    fn structure(&mut self, class: &Struct, path: &mut Reference, name: &str, depth: usize) -> Result<FieldId> {
        let mut align = self.alignment(class.min_align.max(1))?;
        let mut names = HashSet::new();
        let mut members = Vec::with_capacity(class.members.len());
        for member in &class.members {
            if !names.insert(member.name.as_str()) {
                return Err(self.error(DescriptionErrorKind::DuplicateName));
            }
            path.path.push(member.name.clone());
            let id = self.class(&member.class, path, &member.name, depth + 1)?;
            path.path.pop();
            align = align.max(self.fields[id as usize].outer_align);
            members.push(id);
        }
        Ok(self.push(name, align, None, Shape::Struct(members.into_boxed_slice())))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "ids and slots are those that the compiler gave out; the description limits the depth"
    )]
    fn array(&mut self, class: &Array, path: &mut Reference, name: &str, depth: usize) -> Result<FieldId> {
        let mut prefix = None;
        let count = match &class.length {
            Length::Fixed(length) => Count::Fixed(*length),
            Length::Field(reference) => {
                let target = self.target(reference)?;
                if target.signed {
                    return Err(self.error(DescriptionErrorKind::SignedLength));
                }
                Count::Slot(target.slot)
            }
            Length::Prefixed { length: integer, .. } => {
                if integer.signed {
                    return Err(self.error(DescriptionErrorKind::SignedLength));
                }
                let length = self.integer(integer, path, "", Shape::Integer(*integer))?;
                prefix = Some(length);
                Count::Prefix {
                    integer: *integer,
                    field: length,
                }
            }
        };
        let outside = self.defined.len();
        let element = self.class(&class.element, path, "", depth + 1)?;
        // From outside an array, a reference cannot select an element.
        self.defined.truncate(outside);
        let field = &self.fields[element as usize];
        let stride = match (&field.shape, field.slot) {
            (Shape::Integer(integer), None) if integer.storage == Storage::Bits => {
                Some(u64::from(integer.size).next_multiple_of(field.align))
            }
            (Shape::Float(float), None) if !float.reversed => Some(u64::from(float.size).next_multiple_of(field.align)),
            _ => None,
        };
        let text = matches!(&field.shape, Shape::Integer(integer) if stride.is_some() && integer.is_character());
        let (inner, outer) = (field.align, field.outer_align);
        let least = self.alignment(class.min_align.max(1))?;
        let (align, outer_align) = match prefix {
            None => (least.max(inner), least.max(outer)),
            // The elements are aligned on their own, after the length.
            Some(length) => {
                let length = &self.fields[length as usize];
                (length.align, length.outer_align.max(outer))
            }
        };
        let shape = Shape::Array(ArrayPlan {
            count,
            element,
            stride,
            text,
            trace_uuid: class.trace_uuid,
            blob: class.blob && stride == Some(8),
        });
        Ok(self.push_with(name, (align, outer_align), None, shape))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "ids and slots are those that the compiler gave out; the description limits the depth"
    )]
    fn variant(&mut self, class: &Variant, path: &mut Reference, name: &str, depth: usize) -> Result<FieldId> {
        if class.options.is_empty() {
            return Err(self.error(DescriptionErrorKind::NoOptions));
        }
        let &Defined { slot, signed, .. } = self.target(&class.tag)?;
        let mut options = Vec::with_capacity(class.options.len());
        let mut in_all: Option<Vec<Defined>> = None;
        for option in &class.options {
            self.check_ranges(&option.ranges)?;
            let outside = self.defined.len();
            self.options.push(path.path.len());
            path.path.push(option.name.clone());
            let field = self.class(&option.class, path, "", depth + 1)?;
            path.path.pop();
            self.options.pop();
            // Outside, the selected option is unknown: a field that is referred to there must exist
            // in all options.
            let mut inside = self.defined.split_off(outside);
            inside.retain(|defined| defined.reference.any_option);
            match &mut in_all {
                None => in_all = Some(inside),
                Some(in_all) => in_all.retain(|one| inside.iter().any(|other| one.is_like(other))),
            }
            options.push(OptionPlan {
                ranges: option.ranges.clone().into_boxed_slice(),
                field,
            });
        }
        self.defined.extend(in_all.into_iter().flatten());
        // A variant is aligned like the selected option.
        Ok(self.push(
            name,
            1,
            None,
            Shape::Variant {
                slot,
                signed,
                options: options.into_boxed_slice(),
            },
        ))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "ids and slots are those that the compiler gave out; the description limits the depth"
    )]
    fn optional(&mut self, class: &Optional, path: &mut Reference, name: &str, depth: usize) -> Result<FieldId> {
        let &Defined { slot, signed, .. } = self.target(&class.tag)?;
        self.check_ranges(&class.ranges)?;
        let outside = self.defined.len();
        let field = self.class(&class.class, path, "", depth + 1)?;
        // Outside, the presence of the field is unknown.
        self.defined.truncate(outside);
        let ranges = class.ranges.clone().into_boxed_slice();
        let shape = Shape::Optional {
            slot,
            signed,
            ranges,
            field,
        };
        // An absent field aligns nothing.
        Ok(self.push(name, 1, None, shape))
    }

    fn bit_map(&mut self, class: &BitMap, path: &Reference, name: &str) -> Result<FieldId> {
        for flag in &class.flags {
            self.check_ranges(&flag.ranges)?;
        }
        let flags = class.flags.clone().into_boxed_slice();
        self.integer(&class.integer, path, name, Shape::BitMap(class.integer, flags))
    }

    fn target(&self, reference: &Reference) -> Result<&Defined> {
        self.defined
            .iter()
            .rev()
            .find(|defined| defined.reference == *reference)
            .ok_or_else(|| self.error(DescriptionErrorKind::UnknownReference))
    }

    fn push(&mut self, name: &str, align: u64, slot: Option<u32>, shape: Shape) -> FieldId {
        self.push_with(name, (align, align), slot, shape)
    }

    fn push_with(&mut self, name: &str, (align, outer_align): (u64, u64), slot: Option<u32>, shape: Shape) -> FieldId {
        let id = self.fields.len() as FieldId;
        self.fields.push(Field {
            name: name.into(),
            align,
            outer_align,
            slot,
            whole: Whole::of(&shape, align),
            shape,
        });
        self.place.field = self.place.field.saturating_add(1);
        id
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "the description limits the depth")]
fn collect_struct(class: &Struct, depth: usize, wanted: &mut HashSet<Reference>) {
    for member in &class.members {
        collect(&member.class, depth + 1, wanted);
    }
}

/// Deeper classes than allowed are rejected later, so they are skipped.
#[expect(clippy::arithmetic_side_effects, reason = "the description limits the depth")]
fn collect(class: &FieldClass, depth: usize, wanted: &mut HashSet<Reference>) {
    if depth > MAX_NESTING {
        return;
    }
    match class {
        FieldClass::Struct(class) => collect_struct(class, depth, wanted),
        FieldClass::Array(class) => {
            if let Length::Field(reference) = &class.length {
                wanted.insert(reference.clone());
            }
            collect(&class.element, depth + 1, wanted);
        }
        FieldClass::Variant(class) => {
            wanted.insert(class.tag.clone());
            for option in &class.options {
                collect(&option.class, depth + 1, wanted);
            }
        }
        FieldClass::Optional(class) => {
            wanted.insert(class.tag.clone());
            collect(&class.class, depth + 1, wanted);
        }
        FieldClass::Integer(_)
        | FieldClass::Enumeration(_)
        | FieldClass::Float(_)
        | FieldClass::String(_)
        | FieldClass::BitMap(_)
        | FieldClass::Boolean(_) => {}
    }
}
