//! A compiled description, for decoding and encoding.

use super::field::Field;
use super::flat::FlatEvent;
use super::shape::FieldId;
use super::usual::UsualHeader;
use crate::description::{Clock, Description};
#[cfg(feature = "render")]
use crate::slot::SharedSlot;
use std::collections::HashMap;

/// A checked and compiled [`Description`], shared by all readers and writers of a trace.
#[derive(Debug)]
pub struct Plan {
    pub(crate) description: Description,
    pub(crate) fields: Vec<Field>,
    pub(crate) packet_header: Option<FieldId>,
    /// In the description's order.
    pub(crate) streams: Vec<StreamPlan>,
    /// Registers for the values of integers that later fields refer to.
    pub(crate) slots: usize,
    /// A slot for data derived from the plan.
    #[cfg(feature = "render")]
    pub(crate) pieces: SharedSlot,
}

#[derive(Debug)]
pub(crate) struct StreamPlan {
    pub(crate) clock: Option<ClockPlan>,
    pub(crate) packet_context: Option<FieldId>,
    pub(crate) event_header: Option<FieldId>,
    /// The form of the event header that nearly all events have.
    pub(super) usual_header: Option<UsualHeader>,
    pub(crate) event_context: Option<FieldId>,
    /// In the description's order.
    pub(crate) events: Vec<EventPlan>,
    pub(crate) events_by_id: EventIds,
}

/// Event classes by id. Ids are mostly small and dense.
#[derive(Debug, Default)]
pub(crate) struct EventIds {
    /// By id; [`u32::MAX`] for none.
    dense: Vec<u32>,
    others: HashMap<u64, usize>,
}

impl EventIds {
    /// Ids below this are looked up in a table.
    const DENSE: u64 = 4096;

    /// Adds a class; returns whether there already was one with this id.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`place` is below the limit of the dense table"
    )]
    pub(crate) fn insert(&mut self, id: u64, index: usize) -> bool {
        if id >= EventIds::DENSE {
            return self.others.insert(id, index).is_some();
        }
        let place = id as usize;
        if self.dense.len() <= place {
            self.dense.resize(place + 1, u32::MAX);
        }
        std::mem::replace(&mut self.dense[place], index as u32) != u32::MAX
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<usize> {
        match self.dense.get(id as usize) {
            Some(&index) if id < EventIds::DENSE => (index != u32::MAX).then_some(index as usize),
            _ => self.others.get(&id).copied(),
        }
    }
}

/// A clock, and how its cycles become nanoseconds.
#[derive(Debug)]
pub(crate) struct ClockPlan {
    pub(crate) clock: Clock,
    /// Nanoseconds from the origin to cycle 0 of a clock of nanoseconds, if 64 bits hold them.
    zero: Option<i64>,
}

impl ClockPlan {
    pub(crate) fn new(clock: Clock) -> ClockPlan {
        let zero = match clock.frequency {
            1_000_000_000 => clock.nanoseconds_at(0),
            _ => None,
        };
        ClockPlan { clock, zero }
    }

    /// [`Clock::nanoseconds_at`], without wide integers if possible.
    #[inline]
    pub(crate) fn nanoseconds_at(&self, cycles: u64) -> Option<i64> {
        match self.zero {
            Some(zero) => zero.checked_add_unsigned(cycles),
            None => self.clock.nanoseconds_at(cycles),
        }
    }
}

#[derive(Debug)]
pub(crate) struct EventPlan {
    pub(crate) context: Option<FieldId>,
    pub(crate) payload: Option<FieldId>,
    /// The fast way to decode it, if there is one.
    pub(super) flat: Option<FlatEvent>,
}

impl Plan {
    /// The description that it was compiled from.
    pub fn description(&self) -> &Description {
        &self.description
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ids and slots are those that the compiler gave out"
    )]
    pub(crate) fn field(&self, id: FieldId) -> &Field {
        &self.fields[id as usize]
    }

    /// Index of the stream class with this id.
    pub(crate) fn stream_index(&self, id: u64) -> Option<usize> {
        self.description.streams.iter().position(|class| class.id == id)
    }
}
