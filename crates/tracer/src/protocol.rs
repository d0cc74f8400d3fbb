//! How events get into a ring: the protocol alone, over any memory.
//!
//! A ring has one word that counts: its position, and with it the length of the last event. Behind
//! the position nothing counts. A writer marks the ring as busy, reads the position, then the
//! clock, writes the event behind the position, and moves the position. A handler that interrupts
//! it finds the ring busy and writes to another one of its thread. So an event is in a ring either
//! whole or not at all, also if its writer never comes back. A fork may change the position in
//! between: then the writer starts again.
//!
//! Times in a ring never go back, because the clock is read after the position.

use crate::layout::{EVENT_HEADER, LENGTH_BITS, POSITION_MASK, TIME_BITS, packet};

/// A ring's memory. Offsets are those within the ring's packets.
pub(crate) trait Memory {
    /// Marks the ring as busy; false if it is. Handlers of the owner may come before and after, but
    /// see everything or nothing of what the owner does meanwhile.
    fn enter(&self) -> bool;
    /// Ends that.
    fn leave(&self);
    /// The position and the length of the last event.
    fn position(&self) -> u64;
    /// Replaces the position if it is `from`; everything written before is visible to whoever sees
    /// the new one.
    fn commit(&self, from: u64, to: u64) -> bool;
    /// The first packet that the collector still needs.
    fn consumed(&self) -> u64;
    /// Makes sure that there is memory for the packet at this offset; false without.
    fn reserve(&self, at: u64) -> bool;
    /// Counts an event that was not written.
    fn discard(&self);
    fn discarded(&self) -> u64;
    /// Everything written before is visible to whoever sees what is written after.
    fn fence(&self);
    fn put(&self, at: u64, value: u64);
    fn get(&self, at: u64) -> u64;
}

/// The shape of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The packet's bytes minus one, and the ring's.
    pub(crate) packet_mask: u64,
    pub(crate) ring_mask: u64,
    /// Whether new packets overwrite the oldest.
    pub(crate) overwrite: bool,
}

/// The clock at the start of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) time: u64,
    pub(crate) monotonic: u64,
    pub(crate) tid: u64,
}

/// An event's header: 16 bits of id and 48 of the time.
#[inline]
fn header(id: u16, time: u64) -> u64 {
    match cfg!(target_endian = "little") {
        true => u64::from(id) | time << 16,
        false => u64::from(id) << 48 | time << 16 >> 16,
    }
}

/// The time in an event's header, which is the first one with these bits that is not before
/// `begin`.
pub(crate) fn time_of(header: u64, begin: u64) -> u64 {
    let bits = match cfg!(target_endian = "little") {
        true => header >> 16,
        false => header << 16 >> 16,
    };
    begin.wrapping_add(bits.wrapping_sub(begin) << (64 - TIME_BITS) >> (64 - TIME_BITS))
}

/// Appends an event of `bytes` bytes, including its header. `body` writes the rest at the offset
/// that it gets, perhaps more than once, and returns whether it wrote exactly that. Returns whether
/// the event is in the ring; if not, it is counted as discarded. `None` if the ring is busy.
#[inline(always)]
pub(crate) fn append<M: Memory>(
    memory: &M,
    shape: &Shape,
    clock: impl Fn() -> u64,
    start: impl Fn() -> Start,
    id: u16,
    bytes: u64,
    body: impl Fn(u64) -> bool,
) -> Option<bool> {
    if !memory.enter() {
        return None;
    }
    let is_written = append_alone(memory, shape, clock, start, id, bytes, body);
    memory.leave();
    Some(is_written)
}

#[inline(always)]
fn append_alone<M: Memory>(
    memory: &M,
    shape: &Shape,
    clock: impl Fn() -> u64,
    start: impl Fn() -> Start,
    id: u16,
    bytes: u64,
    body: impl Fn(u64) -> bool,
) -> bool {
    loop {
        let word = memory.position();
        let position = word >> LENGTH_BITS;
        let offset = position & shape.packet_mask;
        // Only a new ring's position is at the start of a packet: packets never fill up entirely.
        if offset == 0 || bytes > shape.packet_mask - offset {
            match switch(memory, shape, word, bytes, &start) {
                true => continue,
                false => return false,
            }
        }
        let begin = memory.get(((position - offset) & shape.ring_mask) + packet::BEGIN as u64);
        let time = clock();
        let elapsed = time.saturating_sub(begin);
        // A reader could not tell how often the header's time has wrapped.
        if elapsed >> (TIME_BITS - 1) != 0 {
            match switch(memory, shape, word, bytes, &start) {
                true => continue,
                false => return false,
            }
        }
        let at = position & shape.ring_mask;
        memory.put(at, header(id, begin + elapsed));
        if !body(at + EVENT_HEADER as u64) {
            memory.discard();
            return false;
        }
        if memory.commit(word, ((position + bytes) << LENGTH_BITS) | bytes) {
            return true;
        }
    }
}

/// Starts the next packet, if an event of this many bytes fits into one and the ring has room; else
/// counts the event as discarded.
#[cold]
#[inline(never)]
fn switch<M: Memory>(memory: &M, shape: &Shape, word: u64, bytes: u64, start: &impl Fn() -> Start) -> bool {
    if bytes > shape.packet_mask - packet::BYTES as u64
        || bytes >> LENGTH_BITS != 0
        || !begin(memory, shape, word, start)
    {
        memory.discard();
        return false;
    }
    true
}

/// Starts the packet after this position, unless somebody else has moved it. Returns false if the
/// ring is full, or the file system is.
pub(crate) fn begin<M: Memory>(memory: &M, shape: &Shape, word: u64, start: &impl Fn() -> Start) -> bool {
    let position = word >> LENGTH_BITS;
    let next = position.wrapping_add(shape.packet_mask) & !shape.packet_mask & POSITION_MASK;
    if !shape.overwrite && next.wrapping_sub(memory.consumed()) & POSITION_MASK > shape.ring_mask {
        return false;
    }
    let at = next & shape.ring_mask;
    if !memory.reserve(at) {
        return false;
    }
    // A reader that sees a part of what follows must not take the oldest packet for whole.
    memory.fence();
    let Start { time, monotonic, tid } = start();
    let put = |place: usize, value| memory.put(at + place as u64, value);
    put(packet::BEGIN, time);
    put(packet::MONOTONIC, monotonic);
    put(packet::BEFORE, word);
    put(packet::TID, tid);
    put(packet::DISCARDED, memory.discarded());
    // If this fails, somebody else has started a packet or written an event: look again.
    memory.commit(word, (next + packet::BYTES as u64) << LENGTH_BITS);
    true
}

/// A part of a ring that is committed, within one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The start of its packet, and its own start and end, as positions.
    pub(crate) packet: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes of its last event; 0 if it has none.
    pub(crate) last: u64,
    /// Whether the packet ends with it.
    pub(crate) whole: bool,
}

/// The next piece after what was drained, up to `word`; `None` if there is nothing. `before` reads
/// the position before a packet from that packet's start.
pub(crate) fn piece(shape: &Shape, drained: u64, word: u64, before: impl Fn(u64) -> Option<u64>) -> Option<Piece> {
    let position = word >> LENGTH_BITS;
    if drained == position {
        return None;
    }
    let packet = drained & !shape.packet_mask;
    let whole = packet != position & !shape.packet_mask;
    let end = match whole {
        true => before(packet.wrapping_add(shape.packet_mask + 1) & POSITION_MASK)?,
        false => word,
    };
    let (to, last) = (end >> LENGTH_BITS, end & !(u64::MAX << LENGTH_BITS));
    let from = drained.max(packet + packet::BYTES as u64);
    // Whoever wrote the file: no more than the packet.
    let sound = to & !shape.packet_mask == packet && to >= from && (last <= to - from || to == from);
    sound.then_some(Piece {
        packet,
        from,
        to,
        last: if to == from { 0 } else { last },
        whole,
    })
}
