//! Determines which field of an event is written next.

use crate::error::EncodeError;
use crate::plan::{Count, FieldId, Plan, Shape, select};

/// The remaining fields of an event, innermost last.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) pending: Vec<Pending>,
    pub(super) registers: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    /// This field.
    Field(FieldId),
    /// The members of a struct from this one on.
    Members { of: FieldId, next: usize },
    /// This many elements of an array.
    Elements { of: FieldId, left: u64 },
    /// Elements of a sequence whose length is taken first.
    Sequence { of: FieldId },
}

impl Walk {
    /// The next number, string or text; `None` at the event's end.
    pub(super) fn leaf(&mut self, plan: &Plan) -> Result<Option<FieldId>, EncodeError> {
        while let Some(id) = self.field(plan) {
            match &plan.field(id).shape {
                Shape::Struct(_) => self.pending.push(Pending::Members { of: id, next: 0 }),
                Shape::Array(array) if array.text => return Ok(Some(id)),
                Shape::Array(array) => {
                    let left = match array.count {
                        Count::Fixed(count) => count,
                        Count::Slot(slot) => self.registers[slot as usize],
                        Count::Prefix { field, .. } => {
                            self.pending.push(Pending::Sequence { of: id });
                            return Ok(Some(field));
                        }
                    };
                    self.pending.push(Pending::Elements { of: id, left });
                }
                Shape::Variant { slot, signed, options } => {
                    let tag = self.registers[*slot as usize];
                    let option = select(options, tag, *signed).ok_or(EncodeError::NoOption(tag))?;
                    self.pending.push(Pending::Field(option));
                }
                Shape::Integer(_) | Shape::Enumeration(..) | Shape::Float(_) | Shape::String(_) => return Ok(Some(id)),
                // Rejected earlier by `check_bytes`.
                Shape::Optional { .. } | Shape::BitMap(..) | Shape::Boolean(_) => return Err(EncodeError::WrongField),
            }
        }
        Ok(None)
    }

    fn field(&mut self, plan: &Plan) -> Option<FieldId> {
        loop {
            match self.pending.pop()? {
                Pending::Field(id) => return Some(id),
                Pending::Members { of, next } => {
                    if let Shape::Struct(members) = &plan.field(of).shape
                        && let Some(&member) = members.get(next)
                    {
                        self.pending.push(Pending::Members { of, next: next + 1 });
                        return Some(member);
                    }
                }
                Pending::Elements { of, left } => {
                    if let Shape::Array(array) = &plan.field(of).shape
                        && let Some(left) = left.checked_sub(1)
                    {
                        self.pending.push(Pending::Elements { of, left });
                        return Some(array.element);
                    }
                }
                // Its length was not taken, so it has none.
                Pending::Sequence { .. } => {}
            }
        }
    }

    /// Reports the value of the leaf. If it was a sequence's own length, this many elements follow.
    pub(super) fn counted(&mut self, value: u64) {
        if let Some(Pending::Sequence { of }) = self.pending.last().copied() {
            self.pending.pop();
            self.pending.push(Pending::Elements { of, left: value });
        }
    }
}
