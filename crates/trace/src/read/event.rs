//! An event, borrowed from the reader's buffers.

use super::state::{Packet, State};
use super::value::{Fields, IntegerValue, Value, View};
use crate::description::{Clock, EnvironmentValue, EventClass, StreamClass};
use crate::plan::{FieldId, Node, Plan, Raw, Shape};
#[cfg(feature = "render")]
use crate::slot::Slot;
use std::path::Path;

/// An event. Valid until the reader advances.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    plan: &'a Plan,
    state: &'a State,
    path: &'a Path,
}

/// Where [`Event::field_with`] has found a field.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldHint(Option<Place>);

#[derive(Clone, Copy, Debug)]
struct Place {
    stream: usize,
    event: usize,
    in_packet: bool,
    node: usize,
    field: FieldId,
}

impl<'a> Event<'a> {
    pub(super) fn new(plan: &'a Plan, state: &'a State, path: &'a Path) -> Event<'a> {
        Event { plan, state, path }
    }

    /// File of its stream.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Its packet.
    pub fn packet(&self) -> &'a Packet {
        &self.state.packet
    }

    /// Class of its stream.
    #[expect(
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan"
    )]
    pub fn stream_class(&self) -> &'a StreamClass {
        &self.plan.description().streams[self.state.packet.stream_class]
    }

    /// Its class.
    #[expect(
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan"
    )]
    pub fn class(&self) -> &'a EventClass {
        &self.stream_class().events[self.state.event]
    }

    /// Name of its class.
    pub fn name(&self) -> &'a str {
        &self.class().name
    }

    /// Name of its section (RFC 2); other dialects have none.
    pub fn section(&self) -> Option<&'a str> {
        self.plan.description().session?;
        self.stream_class().name.as_deref()
    }

    /// The tracer's environment.
    pub fn environment(&self) -> &'a [(String, EnvironmentValue)] {
        &self.plan.description().environment
    }

    /// The stream's clock, if it has one.
    #[expect(
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan"
    )]
    pub fn clock(&self) -> Option<&'a Clock> {
        let class = &self.plan.streams[self.state.packet.stream_class];
        class.clock.as_ref().map(|plan| &plan.clock)
    }

    /// Cycles of the stream's clock, including the high bits that short timestamps leave out.
    pub fn cycles(&self) -> Option<u64> {
        self.state.timestamp
    }

    /// Nanoseconds from the clock's origin; `None` without a clock.
    pub fn time(&self) -> Option<i64> {
        self.state.time
    }

    /// The packet context, sizes and counters included.
    pub fn packet_context(&self) -> Option<Fields<'a>> {
        self.state
            .has_context
            .then(|| self.fields(&self.state.packet_tape, 0))
            .flatten()
    }

    /// The stream's context of all its events.
    pub fn stream_context(&self) -> Option<Fields<'a>> {
        self.fields(&self.state.tape, self.state.event_context?)
    }

    /// The context of events of this class.
    pub fn context(&self) -> Option<Fields<'a>> {
        self.fields(&self.state.tape, self.state.context?)
    }

    /// Its own fields.
    pub fn payload(&self) -> Option<Fields<'a>> {
        self.fields(&self.state.tape, self.state.payload?)
    }

    /// The field with this name in the payload, the contexts or the packet context, in this order.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        [
            self.payload(),
            self.context(),
            self.stream_context(),
            self.packet_context(),
        ]
        .into_iter()
        .flatten()
        .find_map(|fields| fields.get(name))
    }

    /// As [`Event::field`], and notes where the field is: for the next event of its class, that
    /// costs a comparison instead of a search by name. A hint is for one name in one trace.
    #[inline]
    pub fn field_with(&self, name: &str, hint: &mut FieldHint) -> Option<Value<'a>> {
        if let Some(place) = &hint.0
            && (place.stream, place.event) == (self.state.packet.stream_class, self.state.event)
        {
            let tape = match place.in_packet {
                true if !self.state.has_context => &[],
                true => &self.state.packet_tape[..],
                false => &self.state.tape[..],
            };
            // What precedes it may be of another length here.
            if let Some(node) = tape.get(place.node).filter(|node| node.field == place.field) {
                return match (&self.plan.field(place.field).shape, node.raw) {
                    (Shape::Integer(class), Raw::Bits(bits)) => Some(Value::Integer(IntegerValue::plain(bits, class))),
                    _ => View::new(self.plan, &self.state.data, tape).value(place.node),
                };
            }
        }
        self.search(name, hint)
    }

    fn search(&self, name: &str, hint: &mut FieldHint) -> Option<Value<'a>> {
        let own = [self.payload(), self.context(), self.stream_context()];
        let own = own.into_iter().flatten().map(|fields| (false, fields));
        let packet = self.packet_context().map(|fields| (true, fields));
        let (in_packet, node, field, value) = own.chain(packet).find_map(|(in_packet, fields)| {
            fields
                .find(name)
                .map(|(node, field, value)| (in_packet, node, field, value))
        })?;
        hint.0 = Some(Place {
            stream: self.state.packet.stream_class,
            event: self.state.event,
            in_packet,
            node,
            field,
        });
        value
    }

    /// Indices of its stream's class and of its own in the trace's description.
    #[inline]
    pub fn class_indices(&self) -> (usize, usize) {
        (self.state.packet.stream_class, self.state.event)
    }

    fn fields(&self, tape: &'a [Node], node: usize) -> Option<Fields<'a>> {
        let view = View::new(self.plan, &self.state.data, tape);
        let is_struct = matches!(self.plan.field(tape.get(node)?.field).shape, Shape::Struct(_));
        is_struct.then(|| Fields::new(view, node))
    }
}

/// Access for the renderer.
#[cfg(feature = "render")]
impl<'a> Event<'a> {
    /// The plan that it is decoded by.
    pub(crate) fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// A slot for data derived from its packet, empty with each new one.
    #[inline]
    pub(crate) fn packet_slot(&self) -> &'a Slot {
        &self.state.slot
    }
}
