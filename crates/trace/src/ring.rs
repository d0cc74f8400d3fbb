//! Events in a caller-provided ring buffer. A signal handler may write them.
//!
//! A [`Ring`] is a sequence of packets of equal size in memory that its caller provides, ideally a
//! mapped file. From its start and after each event, each packet is as in a trace's file: the sizes
//! and times in its header are right. A new packet overwrites the oldest. So the packets can be
//! taken at any time, and however a writer ends, only the event that it was writing is lost;
//! [`crate::packets_of_ring`] finds the rest.
//!
//! Nothing here allocates, takes a lock, calls the system or panics. It uses nothing else of this
//! crate, so that a test can examine its object code alone. [`RingLayout`], made beforehand from a
//! description, contains everything that must be prepared.
//!
//! A ring belongs to one thread, or to one handler. A handler that may interrupt the ring's own
//! writing needs a ring of its own, as it does for any memory that it changes.

use core::sync::atomic::{Ordering, compiler_fence};

/// Most bytes of a packet's header and context together.
pub(crate) const MAX_HEADER_BYTES: usize = 128;

/// Packets are whole pages, so that they can be found again at page boundaries.
pub(crate) const PACKET_ALIGN: usize = 4096;

/// The layout of a ring's packets, and their constant parts: LTTng's headers in the machine's byte
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The start of each packet, with everything that is the same in all of them.
    pub(crate) template: [u8; MAX_HEADER_BYTES],
    /// Its length in bytes.
    pub(crate) header: usize,
    /// The positions of these 64-bit numbers in the header.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    pub(crate) content_size: usize,
    pub(crate) packet_size: usize,
    pub(crate) sequence_number: usize,
    pub(crate) discarded: usize,
    /// Whether events have LTTng's compact headers instead of the large ones.
    pub(crate) compact: bool,
}

/// The memory is too small for a single packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingTooSmall {
    /// Bytes of the memory.
    pub bytes: usize,
}

impl core::fmt::Display for RingTooSmall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("memory has no room for a packet")
    }
}

impl core::error::Error for RingTooSmall {}

/// Packets of events in memory of the caller; new ones overwrite the oldest.
///
/// Timestamps are cycles of the stream's clock and never go back: one before the last counts as the
/// last.
///
/// ```
/// # use backtrail_trace::description::{Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct};
/// # use backtrail_trace::{Endian, Plan, Ring, RingLayout, StreamOptions};
/// # use std::{io::Write, sync::Arc};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fields = Struct::new()
/// #     .with("bytes", Integer::unsigned(32, Endian::NATIVE))
/// #     .with("path", FieldClass::String(Encoding::Utf8));
/// # let events = vec![EventClass::new(0, "app:read", fields)];
/// # let description = Description::of_events(Clock::nanoseconds("monotonic", 0), events);
/// # let (memory, path, mut file, now) = (&mut vec![0; 4 << 20], b"/etc/hostname", Vec::new(), 1_000);
/// let plan = Arc::new(Plan::new(description)?);
/// let layout = RingLayout::new(&plan, StreamOptions::for_cpu(0, 0))?;
/// let mut ring = Ring::new(layout, memory, 1 << 20, now)?;
/// // From here on nothing allocates, locks or panics.
/// if let Some(mut event) = ring.event(0, now, 4 + path.len() + 1) {
///     event.u32(512);
///     event.text(path);
///     event.commit();
/// }
/// for packet in ring.packets() {
///     file.write_all(packet)?;
/// }
/// # assert_eq!(file.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ring<'m> {
    memory: &'m mut [u8],
    layout: RingLayout,
    packet_bytes: usize,
    /// The start of the current packet.
    packet: usize,
    /// Its end.
    limit: usize,
    /// The position of the next event.
    position: usize,
    /// The last timestamp.
    last: u64,
    /// Number of the current packet.
    sequence_number: u64,
    discarded: u64,
}

impl<'m> Ring<'m> {
    /// Divides the memory into packets of `packet_bytes`, rounded down to a multiple of 4,096, and
    /// starts the first. Bytes after the last whole packet are not used.
    ///
    /// # Errors
    ///
    /// The memory is too small for a packet.
    pub fn new(
        layout: RingLayout,
        memory: &'m mut [u8],
        packet_bytes: usize,
        timestamp: u64,
    ) -> Result<Ring<'m>, RingTooSmall> {
        let packet_bytes = packet_bytes / PACKET_ALIGN * PACKET_ALIGN;
        let bytes = memory.len();
        if packet_bytes > bytes || packet_bytes <= layout.header || layout.header > MAX_HEADER_BYTES {
            return Err(RingTooSmall { bytes });
        }
        let mut ring = Ring {
            memory,
            layout,
            packet_bytes,
            packet: 0,
            limit: packet_bytes,
            position: 0,
            last: timestamp,
            sequence_number: 0,
            discarded: 0,
        };
        // Earlier contents could be taken for packets.
        ring.memory.fill(0);
        ring.begin_packet();
        Ok(ring)
    }

    /// Starts an event of the class with this id, whose payload (and contexts) take at most `room`
    /// bytes. `None` if a packet has no room for that, or if the header cannot hold the id; the
    /// event then counts as discarded.
    ///
    /// The fields follow one another without a gap, as the class describes them; this is not
    /// checked. The event is in the packet once it is committed.
    #[inline]
    pub fn event(&mut self, id: u32, timestamp: u64, room: usize) -> Option<RingEvent<'_, 'm>> {
        let timestamp = timestamp.max(self.last);
        // The size of the longest header.
        let needed = room.saturating_add(LONGEST_EVENT_HEADER);
        if self.limit - self.position < needed && !self.switch(needed, timestamp) {
            return None;
        }
        let elapsed = timestamp - self.last;
        let start = self.position;
        let rest = self.memory.get_mut(start..self.limit)?;
        let at = match self.layout.compact {
            true if id < 31 && elapsed >> 27 == 0 => put(rest, 0, compact(id, timestamp)),
            true => {
                let at = put(rest, 0, [EXTENDED_COMPACT]);
                let at = put(rest, at, id.to_ne_bytes());
                put(rest, at, timestamp.to_ne_bytes())
            }
            false if id < 65_535 && elapsed >> 32 == 0 => {
                let at = put(rest, 0, (id as u16).to_ne_bytes());
                put(rest, at, (timestamp as u32).to_ne_bytes())
            }
            false => {
                let at = put(rest, 0, u16::MAX.to_ne_bytes());
                let at = put(rest, at, id.to_ne_bytes());
                put(rest, at, timestamp.to_ne_bytes())
            }
        };
        Some(RingEvent {
            at: start + at,
            overflown: false,
            timestamp,
            ring: self,
        })
    }

    /// Counts events that could not be written.
    #[inline]
    pub fn discard(&mut self, events: u64) {
        self.discarded = self.discarded.saturating_add(events);
        self.put_number(self.layout.discarded, self.discarded);
    }

    /// Ends the current packet and starts another one.
    pub fn end_packet(&mut self, timestamp: u64) {
        self.last = self.last.max(timestamp);
        self.put_number(self.layout.end, self.last);
        self.next_packet();
    }

    /// All existing packets, from the oldest to the current one, each as in a stream's file.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let (before, from) = self.memory.split_at_checked(self.limit).unwrap_or((&[], &[]));
        let place = self.layout.content_size;
        let all = from
            .chunks_exact(self.packet_bytes.max(1))
            .chain(before.chunks_exact(self.packet_bytes.max(1)));
        // Packets that were never started are zero.
        all.filter(move |packet| {
            packet
                .get(place..place + 8)
                .is_some_and(|size| size.iter().any(|&byte| byte != 0))
        })
    }

    /// Passes each packet to `each` once, from the oldest to the current one, and starts again.
    pub fn take(&mut self, timestamp: u64, mut each: impl FnMut(&[u8])) {
        self.last = self.last.max(timestamp);
        self.put_number(self.layout.end, self.last);
        self.packets().for_each(&mut each);
        let place = self.layout.content_size;
        for packet in self.memory.chunks_exact_mut(self.packet_bytes.max(1)) {
            put(packet, place, [0; 8]);
        }
        self.next_packet();
    }

    /// The number of events discarded so far.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Starts the next packet if an event of this many bytes does not fit into the current one;
    /// returns whether it fits there.
    #[cold]
    fn switch(&mut self, needed: usize, timestamp: u64) -> bool {
        if needed > self.packet_bytes - self.layout.header {
            self.discard(1);
            return false;
        }
        self.last = timestamp;
        self.next_packet();
        true
    }

    fn next_packet(&mut self) {
        self.packet = self.limit;
        // The rest at the end may be smaller than a packet.
        if self.memory.len() - self.packet < self.packet_bytes {
            self.packet = 0;
        }
        self.limit = self.packet + self.packet_bytes;
        self.sequence_number = self.sequence_number.wrapping_add(1);
        self.begin_packet();
    }

    /// Writes the header of the current packet. The packet exists as soon as its content has a
    /// size, which is written last.
    fn begin_packet(&mut self) {
        let RingLayout { header, .. } = self.layout;
        self.position = self.packet + header;
        self.put_number(self.layout.content_size, 0);
        compiler_fence(Ordering::SeqCst);
        let place = self.memory.get_mut(self.packet..self.position);
        if let (Some(place), Some(template)) = (place, self.layout.template.get(..header)) {
            place.iter_mut().zip(template).for_each(|(place, &byte)| *place = byte);
        }
        self.put_number(self.layout.begin, self.last);
        self.put_number(self.layout.end, self.last);
        self.put_number(self.layout.packet_size, self.packet_bytes as u64 * 8);
        self.put_number(self.layout.sequence_number, self.sequence_number);
        self.put_number(self.layout.discarded, self.discarded);
        compiler_fence(Ordering::SeqCst);
        self.put_number(self.layout.content_size, header as u64 * 8);
    }

    /// Writes a number of the current packet's header.
    #[inline]
    fn put_number(&mut self, place: usize, value: u64) {
        if let Some(packet) = self.memory.get_mut(self.packet..self.limit) {
            put(packet, place, value.to_ne_bytes());
        }
    }
}

/// LTTng's large header with all fields in full.
const LONGEST_EVENT_HEADER: usize = 14;

/// Id 31 in a compact header's id bits; the other bits of the first byte do not count.
#[cfg(target_endian = "little")]
const EXTENDED_COMPACT: u8 = 31;
#[cfg(target_endian = "big")]
const EXTENDED_COMPACT: u8 = 31 << 3;

/// 5 bits of id and 27 of the time.
#[inline]
fn compact(id: u32, timestamp: u64) -> [u8; 4] {
    match cfg!(target_endian = "little") {
        true => (id | (timestamp as u32) << 5).to_ne_bytes(),
        false => (id << 27 | timestamp as u32 & 0x07ff_ffff).to_ne_bytes(),
    }
}

/// Puts bytes at a place if they fit; returns the place after them.
#[inline]
fn put<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) -> usize {
    let end = at.wrapping_add(N);
    if let Some(place) = out.get_mut(at..end).and_then(|place| place.first_chunk_mut()) {
        *place = bytes;
    }
    end
}

/// An event in a ring. Dropping it without [`RingEvent::commit`] discards it.
#[derive(Debug)]
#[must_use = "an event that is not committed is not written"]
pub struct RingEvent<'r, 'm> {
    ring: &'r mut Ring<'m>,
    /// The position of the next field.
    at: usize,
    /// Whether a field had no room.
    overflown: bool,
    timestamp: u64,
}

macro_rules! numbers {
    ($($name:ident: $text:literal,)*) => {
        $(
            #[doc = $text]
            #[inline]
            pub fn $name(&mut self, value: $name) {
                self.put(value.to_ne_bytes());
            }
        )*
    };
}

impl RingEvent<'_, '_> {
    numbers! {
        u8: "A number of 8 bits.",
        u16: "A number of 16 bits.",
        u32: "A number of 32 bits.",
        u64: "A number of 64 bits.",
        i8: "A signed number of 8 bits.",
        i16: "A signed number of 16 bits.",
        i32: "A signed number of 32 bits.",
        i64: "A signed number of 64 bits.",
        f32: "A floating point number of 32 bits.",
        f64: "A floating point number of 64 bits.",
    }

    /// Writes the elements of an array of bytes. Its length, if any, is a number before it.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        if let Some(place) = self.room(bytes.len()) {
            // Both have the same length.
            place.iter_mut().zip(bytes).for_each(|(place, &byte)| *place = byte);
        }
    }

    /// Writes a text, up to its first zero byte, and a zero byte.
    #[inline]
    pub fn text(&mut self, text: &[u8]) {
        let end = text.iter().position(|&byte| byte == 0);
        self.bytes(end.and_then(|end| text.get(..end)).unwrap_or(text));
        self.u8(0);
    }

    /// Writes the elements of an array of 64-bit numbers: a stack.
    #[inline]
    pub fn u64s(&mut self, values: &[u64]) {
        let Some(place) = values.len().checked_mul(8).and_then(|bytes| self.room(bytes)) else {
            self.overflown = true;
            return;
        };
        for (place, value) in place.as_chunks_mut().0.iter_mut().zip(values) {
            *place = value.to_ne_bytes();
        }
    }

    /// Adds the event to the packet. Returns false if its fields took more room than requested and
    /// the packet had no more.
    #[inline]
    pub fn commit(self) -> bool {
        let RingEvent {
            ring,
            at,
            overflown,
            timestamp,
        } = self;
        if overflown {
            ring.discard(1);
            return false;
        }
        ring.last = timestamp;
        ring.position = at;
        ring.put_number(ring.layout.end, timestamp);
        // Write the event before its size: a reader of the memory after this thread's end sees them
        // in this order.
        compiler_fence(Ordering::SeqCst);
        ring.put_number(ring.layout.content_size, (at - ring.packet) as u64 * 8);
        true
    }

    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.room(N).and_then(|place| place.first_chunk_mut()) {
            *place = bytes;
        }
    }

    /// The next bytes of the packet.
    #[inline]
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let end = self.at.wrapping_add(bytes);
        if end > self.ring.limit || end < self.at {
            self.overflown = true;
            return None;
        }
        let place = self.ring.memory.get_mut(self.at..end)?;
        self.at = end;
        Some(place)
    }
}
