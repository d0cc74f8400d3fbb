//! Checks of the ring's protocol: every order of a writer and a collector (by loom), an
//! interruption at every step of a writer, and rings in plain memory for Miri and ThreadSanitizer.

use core::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::clock::Clock;
use crate::layout::{Geometry, LENGTH_BITS, POSITION_MASK, control, packet};
use crate::map::Map;
use crate::protocol::{Memory, Shape, Start, append, piece, time_of};
use crate::ring::Ring;

/// Packets of 128 bytes: two events of 24 each fit in one beside its header.
const SHAPE: Shape = Shape {
    packet_mask: 127,
    ring_mask: 255,
    overwrite: false,
};
const EVENT_BYTES: u64 = 24;

fn start() -> Start {
    Start {
        time: 1,
        monotonic: 1,
        tid: 1,
    }
}

/// A value and its check, as an event has them.
fn record<M: Memory>(memory: &M, shape: &Shape, value: u64) -> Option<bool> {
    append(
        memory,
        shape,
        || 1,
        start,
        7,
        EVENT_BYTES,
        |at| {
            memory.put(at, value);
            memory.put(at + 8, !value);
            true
        },
    )
}

/// The values between two positions of one packet.
fn values(from: u64, to: u64, get: impl Fn(u64) -> u64) -> Vec<u64> {
    (from..to)
        .step_by(EVENT_BYTES as usize)
        .map(|at| {
            let value = get(at + 8);
            assert_eq!(get(at + 16), !value, "torn");
            assert_eq!(time_of(get(at), 1), 1);
            value
        })
        .collect()
}

/// Takes what there is, as the collector does.
fn take(drained: &mut u64, word: u64, shape: &Shape, get: impl Fn(u64) -> u64, found: &mut Vec<u64>) {
    let before = |next: u64| Some(get(next + packet::BEFORE as u64));
    while let Some(piece) = piece(shape, *drained, word, before) {
        found.extend(values(piece.from, piece.to, &get));
        *drained = match piece.whole {
            true => (piece.packet + shape.packet_mask + 1) & POSITION_MASK,
            false => piece.to,
        };
    }
}

mod orders {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// Memory in which loom sees every access.
    struct Words {
        position: AtomicU64,
        consumed: AtomicU64,
        discarded: AtomicU64,
        words: Vec<UnsafeCell<u64>>,
    }

    // SAFETY: loom checks that the cells are not used at the same time.
    unsafe impl Sync for Words {}

    impl Words {
        fn word(&self, at: u64) -> &UnsafeCell<u64> {
            &self.words[((at & SHAPE.ring_mask) / 8) as usize]
        }
    }

    impl Memory for Words {
        fn enter(&self) -> bool {
            true
        }
        fn leave(&self) {}
        fn position(&self) -> u64 {
            self.position.load(Ordering::Acquire)
        }
        fn commit(&self, from: u64, to: u64) -> bool {
            self.position
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        }
        fn consumed(&self) -> u64 {
            self.consumed.load(Ordering::Acquire)
        }
        fn reserve(&self, _: u64) -> bool {
            true
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
        fn put(&self, at: u64, value: u64) {
            // SAFETY: loom fails the test if somebody else uses the word meanwhile.
            self.word(at).with_mut(|word| unsafe { *word = value });
        }
        fn get(&self, at: u64) -> u64 {
            // SAFETY: as above.
            self.word(at).with(|word| unsafe { *word })
        }
    }

    #[test]
    fn a_writer_and_a_collector() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let words = Arc::new(Words {
                position: AtomicU64::new(0),
                consumed: AtomicU64::new(0),
                discarded: AtomicU64::new(0),
                words: (0..32).map(|_| UnsafeCell::new(0)).collect(),
            });
            let writer = {
                let words = words.clone();
                loom::thread::spawn(move || {
                    (0..6)
                        .filter(|&value| record(&*words, &SHAPE, value) == Some(true))
                        .collect::<Vec<u64>>()
                })
            };
            let (mut drained, mut found) = (0, Vec::new());
            let mut round = || {
                let word = words.position();
                take(&mut drained, word, &SHAPE, |at| words.get(at), &mut found);
                words.consumed.store(drained & !SHAPE.packet_mask, Ordering::Release);
            };
            round();
            round();
            let written = writer.join().unwrap();
            round();
            assert_eq!(found, written);
            assert_eq!(found.len() as u64 + words.discarded(), 6);
        });
    }
}

/// A thread with a ring for each nesting, in which a handler interrupts before the step that is
/// chosen.
struct Thread {
    rings: [RingWords; 4],
    /// Steps until the interruption, and how many more interruptions there are.
    steps: Cell<Option<u32>>,
    handlers: Cell<u32>,
    recorded: RefCell<Vec<u64>>,
}

#[derive(Default)]
struct RingWords {
    is_busy: Cell<bool>,
    position: Cell<u64>,
    words: RefCell<Vec<u64>>,
}

impl Thread {
    fn record(&self, value: u64) {
        let written = (0..4).find_map(|ring| record(&Interrupted { thread: self, ring }, &LARGE, value));
        assert_eq!(written, Some(true));
        self.recorded.borrow_mut().push(value);
    }

    fn step(&self) {
        match self.steps.get() {
            Some(0) => {
                let left = self.handlers.get();
                self.handlers.set(left - 1);
                // The next one interrupts this one a few steps later.
                self.steps.set((left > 1).then_some(left));
                self.record(1000 + u64::from(left));
            }
            Some(steps) => self.steps.set(Some(steps - 1)),
            None => {}
        }
    }
}

/// Room for everything.
const LARGE: Shape = Shape {
    packet_mask: 127,
    ring_mask: 4095,
    overwrite: false,
};

struct Interrupted<'t> {
    thread: &'t Thread,
    ring: usize,
}

impl Interrupted<'_> {
    fn words(&self) -> &RingWords {
        self.thread.step();
        &self.thread.rings[self.ring]
    }
}

impl Memory for Interrupted<'_> {
    fn enter(&self) -> bool {
        let is_free = !self.words().is_busy.get();
        if is_free {
            // An interruption between the two has ended by now.
            self.words().is_busy.set(true);
        }
        is_free
    }
    fn leave(&self) {
        self.words().is_busy.set(false);
    }
    fn position(&self) -> u64 {
        self.words().position.get()
    }
    fn commit(&self, from: u64, to: u64) -> bool {
        let position = &self.words().position;
        let is_same = position.get() == from;
        if is_same {
            position.set(to);
        }
        is_same
    }
    fn consumed(&self) -> u64 {
        0
    }
    fn reserve(&self, _: u64) -> bool {
        true
    }
    fn discard(&self) {
        panic!("there is room");
    }
    fn discarded(&self) -> u64 {
        0
    }
    fn fence(&self) {}
    fn put(&self, at: u64, value: u64) {
        self.words().words.borrow_mut()[(at / 8) as usize] = value;
    }
    fn get(&self, at: u64) -> u64 {
        self.words().words.borrow()[(at / 8) as usize]
    }
}

#[test]
fn an_interruption_at_every_step() {
    for first in 0..200 {
        for handlers in 1..=3 {
            let thread = Thread {
                rings: Default::default(),
                steps: Cell::new(Some(first)),
                handlers: Cell::new(handlers),
                recorded: RefCell::default(),
            };
            for ring in &thread.rings {
                ring.words.borrow_mut().resize(512, 0);
            }
            (0..8).for_each(|value| thread.record(value));
            thread.steps.set(None);
            let mut found = Vec::new();
            for ring in &thread.rings {
                let get = |at: u64| ring.words.borrow()[(at / 8) as usize];
                take(&mut 0, ring.position.get(), &LARGE, get, &mut found);
            }
            let mut recorded = thread.recorded.take();
            found.sort_unstable();
            recorded.sort_unstable();
            assert_eq!(found, recorded, "{first} {handlers}");
        }
    }
}

/// The ring itself, with a writer and a collector at the same time. For Miri and ThreadSanitizer,
/// too.
#[test]
fn ring_in_plain_memory() {
    let geometry = Geometry::new(1, 4096, 2, 4096).unwrap();
    let map = Map::in_heap(geometry);
    let ring = Ring::new(&map, 0, false, Clock::Monotonic);
    let shape = ring.shape;
    let count: u64 = if cfg!(miri) { 600 } else { 20_000 };
    let at = geometry.control(0);
    let load = |place: usize| map.word(at + place).load(core::sync::atomic::Ordering::Acquire);
    let bytes_at = |position: u64| {
        let offset = position & shape.ring_mask;
        let mut bytes = [0; 24];
        map.read(geometry.data(0) + (offset & !7) as usize, &mut bytes);
        let start = (offset & 7) as usize;
        u64::from_ne_bytes(*bytes[start..].first_chunk().unwrap())
    };
    let (mut drained, mut found) = (0, Vec::new());
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let write = |&value: &u64| {
                ring.append(3, 19, |out| {
                    out.put(value.to_ne_bytes());
                    out.bytes(&(!value).to_ne_bytes());
                    out.bytes(b"abc");
                }) == Some(true)
            };
            (0..count).filter(write).collect::<Vec<u64>>()
        });
        let mut ends = false;
        while !ends {
            ends = writer.is_finished();
            let word = load(control::POSITION);
            let before = |next: u64| Some(bytes_at(next + packet::BEFORE as u64));
            while let Some(piece) = piece(&shape, drained, word, before) {
                for event in (piece.from..piece.to).step_by(27) {
                    let value = bytes_at(event + 8);
                    assert_eq!(bytes_at(event + 16), !value);
                    found.push(value);
                }
                drained = match piece.whole {
                    true => piece.packet + shape.packet_mask + 1,
                    false => piece.to,
                };
                let consumed = map.word(at + control::CONSUMED);
                consumed.store(drained & !shape.packet_mask, core::sync::atomic::Ordering::Release);
            }
            std::thread::yield_now();
        }
        writer.join().unwrap()
    });
    assert_eq!(found, written);
    assert_eq!(written.len() as u64 + load(control::DISCARDED), count);
    assert_eq!(load(control::POSITION) >> LENGTH_BITS, drained);
    map.free();
}
