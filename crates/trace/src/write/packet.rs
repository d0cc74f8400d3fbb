//! Builds the packets of one stream in memory.

use super::header::{FixedLayout, HeaderForm, check_bytes};
use super::walk::{Pending, Walk};
use crate::constants::{PACKET_ALIGN_BYTES, PACKET_MAGIC};
use crate::content::ContentEncoder;
use crate::description::{Integer, Role, Struct};
use crate::error::EncodeError;
use crate::plan::Plan;
use backtrail_wire::Endian;
use std::sync::Arc;

/// Options for writing a stream.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Id of the stream's class.
    pub class_id: u64,
    /// Number of the stream among those of its class.
    pub instance_id: u64,
    /// Values of the packet context's fields without a role, by name, such as `cpu_id`. The others
    /// are 0.
    pub context: Vec<(String, u64)>,
    /// The most bytes of a packet, including its padding. An event that would make the packet
    /// longer is rejected with [`EncodeError::Full`], so that buffers never grow beyond it. At
    /// least one page.
    pub max_packet_bytes: usize,
    /// Packets are padded to a multiple of this many bytes: a page, as by tracers whose buffers are
    /// mapped, or less, but at least 1.
    pub align_packet_bytes: usize,
    /// The transformation of the packets' content; `None` for the one of the
    /// [`crate::TraceWriter`], if any. Only headers with the numbers of the RFC can declare a
    /// transformation.
    pub content: Option<Arc<dyn ContentEncoder>>,
}

impl StreamOptions {
    /// The stream of a class on one CPU, with packets of at most one mebibyte.
    pub fn for_cpu(class_id: u64, cpu: u32) -> StreamOptions {
        StreamOptions {
            class_id,
            instance_id: u64::from(cpu),
            context: vec![("cpu_id".to_owned(), u64::from(cpu))],
            max_packet_bytes: 1 << 20,
            align_packet_bytes: PACKET_ALIGN_BYTES,
            content: None,
        }
    }
}

/// Makes the packets of a stream, one after the other: call [`StreamWriter::event`] for each event,
/// then [`StreamWriter::finish`] for the packet's bytes.
///
/// Timestamps are cycles of the stream's clock. They never go back: one before the last counts as
/// the last.
#[derive(Debug)]
pub struct StreamWriter {
    pub(super) plan: Arc<Plan>,
    pub(super) stream: usize,
    options: StreamOptions,
    pub(super) layout: FixedLayout,
    forms: Vec<HeaderForm>,
    pub(super) walk: Walk,
    /// Events that precede all others when the packet is finished.
    front: Vec<u8>,
    pub(super) body: Vec<u8>,
    packet: Vec<u8>,
    /// Whether a packet was started and not finished.
    pub(super) open: bool,
    pub(super) begin: u64,
    /// The last timestamp of the stream.
    pub(super) last: u64,
    pub(super) sequence_number: u64,
    pub(super) discarded: u64,
    /// Events discarded before the packet started, which the RFC's packets count.
    pub(super) discarded_before: u64,
    /// The number at the start of an event's context that contains the payload's size (RFC 7).
    pub(super) payload_size: Option<Integer>,
    /// The start of the current event's payload.
    pub(super) payload_start: usize,
    /// Bits of the last byte that belong to no event.
    pub(super) unused_bits: u64,
    events: u64,
}

/// Size of the only field of an event context that contains the payload's size.
pub(super) const PAYLOAD_SIZE_BYTES: usize = 2;

impl StreamWriter {
    /// Starts before the first packet.
    ///
    /// # Errors
    ///
    /// The stream class cannot be written: it does not exist, its headers have other fields than
    /// numbers, or its events have fields that are not whole bytes.
    pub fn new(plan: Arc<Plan>, options: StreamOptions) -> Result<StreamWriter, EncodeError> {
        StreamWriter::with_checks(plan, options, true)
    }

    /// With `whole_bytes`, checks that events consist of whole bytes.
    pub(super) fn with_checks(
        plan: Arc<Plan>,
        options: StreamOptions,
        whole_bytes: bool,
    ) -> Result<StreamWriter, EncodeError> {
        let stream = plan
            .stream_index(options.class_id)
            .ok_or(EncodeError::UnknownStreamClass(options.class_id))?;
        let class = &plan.streams[stream];
        let mut layout = FixedLayout::default();
        for root in [plan.packet_header, class.packet_context].into_iter().flatten() {
            layout.add(&plan, root)?;
        }
        let has = |roles: [Role; 2]| roles.into_iter().all(|role| layout.slot(role).is_some());
        if !has([Role::PacketSize, Role::ContentSize]) && !has([Role::PacketBytes, Role::ContentBytes]) {
            return Err(EncodeError::Unwritable);
        }
        if options.content.is_some() && !has([Role::ChecksumScheme, Role::Checksum]) {
            return Err(EncodeError::Packing);
        }
        let forms = HeaderForm::all(&plan, class.event_header)?;
        let events = class.events.iter().zip(&plan.description().streams[stream].events);
        for (event, described) in events.filter(|_| whole_bytes) {
            let mut least = forms.iter().map(|form| form.bytes() as u64).min().unwrap_or(0);
            for root in [class.event_context, event.context, event.payload]
                .into_iter()
                .flatten()
            {
                if !check_bytes(&plan, root, &mut least) {
                    return Err(EncodeError::NotByteAligned { event: described.id });
                }
            }
            if least == 0 {
                return Err(EncodeError::EmptyEvent { event: described.id });
            }
        }
        let context = &plan.description().streams[stream].event_context;
        let payload_size = match plan.description().session {
            Some(_) => context.as_ref().and_then(Struct::payload_size),
            None => None,
        };
        let walk = Walk {
            pending: Vec::new(),
            registers: vec![0; plan.slots],
        };
        Ok(StreamWriter {
            plan,
            stream,
            options,
            layout,
            forms,
            walk,
            front: Vec::new(),
            body: Vec::new(),
            packet: Vec::new(),
            open: false,
            begin: 0,
            last: 0,
            sequence_number: 0,
            discarded: 0,
            discarded_before: 0,
            payload_size,
            payload_start: 0,
            unused_bits: 0,
            events: 0,
        })
    }

    /// Starts a packet; otherwise the first event does so, at its own time.
    pub fn begin(&mut self, timestamp: u64) {
        if !self.open {
            self.open = true;
            self.last = self.last.max(timestamp);
            self.begin = self.last;
            self.discarded_before = self.discarded;
        }
    }

    pub(super) fn event_header(&mut self, id: u64, timestamp: u64, last: u64, front: bool) -> Result<(), EncodeError> {
        let class = &self.plan.streams[self.stream];
        let index = class.events_by_id.get(id).ok_or(EncodeError::UnknownEventClass(id))?;
        let event = &class.events[index];
        self.walk.pending.clear();
        // It is filled in when the event is finished.
        let context = class.event_context.filter(|_| self.payload_size.is_none());
        // The last one is taken first.
        for root in [event.payload, event.context, context].into_iter().flatten() {
            self.walk.pending.push(Pending::Field(root));
        }
        let form = self.forms.iter().find(|form| form.fits(id, timestamp, last));
        let form = form.ok_or(EncodeError::OutOfRange(id))?;
        let out = if front { &mut self.front } else { &mut self.body };
        form.write(out, id, timestamp)?;
        if self.payload_size.is_some() {
            out.extend_from_slice(&[0; PAYLOAD_SIZE_BYTES]);
        }
        self.payload_start = out.len();
        Ok(())
    }

    /// Writes the payload's size of the last event (RFC 7).
    pub(super) fn put_payload_size(&mut self, front: bool) -> Result<(), EncodeError> {
        let Some(field) = self.payload_size else { return Ok(()) };
        let start = self.payload_start;
        let out = self.buffer(front);
        let size = (out.len() - start) as u64;
        let size = u16::try_from(size).map_err(|_| EncodeError::OutOfRange(size))?;
        let place = start - PAYLOAD_SIZE_BYTES..start;
        out[place].copy_from_slice(&match field.byte_order {
            Endian::Little => size.to_le_bytes(),
            Endian::Big => size.to_be_bytes(),
        });
        Ok(())
    }

    pub(super) fn buffer(&mut self, front: bool) -> &mut Vec<u8> {
        if front { &mut self.front } else { &mut self.body }
    }

    pub(super) fn max_packet_bytes(&self) -> usize {
        let align = self.align_packet_bytes();
        self.options.max_packet_bytes.max(PACKET_ALIGN_BYTES) / align * align
    }

    fn align_packet_bytes(&self) -> usize {
        self.options.align_packet_bytes.clamp(1, PACKET_ALIGN_BYTES)
    }

    pub(super) fn end_event(
        &mut self,
        front: bool,
        start: usize,
        timestamp: u64,
        result: Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let most = self.max_packet_bytes();
        let result = result.and_then(|()| self.put_payload_size(front)).and_then(|()| {
            let event = self.buffer(front).len() - start;
            match (self.content_bytes() > most, self.layout.bytes() + event > most) {
                (false, _) => Ok(()),
                (true, false) => Err(EncodeError::Full),
                (true, true) => Err(EncodeError::TooLarge),
            }
        });
        match result {
            Ok(()) => {
                self.events += 1;
                if !front {
                    self.last = timestamp;
                }
            }
            Err(_) => self.buffer(front).truncate(start),
        }
        result
    }

    /// Counts events that could not be written; the packet contains the count when it is finished.
    pub fn discard(&mut self, events: u64) {
        self.discarded = self.discarded.saturating_add(events);
    }

    /// Reverts the end of a packet that could not be stored, so that its events are lost.
    pub(super) fn lost_packet(&mut self, events: u64) {
        self.sequence_number -= 1;
        self.discard(events);
    }

    /// Events in the packet so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bytes of the packet so far, without padding.
    pub fn content_bytes(&self) -> usize {
        self.layout.bytes() + self.front.len() + self.body.len()
    }

    /// The start time of the packet; `None` without a packet.
    pub fn begun_at(&self) -> Option<u64> {
        self.open.then_some(self.begin)
    }

    /// Ends the packet not before `timestamp` and returns all its bytes, padded. A packet without
    /// events states that nothing happened until then.
    ///
    /// # Errors
    ///
    /// A number of the header does not fit, or the content cannot be stored.
    pub fn finish(&mut self, timestamp: u64) -> Result<&[u8], EncodeError> {
        self.begin(timestamp);
        self.last = self.last.max(timestamp);
        self.finish_packet()
    }

    /// Ends the packet in its current state.
    pub(super) fn finish_packet(&mut self) -> Result<&[u8], EncodeError> {
        let mut content = std::mem::take(&mut self.body);
        if !self.front.is_empty() {
            content.splice(0..0, self.front.drain(..));
        }
        let mut packet = std::mem::take(&mut self.packet);
        let result = self.put_packet(&content, &mut packet);
        self.packet = packet;
        content.clear();
        self.body = content;
        self.open = false;
        self.events = 0;
        self.unused_bits = 0;
        self.sequence_number += 1;
        result.map(|()| self.packet.as_slice())
    }

    /// Header, content and padding.
    fn put_packet(&self, content: &[u8], packet: &mut Vec<u8>) -> Result<(), EncodeError> {
        let align = self.align_packet_bytes();
        let checksum = self.layout.slot(Role::Checksum);
        if let (Some(encoder), Some(checksum)) = (&self.options.content, checksum) {
            let mut put_header = |packet: &mut Vec<u8>, end, size| self.put_header(packet, end, size);
            return encoder.store(content, align, checksum.order, packet, &mut put_header);
        }
        let end = self.layout.bytes() + content.len();
        let size = end.next_multiple_of(align);
        packet.clear();
        packet.reserve(size);
        self.put_header(packet, end as u64, size as u64)?;
        packet.extend_from_slice(content);
        packet.resize(size, 0);
        Ok(())
    }

    /// The header of a packet whose content ends at byte `end`, of `size` bytes.
    pub(super) fn put_header(&self, packet: &mut Vec<u8>, end: u64, size: u64) -> Result<(), EncodeError> {
        packet.resize(self.layout.bytes(), 0);
        for slot in &self.layout.slots {
            let value = match slot.role {
                Some(Role::Magic) => PACKET_MAGIC,
                Some(Role::StreamClassId) => self.options.class_id,
                Some(Role::StreamInstanceId) => self.options.instance_id,
                Some(Role::Timestamp) => self.begin,
                Some(Role::TimestampEnd) => self.last,
                Some(Role::ContentSize) => end * 8 - self.unused_bits,
                Some(Role::PacketSize) => size * 8,
                Some(Role::ContentBytes) => end,
                Some(Role::PacketBytes) => size,
                Some(Role::SequenceNumber) => self.sequence_number,
                Some(Role::SequenceNumberBits) => self
                    .layout
                    .slot(Role::SequenceNumber)
                    .map_or(0, |slot| slot.size.into()),
                Some(Role::EventsDiscarded) if self.layout.slot(Role::SessionId).is_some() => self.discarded_before,
                Some(Role::EventsDiscarded) => self.discarded,
                Some(Role::SessionId) => self.plan.description().session.unwrap_or(0).into(),
                Some(role) => {
                    let encoder = self.options.content.as_ref();
                    encoder.and_then(|encoder| encoder.number(role)).unwrap_or(0)
                }
                None => self.named(&slot.name),
            };
            slot.put(packet, value)?;
        }
        if let (Some(start), Some(uuid)) = (self.layout.uuid, &self.plan.description().uuid)
            && let Some(place) = packet.get_mut(start..start + uuid.len())
        {
            place.copy_from_slice(uuid);
        }
        Ok(())
    }

    fn named(&self, name: &str) -> u64 {
        let found = self.options.context.iter().find(|(key, _)| key == name);
        found.map_or(0, |&(_, value)| value)
    }
}
