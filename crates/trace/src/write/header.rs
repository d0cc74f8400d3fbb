//! Writes headers by the roles of their fields, whatever their layout is.

use crate::description::{Integer, Role, Storage};
use crate::error::EncodeError;
use crate::plan::{Count, Field, FieldId, Plan, Shape};
use backtrail_wire::{Endian, write_bits};

/// A number in a header.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Bits from the header's start.
    pub(super) bit: u64,
    pub(super) size: u32,
    pub(super) order: Endian,
    pub(super) role: Option<Role>,
    pub(super) name: Box<str>,
}

impl Slot {
    /// Writes the low bits of `value`; the header starts at the start of `out`, which is long
    /// enough.
    pub(super) fn put(&self, out: &mut [u8], value: u64) -> Result<(), EncodeError> {
        write_bits(out, self.bit, self.size, self.order, value).map_err(|_| EncodeError::Unwritable)
    }
}

/// Packet header and packet context, in which everything has a fixed position.
#[derive(Clone, Debug, Default)]
pub(super) struct FixedLayout {
    pub(super) bits: u64,
    pub(super) slots: Vec<Slot>,
    /// The position of the trace's UUID in bytes.
    pub(super) uuid: Option<usize>,
}

impl FixedLayout {
    /// Adds a struct of numbers at the end.
    pub(super) fn add(&mut self, plan: &Plan, id: FieldId) -> Result<(), EncodeError> {
        let field = plan.field(id);
        self.bits = self.bits.next_multiple_of(field.align);
        match &field.shape {
            Shape::Integer(integer) | Shape::Enumeration(integer, _) => {
                self.slots.push(slot(self.bits, field, integer));
                self.bits += u64::from(integer.size);
            }
            Shape::Struct(members) => {
                for &member in members {
                    self.add(plan, member)?;
                }
            }
            Shape::Array(array) if array.trace_uuid && self.bits.is_multiple_of(8) => {
                self.uuid = Some((self.bits / 8) as usize);
                self.bits += 16 * 8;
            }
            _ => return Err(EncodeError::Unwritable),
        }
        Ok(())
    }

    /// The layout of a packet's header and context as far as places are fixed: a text, for example,
    /// has none after it. Fails if one of these roles is behind that.
    pub(super) fn of_packet(plan: &Plan, roots: &[FieldId], roles: &[Role]) -> Result<FixedLayout, EncodeError> {
        let mut layout = FixedLayout::default();
        let _ = roots.iter().try_for_each(|&root| layout.add(plan, root));
        let is_lost =
            |&role: &Role| layout.slot(role).is_none() && roots.iter().any(|&root| has_role(plan, root, role));
        match roles.iter().any(is_lost) {
            true => Err(EncodeError::Unwritable),
            false => Ok(layout),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    pub(super) fn slot(&self, role: Role) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.role == Some(role))
    }
}

/// Whether a number in this struct has the role.
fn has_role(plan: &Plan, id: FieldId, role: Role) -> bool {
    match &plan.field(id).shape {
        Shape::Struct(members) => members.iter().any(|&member| has_role(plan, member, role)),
        _ => plan.field(id).role() == Some(role),
    }
}

fn slot(bit: u64, field: &Field, integer: &Integer) -> Slot {
    Slot {
        bit,
        size: integer.size,
        order: integer.byte_order,
        role: integer.role,
        name: field.name.clone(),
    }
}

/// One possible layout of an event header: each option of its variant makes one.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderForm {
    bits: u64,
    numbers: Vec<(Slot, Number)>,
    /// Ids that the form can express.
    ids: Option<(u64, u64)>,
    /// Bits of the timestamp; 64 if it has none.
    timestamp_bits: u32,
    /// The selected options: the register of the tag, and its range.
    chosen: Vec<(u32, (u64, u64))>,
}

/// The meaning of a number in an event header.
#[derive(Clone, Copy, Debug)]
enum Number {
    Id,
    Timestamp,
    /// The tag that selects the form.
    Tag(u64),
}

impl HeaderForm {
    /// The layouts of a header, in the order of the variant's options. They are whole bytes.
    pub(super) fn all(plan: &Plan, header: Option<FieldId>) -> Result<Vec<HeaderForm>, EncodeError> {
        let Some(header) = header else {
            return Ok(vec![HeaderForm::new()]);
        };
        let mut forms = vec![HeaderForm::new()];
        extend(plan, header, &mut forms)?;
        let sound = |form: &HeaderForm| form.bits.is_multiple_of(8) && plan.field(header).align <= 8;
        match forms.iter().all(sound) {
            true => Ok(forms),
            false => Err(EncodeError::Unwritable),
        }
    }

    fn new() -> HeaderForm {
        HeaderForm {
            timestamp_bits: 64,
            ..HeaderForm::default()
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.bits / 8) as usize
    }

    /// Whether it can express the id, and the timestamp to a reader that knows the previous one.
    pub(super) fn fits(&self, id: u64, timestamp: u64, last: u64) -> bool {
        let id_fits = self.ids.is_none_or(|(first, last)| (first..=last).contains(&id));
        let elapsed = timestamp.wrapping_sub(last);
        id_fits && (self.timestamp_bits >= 64 || elapsed >> self.timestamp_bits == 0)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, id: u64, timestamp: u64) -> Result<(), EncodeError> {
        let start = out.len();
        out.resize(start + self.bytes(), 0);
        for (slot, number) in &self.numbers {
            let value = match *number {
                Number::Id => id,
                Number::Timestamp => timestamp,
                Number::Tag(value) => value,
            };
            slot.put(&mut out[start..], value)?;
        }
        Ok(())
    }
}

/// Appends a field of the header to each form.
fn extend(plan: &Plan, id: FieldId, forms: &mut Vec<HeaderForm>) -> Result<(), EncodeError> {
    let field = plan.field(id);
    for form in forms.iter_mut() {
        form.bits = form.bits.next_multiple_of(field.align);
    }
    match &field.shape {
        Shape::Integer(integer) | Shape::Enumeration(integer, _) => {
            for form in forms.iter_mut() {
                form.push(field, integer)?;
            }
        }
        Shape::Struct(members) => {
            for &member in members {
                extend(plan, member, forms)?;
            }
        }
        Shape::Variant { slot, options, .. } => {
            let mut longer = Vec::new();
            for option in options {
                let mut chosen = Vec::new();
                for mut form in forms.iter().cloned() {
                    if form.choose(plan, *slot, &option.ranges)? {
                        chosen.push(form);
                    }
                }
                extend(plan, option.field, &mut chosen)?;
                longer.append(&mut chosen);
            }
            // An option with its own id leaves the tag free; otherwise the tag is the id.
            *forms = longer;
        }
        _ => return Err(EncodeError::Unwritable),
    }
    match forms.len() > MAX_FORMS {
        true => Err(EncodeError::Unwritable),
        false => Ok(()),
    }
}

/// More than any header in use.
const MAX_FORMS: usize = 16;

impl HeaderForm {
    fn push(&mut self, field: &Field, integer: &Integer) -> Result<(), EncodeError> {
        let number = match integer.role {
            Some(Role::EventClassId) => {
                // A second id replaces the first, which then is only the tag.
                let (first, _) = self.ids.unwrap_or((0, 0));
                for (_, earlier) in &mut self.numbers {
                    if matches!(earlier, Number::Id) {
                        *earlier = Number::Tag(first);
                    }
                }
                let greatest = if integer.size >= 64 {
                    u64::MAX
                } else {
                    (1 << integer.size) - 1
                };
                self.ids = Some((0, greatest));
                Number::Id
            }
            Some(Role::Timestamp) => {
                self.timestamp_bits = integer.size;
                Number::Timestamp
            }
            _ => return Err(EncodeError::Unwritable),
        };
        self.numbers.push((slot(self.bits, field, integer), number));
        self.bits += u64::from(integer.size);
        Ok(())
    }

    /// Restricts the id to those that select the option, unless another field contains it. Returns
    /// whether an earlier variant with the same tag permits that.
    fn choose(&mut self, plan: &Plan, tag: u32, ranges: &[crate::description::Range]) -> Result<bool, EncodeError> {
        let tag_is_id = plan
            .fields
            .iter()
            .any(|field| field.slot == Some(tag) && field.role() == Some(Role::EventClassId));
        let [range] = ranges else {
            return Err(EncodeError::Unwritable);
        };
        let bound = |value: i128| u64::try_from(value).map_err(|_| EncodeError::Unwritable);
        if !tag_is_id {
            return Err(EncodeError::Unwritable);
        }
        let range = (bound(range.first)?, bound(range.last)?);
        if let Some((_, earlier)) = self.chosen.iter().find(|(other, _)| *other == tag) {
            return Ok(*earlier == range);
        }
        self.chosen.push((tag, range));
        self.ids = Some(range);
        Ok(true)
    }
}

/// Whether an event class's fields are whole, byte-aligned bytes, and whether an event has at least
/// one.
pub(super) fn check_bytes(plan: &Plan, id: FieldId, least: &mut u64) -> bool {
    let field = plan.field(id);
    if field.align > 8 {
        return false;
    }
    match &field.shape {
        Shape::Integer(integer) | Shape::Enumeration(integer, _) => {
            *least += u64::from(integer.size / 8);
            integer.size.is_multiple_of(8) && integer.align == 8 && integer.storage == Storage::Bits
        }
        Shape::Float(float) => {
            *least += u64::from(float.size / 8);
            float.align == 8 && !float.reversed
        }
        Shape::String(encoding) => {
            *least += 1;
            encoding.unit_bytes() == 1
        }
        Shape::Struct(members) => members.iter().all(|&member| check_bytes(plan, member, least)),
        Shape::Array(array) => {
            let mut element = 0;
            let sound = check_bytes(plan, array.element, &mut element);
            match array.count {
                Count::Fixed(count) => *least = least.saturating_add(count.saturating_mul(element)),
                Count::Slot(_) => {}
                Count::Prefix { field, .. } => return sound && !array.text && check_bytes(plan, field, least),
            }
            sound
        }
        Shape::Variant { options, .. } => {
            let mut smallest = u64::MAX;
            let sound = options.iter().all(|option| {
                let mut size = 0;
                let sound = check_bytes(plan, option.field, &mut size);
                smallest = smallest.min(size);
                sound
            });
            *least = least.saturating_add(smallest);
            sound
        }
        // No writable header has them.
        Shape::Optional { .. } | Shape::BitMap(..) | Shape::Boolean(_) => false,
    }
}
