//! One stream: packets of events in memory.

use super::event::{EventWriter, Pending, Walk};
use super::header::{FixedLayout, HeaderForm, check_bytes};
use crate::constants::{PACKET_ALIGN_BYTES, PACKET_MAGIC, RFC_CHECKSUM, RFC_PACKET_HEADER_BYTES};
use crate::content::{Compression, Packing};
use crate::description::{Integer, Role};
use crate::error::EncodeError;
use crate::plan::Plan;
use crate::rfc;
use backtrail_wire::Endian;
use std::sync::Arc;

/// What a stream has to say of itself.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Id of the stream's class.
    pub class_id: u64,
    /// Number of the stream among those of its class.
    pub instance_id: u64,
    /// Values of the packet context's fields without a role, by name: `cpu_id`. What is not named is 0.
    pub context: Vec<(String, u64)>,
    /// The most bytes of a packet, with its padding. An event that would make the packet longer is refused with
    /// [`EncodeError::Full`], so that buffers never grow beyond it. At least one page.
    pub max_packet_bytes: usize,
    /// Packets are padded to a multiple of so many bytes: a page, as tracers do whose buffers are mapped, or less, to at least 1.
    pub align_packet_bytes: usize,
    /// What is done to the packets' content. Only the RFC's packets can tell that something was; others have no checksum.
    pub packing: Packing,
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
            packing: Packing::default(),
        }
    }
}

/// Makes the packets of a stream, one after the other: [`StreamWriter::event`] as often as there are events,
/// then [`StreamWriter::finish`] for the packet's bytes.
///
/// Timestamps are cycles of the stream's clock. They never go back: an earlier one than the last counts as the last.
#[derive(Debug)]
pub struct StreamWriter {
    pub(super) plan: Arc<Plan>,
    stream: usize,
    options: StreamOptions,
    layout: FixedLayout,
    forms: Vec<HeaderForm>,
    pub(super) walk: Walk,
    /// Events that are put before all others when the packet is finished.
    front: Vec<u8>,
    body: Vec<u8>,
    packet: Vec<u8>,
    /// Whether a packet was begun and not finished.
    open: bool,
    begin: u64,
    /// The last timestamp of the stream.
    last: u64,
    sequence_number: u64,
    discarded: u64,
    /// Those before the packet began: what the RFC's packets tell.
    discarded_before: u64,
    /// Where in the packet header the sizes in bytes, schemes and the checksum are, in the RFC's packets.
    packs: bool,
    /// Bits at the beginning of an event's context that say how long its payload is (RFC 7).
    payload_size: Option<Integer>,
    /// Where the payload of the current event begins.
    payload_start: usize,
    events: u64,
}

/// Of the only field of an event's context that tells the payload's size.
const PAYLOAD_SIZE_BYTES: usize = 2;

impl StreamWriter {
    /// Fails where the stream class cannot be written: no such class, headers with other fields than numbers, events whose
    /// fields are not whole bytes.
    pub fn new(plan: Arc<Plan>, options: StreamOptions) -> Result<StreamWriter, EncodeError> {
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
        let packs = layout.slot(Role::ChecksumScheme).is_some() && layout.bytes() == RFC_PACKET_HEADER_BYTES;
        if !packs && (options.packing.encryption.is_some() || options.packing.compression != Compression::None) {
            return Err(EncodeError::Packing);
        }
        let forms = HeaderForm::all(&plan, class.event_header)?;
        for (event, described) in class.events.iter().zip(&plan.description().streams[stream].events) {
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
            Some(_) => context.as_ref().and_then(rfc::payload_size),
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
            packs,
            payload_size,
            payload_start: 0,
            events: 0,
        })
    }

    /// Begins a packet; without it, the first event does, at its own time.
    pub fn begin(&mut self, timestamp: u64) {
        if !self.open {
            self.open = true;
            self.last = self.last.max(timestamp);
            self.begin = self.last;
            self.discarded_before = self.discarded;
        }
    }

    /// An event of the class with this id, at the packet's end.
    pub fn event(&mut self, id: u64, timestamp: u64) -> EventWriter<'_> {
        self.begin(timestamp);
        let timestamp = timestamp.max(self.last);
        self.start_event(id, timestamp, self.last, false)
    }

    /// An event before all others of the packet, at the packet's begin, whenever it is written. Several stay in their order.
    pub fn front_event(&mut self, id: u64) -> EventWriter<'_> {
        self.begin(self.last);
        self.start_event(id, self.begin, self.begin, true)
    }

    fn start_event(&mut self, id: u64, timestamp: u64, last: u64, front: bool) -> EventWriter<'_> {
        let start = self.buffer(front).len();
        let error = self.event_header(id, timestamp, last, front).err();
        EventWriter {
            stream: self,
            front,
            start,
            timestamp,
            error,
        }
    }

    fn event_header(&mut self, id: u64, timestamp: u64, last: u64, front: bool) -> Result<(), EncodeError> {
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

    /// Says how long the payload of the event is that was just written (RFC 7).
    fn put_payload_size(&mut self, front: bool) -> Result<(), EncodeError> {
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

    /// Counts events that could not be written; the packet says so when it is finished.
    pub fn discard(&mut self, events: u64) {
        self.discarded = self.discarded.saturating_add(events);
    }

    /// Takes back that a packet was finished: it could not be stored, so its events are gone.
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

    /// When the packet began; `None` where there is none.
    pub fn begun_at(&self) -> Option<u64> {
        self.open.then_some(self.begin)
    }

    /// Ends the packet not before `timestamp` and gives all its bytes, padded as asked. Also without events: then
    /// the packet tells that nothing happened until then.
    pub fn finish(&mut self, timestamp: u64) -> Result<&[u8], EncodeError> {
        self.begin(timestamp);
        self.last = self.last.max(timestamp);
        let mut content = std::mem::take(&mut self.body);
        if !self.front.is_empty() {
            content.splice(0..0, self.front.drain(..));
        }
        let result = self.put_packet(&content);
        content.clear();
        self.body = content;
        self.open = false;
        self.events = 0;
        self.sequence_number += 1;
        result.map(|()| self.packet.as_slice())
    }

    /// Header, content and padding, into `packet`.
    fn put_packet(&mut self, content: &[u8]) -> Result<(), EncodeError> {
        let Packed { content, extra } = match self.packs {
            true => Packed {
                content: self.options.packing.compress(content)?,
                extra: self.options.packing.encryption_bytes(),
            },
            false => Packed {
                content: content.into(),
                extra: 0,
            },
        };
        let end = self.layout.bytes() + content.len() + extra;
        let size = end.next_multiple_of(self.align_packet_bytes());
        self.packet.clear();
        self.packet.reserve(size);
        self.packet.resize(self.layout.bytes(), 0);
        self.put_header(end as u64, size as u64)?;
        if self.packs {
            u32::try_from(size).map_err(|_| EncodeError::TooLarge)?;
            let stored = self.options.packing.encrypt(&self.packet, content)?;
            let order = self
                .layout
                .slot(Role::Checksum)
                .map_or(Endian::NATIVE, |slot| slot.order);
            self.packet[RFC_CHECKSUM].copy_from_slice(&self.options.packing.sum(&stored, order));
            self.packet.extend_from_slice(&stored);
        } else {
            self.packet.extend_from_slice(&content);
        }
        self.packet.resize(size, 0);
        Ok(())
    }

    /// The header of a packet whose content ends at byte `end`, of `size` bytes.
    fn put_header(&mut self, end: u64, size: u64) -> Result<(), EncodeError> {
        for slot in &self.layout.slots {
            let value = match slot.role {
                Some(Role::Magic) => PACKET_MAGIC,
                Some(Role::StreamClassId) => self.options.class_id,
                Some(Role::StreamInstanceId) => self.options.instance_id,
                Some(Role::Timestamp) => self.begin,
                Some(Role::TimestampEnd) => self.last,
                Some(Role::ContentSize) => end * 8,
                Some(Role::PacketSize) => size * 8,
                Some(Role::ContentBytes) => end,
                Some(Role::PacketBytes) => size,
                Some(Role::SequenceNumber) => self.sequence_number,
                Some(Role::SequenceNumberBits) => self
                    .layout
                    .slot(Role::SequenceNumber)
                    .map_or(0, |slot| slot.size.into()),
                Some(Role::EventsDiscarded) if self.packs => self.discarded_before,
                Some(Role::EventsDiscarded) => self.discarded,
                Some(Role::SessionId) => self.plan.description().session.unwrap_or(0).into(),
                Some(role) => self.options.packing.scheme(role).unwrap_or(0),
                None => self.named(&slot.name),
            };
            slot.put(&mut self.packet, value)?;
        }
        if let (Some(start), Some(uuid)) = (self.layout.uuid, &self.plan.description().uuid)
            && let Some(place) = self.packet.get_mut(start..start + uuid.len())
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

/// Content as it is stored, but for its encryption, which adds so many bytes.
struct Packed<'c> {
    content: std::borrow::Cow<'c, [u8]>,
    extra: usize,
}
