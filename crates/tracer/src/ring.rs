//! A ring as its writers see it: raw memory behind the position, atomics for everything else.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use crate::clock::{self, Clock};
use crate::layout::{LENGTH_BITS, control, packet};
use crate::map::Map;
use crate::protocol::{self, Memory, Shape, Start};
use crate::room;
use crate::stack;

/// Nanoseconds between two requests for room in a full file system.
const ASK_INTERVAL: u64 = 20_000_000;

/// A ring of this process. These are the process's own facts about it, so that nothing in the
/// shared file can lead a writer astray.
#[derive(Debug)]
pub(crate) struct Ring {
    position: &'static AtomicU64,
    discarded: &'static AtomicU64,
    consumed: &'static AtomicU64,
    pub(crate) owner: &'static AtomicU64,
    data: AtomicPtr<u8>,
    /// Where the packets are in the file, and how many of them are reserved there.
    file_at: usize,
    reserved: AtomicU64,
    /// When to ask for more again: the file system was full.
    ask_at: AtomicU64,
    /// Somebody is writing: a handler that interrupts it uses another ring,
    is_busy: AtomicBool,
    /// this one.
    pub(crate) next: AtomicPtr<Ring>,
    pub(crate) shape: Shape,
    pub(crate) clock: Clock,
    /// The owner's id, and the first bytes of its name.
    pub(crate) tid: AtomicU32,
    pub(crate) comm: [AtomicU64; 2],
    /// The last stack of its thread.
    pub(crate) stacks: stack::Cache,
}

impl Ring {
    pub(crate) fn new(map: &Map, index: usize, overwrite: bool, clock: Clock) -> Ring {
        let at = map.geometry.control(index);
        Ring {
            position: map.word(at + control::POSITION),
            discarded: map.word(at + control::DISCARDED),
            consumed: map.word(at + control::CONSUMED),
            owner: map.word(at + control::OWNER),
            data: AtomicPtr::new(map.data(index)),
            file_at: map.geometry.data(index),
            reserved: AtomicU64::new(0),
            ask_at: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            next: AtomicPtr::new(core::ptr::null_mut()),
            shape: Shape {
                packet_mask: map.geometry.packet_bytes as u64 - 1,
                ring_mask: map.geometry.ring_bytes() as u64 - 1,
                overwrite,
            },
            clock,
            tid: AtomicU32::new(0),
            comm: [const { AtomicU64::new(0) }; 2],
            stacks: stack::Cache::new(),
        }
    }

    fn start(&self) -> Start {
        Start {
            time: self.clock.now(),
            monotonic: crate::clock::monotonic(),
            tid: u64::from(self.tid.load(Ordering::Relaxed)),
        }
    }

    /// Prepares the ring for an owner whose facts `describe` stores; false if it has no room for a
    /// packet. Whatever an earlier owner was doing has ended.
    pub(crate) fn begin(&self, describe: impl FnOnce()) -> bool {
        self.is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.next.store(core::ptr::null_mut(), Ordering::Relaxed);
        describe();
        // The first event starts the first packet.
        let word = Memory::position(self);
        let has_room = word == 0 || protocol::begin(self, &self.shape, word, &|| self.start());
        self.leave();
        has_room
    }

    /// Whether somebody is writing.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    /// Writes an event whose part after the header has this many bytes. `None` if the ring is busy.
    #[inline]
    pub(crate) fn append(&self, id: u16, bytes: usize, body: impl Fn(&mut Out<'_>)) -> Option<bool> {
        let whole = bytes as u64 + crate::layout::EVENT_HEADER as u64;
        let write = |at: u64| {
            // SAFETY: `protocol::append` passes an offset such that the event's bytes are in one
            // packet, so in the ring.
            let at = unsafe { self.data.load(Ordering::Relaxed).add(at as usize) };
            let mut out = Out {
                at,
                left: bytes,
                ring: PhantomData,
                is_over: false,
            };
            body(&mut out);
            out.left == 0 && !out.is_over
        };
        protocol::append(
            self,
            &self.shape,
            || self.clock.now(),
            || self.start(),
            id,
            whole,
            write,
        )
    }

    /// Reserves the packet that is being written in another file.
    pub(crate) fn reserve_current(&self, file: libc::c_int) -> bool {
        let position = self.position.load(Ordering::Relaxed) >> LENGTH_BITS;
        let at = position & self.shape.ring_mask & !self.shape.packet_mask;
        room::reserve_in(file, self.file_at + at as usize, self.shape.packet_mask as usize + 1)
    }

    /// The file is another one, in which nothing is reserved.
    pub(crate) fn move_to_other_file(&self) {
        self.reserved.store(0, Ordering::Relaxed);
        self.ask_at.store(0, Ordering::Relaxed);
    }

    /// Counts an event that could not be written.
    pub(crate) fn discard_event(&self) {
        self.discard();
    }
}

impl Memory for Ring {
    #[inline]
    fn enter(&self) -> bool {
        if self.is_busy.load(Ordering::Relaxed) {
            return false;
        }
        self.is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        true
    }

    #[inline]
    fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        self.is_busy.store(false, Ordering::Relaxed);
    }

    #[inline]
    fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    #[inline]
    fn commit(&self, from: u64, to: u64) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "portable")))]
        {
            let found: u8;
            // SAFETY: the address is an atomic's. It needs no lock prefix, because no other thread
            // writes this word; only a fork changes it meanwhile, in the child. The
            // processor keeps stores in order, and the compiler does around this.
            unsafe {
                core::arch::asm!(
                    "cmpxchg qword ptr [{word}], {to}",
                    "sete {found}",
                    word = in(reg) self.position.as_ptr(),
                    to = in(reg) to,
                    found = out(reg_byte) found,
                    inout("rax") from => _,
                    options(nostack),
                );
            }
            found != 0
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "portable"))))]
        {
            let put = self
                .position
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            put.is_ok()
        }
    }

    #[inline]
    fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Acquire)
    }

    fn reserve(&self, at: u64) -> bool {
        let index = at / (self.shape.packet_mask + 1);
        if index < self.reserved.load(Ordering::Relaxed) {
            return true;
        }
        // A refusal takes a hundred times longer than an event, and every event would ask.
        let now = clock::monotonic();
        if now < self.ask_at.load(Ordering::Relaxed) {
            return false;
        }
        let is_reserved = room::reserve(self.file_at + at as usize, self.shape.packet_mask as usize + 1);
        match is_reserved {
            true => self.reserved.store(index + 1, Ordering::Relaxed),
            false => self.ask_at.store(now + ASK_INTERVAL, Ordering::Relaxed),
        }
        is_reserved
    }

    fn discard(&self) {
        self.discarded.fetch_add(1, Ordering::Relaxed);
    }

    fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    fn fence(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn put(&self, at: u64, value: u64) {
        // SAFETY: the protocol's offsets are within the ring, 8 bytes before the end of a packet at
        // the latest.
        unsafe {
            let place = self
                .data
                .load(Ordering::Relaxed)
                .add((at & self.shape.ring_mask) as usize);
            place.cast::<u64>().write_unaligned(value);
        }
    }

    #[inline]
    fn get(&self, at: u64) -> u64 {
        const { assert!(packet::BEGIN == 0) };
        // SAFETY: as in `put`.
        unsafe {
            let place = self
                .data
                .load(Ordering::Relaxed)
                .add((at & self.shape.ring_mask) as usize);
            place.cast::<u64>().read_unaligned()
        }
    }
}

/// Room for the fields of one event.
#[derive(Debug)]
pub struct Out<'r> {
    at: *mut u8,
    left: usize,
    is_over: bool,
    ring: PhantomData<&'r Ring>,
}

impl Out<'_> {
    /// Writes a field's bytes, with a length that the compiler knows.
    #[inline]
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.take(N) {
            // SAFETY: the place has room for N bytes.
            unsafe { place.cast::<[u8; N]>().write_unaligned(bytes) };
        }
    }

    /// Writes a field's bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        if let Some(place) = self.take(bytes.len()) {
            // SAFETY: the place has room for them, in memory that no slice covers.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        }
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        if bytes > self.left {
            self.is_over = true;
            return None;
        }
        self.left -= bytes;
        let place = self.at;
        // SAFETY: at most to the end of the event's room.
        self.at = unsafe { place.add(bytes) };
        Some(place)
    }
}
