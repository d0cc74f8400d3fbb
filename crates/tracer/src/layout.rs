//! The layout of a file of rings, which a tracer and its collector share.
//!
//! A page of facts about the process, the table of its event classes, and the rings. Each ring is a
//! page of counters and a power of two of packets. Numbers are in the machine's byte order: the
//! file is read where it was made.

/// Identifies the file, and its version.
pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"BTrings1");
pub(crate) const PAGE: usize = 4096;

/// Positions of the numbers in the first page.
pub(crate) mod head {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const FLAGS: usize = 8;
    pub(crate) const PID: usize = 16;
    pub(crate) const RINGS: usize = 24;
    pub(crate) const PACKET_BYTES: usize = 32;
    pub(crate) const PACKETS: usize = 40;
    pub(crate) const CLASS_BYTES: usize = 48;
    /// When the process started, in clock ticks since boot: with the pid it names the process.
    pub(crate) const STARTED: usize = 56;
    /// The clock, the monotonic clock and the wall clock at one moment.
    pub(crate) const BASE_TICKS: usize = 64;
    pub(crate) const BASE_MONOTONIC: usize = 72;
    pub(crate) const BASE_WALL: usize = 80;
    /// Cycles per second if the machine says so, else 0.
    pub(crate) const FREQUENCY: usize = 88;
    /// Contexts of each event, a bit each.
    pub(crate) const CONTEXTS: usize = 96;
    /// One of this many events gets a stack if its class asks for samples.
    pub(crate) const SAMPLE: usize = 104;
    /// The process that drains the rings.
    pub(crate) const COLLECTOR: usize = 112;
    /// Not 0 once the process has ended its tracing.
    pub(crate) const ENDED: usize = 120;
    /// Events of classes for which the table had no room.
    pub(crate) const UNREGISTERED: usize = 128;
    pub(crate) const UUID: usize = 144;
    pub(crate) const BOOT_ID: usize = 160;
    pub(crate) const COMM: usize = 192;
    pub(crate) const COMM_BYTES: usize = 16;
    pub(crate) const HOST: usize = 256;
    pub(crate) const HOST_BYTES: usize = 64;
    /// Names of the program's own contexts, each followed by a newline.
    pub(crate) const OWN: usize = 512;
    pub(crate) const OWN_BYTES: usize = 512;
    /// The rules that switch classes; see `rules`.
    pub(crate) const RULES: usize = 1024;
    pub(crate) const RULES_BYTES: usize = 1024;
}

/// Bits of [`head::FLAGS`].
pub(crate) mod flag {
    /// New packets overwrite the oldest.
    pub(crate) const OVERWRITE: u64 = 1;
    /// Times are those of the processor's counter, not nanoseconds.
    pub(crate) const COUNTER: u64 = 2;
}

/// Bits of [`head::CONTEXTS`], in the order in which the values are stored.
pub(crate) mod context {
    pub(crate) const PID: u64 = 1;
    pub(crate) const TID: u64 = 2;
    pub(crate) const CPU: u64 = 4;
    pub(crate) const COMM: u64 = 8;
}

/// Positions of the numbers in the first page of a ring.
pub(crate) mod control {
    pub(crate) const POSITION: usize = 0;
    pub(crate) const DISCARDED: usize = 8;
    /// The thread that owns the ring; 0 if none has.
    pub(crate) const OWNER: usize = 16;
    /// What follows belongs to the collector, on a cache line of its own: the first packet that is
    /// still needed,
    pub(crate) const CONSUMED: usize = 128;
    /// the end of what is in the stream's file,
    pub(crate) const DRAINED: usize = 136;
    /// that file's length and number of packets, its last time, and its count of discarded events;
    pub(crate) const FILE_BYTES: usize = 144;
    pub(crate) const SEQUENCE: usize = 152;
    pub(crate) const LAST: usize = 160;
    pub(crate) const REPORTED: usize = 168;
    /// and the same for the packet that is being written, first [`DRAINED`].
    pub(crate) const NEXT: usize = 176;
}

/// The start of a packet in a ring.
pub(crate) mod packet {
    /// The time at which it was started.
    pub(crate) const BEGIN: usize = 0;
    /// The monotonic clock at the same moment.
    pub(crate) const MONOTONIC: usize = 8;
    /// The ring's position before it: the end of the packet before.
    pub(crate) const BEFORE: usize = 16;
    /// Events discarded before it.
    pub(crate) const DISCARDED: usize = 24;
    /// The thread that started it.
    pub(crate) const TID: usize = 32;
    pub(crate) const BYTES: usize = 64;
}

/// An entry of the table of classes: four 32-bit numbers, then text.
pub(crate) mod class {
    /// Bytes of the whole entry, a multiple of 8; 0 after the last one.
    pub(crate) const BYTES: usize = 0;
    /// [`IS_READY`] once the text is there, and [`HAS_STACKS`] before the first event with a stack.
    pub(crate) const READY: usize = 4;
    /// Whether its events are recorded; see `class::ON`.
    pub(crate) const SWITCH: usize = 8;
    /// The number of the class; its events have twice that as id, and one more with a stack.
    pub(crate) const NUMBER: usize = 12;
    pub(crate) const TEXT: usize = 16;
    pub(crate) const IS_READY: u32 = 1;
    pub(crate) const HAS_STACKS: u32 = 2;
    /// The class itself asks for stacks.
    pub(crate) const WANTS_STACKS: u32 = 4;
}

/// Bits of an event's length in a ring's position.
pub(crate) const LENGTH_BITS: u32 = 20;
/// Positions count bytes modulo this.
pub(crate) const POSITION_MASK: u64 = u64::MAX >> LENGTH_BITS;
/// Bits of the time in an event's header.
pub(crate) const TIME_BITS: u32 = 48;
/// An event's id and time.
pub(crate) const EVENT_HEADER: usize = 8;

/// The sizes of all parts of a file of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) rings: usize,
    pub(crate) packet_bytes: usize,
    pub(crate) packets: usize,
    pub(crate) class_bytes: usize,
}

impl Geometry {
    /// `None` if the sizes are not possible, whoever wrote them.
    pub(crate) fn new(rings: u64, packet_bytes: u64, packets: u64, class_bytes: u64) -> Option<Geometry> {
        let is_size = |value: u64, most: u64| value.is_power_of_two() && value <= most;
        let sound = (1..=4096).contains(&rings)
            && is_size(packet_bytes, 1 << 26)
            && packet_bytes >= PAGE as u64
            && is_size(packets, 1 << 16)
            && packets >= 2
            && class_bytes <= 1 << 26
            && class_bytes.is_multiple_of(PAGE as u64);
        sound.then_some(Geometry {
            rings: rings as usize,
            packet_bytes: packet_bytes as usize,
            packets: packets as usize,
            class_bytes: class_bytes as usize,
        })
    }

    pub(crate) const fn ring_bytes(&self) -> usize {
        self.packet_bytes * self.packets
    }

    /// Where a ring's counters are.
    pub(crate) const fn control(&self, ring: usize) -> usize {
        PAGE + self.class_bytes + ring * (PAGE + self.ring_bytes())
    }

    /// Where its packets are.
    pub(crate) const fn data(&self, ring: usize) -> usize {
        self.control(ring) + PAGE
    }

    pub(crate) const fn total(&self) -> usize {
        self.control(self.rings)
    }
}
