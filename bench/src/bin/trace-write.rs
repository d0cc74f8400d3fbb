//! Compares the cost of writing an event into memory with LTTng-UST's tracepoints, in one run:
//! nanoseconds of processor time, including the time stamp.
//!
//! `cargo run --release --bin trace-write [EVENTS]`, by default 10,000,000. LTTng records in
//! flight-recorder mode, so that no event is dropped and nobody empties its buffers meanwhile; ours
//! is a ring of the same size. LTTng reads `CLOCK_MONOTONIC` without a system call; so do we.
//! Further rows use the processor's own counter, which a trace's clock may be too, no clock at all,
//! which shows the writer's own cost, and the clock alone.

#[path = "../events.rs"]
mod events;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use backtrail_testkit::peers::Lttng;
use backtrail_testkit::raw::cycles;
use backtrail_trace::description::{Array, Clock, Description, EventClass, Integer, Reference, Struct};
use backtrail_trace::{Plan, Ring, RingLayout, StreamOptions};
use backtrail_wire::Endian;
use rustix::time::{ClockId, clock_gettime};

use events::{lttng_rounds, processor_time};

const FRAMES: usize = 16;
const ROUNDS: usize = 5;
/// Four buffers of a mebibyte, as LTTng's channel has here.
const PACKET_BYTES: usize = 1 << 20;
const PACKETS: usize = 4;
const EMPTY: u32 = 0;
const STACK: u32 = 1;

fn main() -> ExitCode {
    let count = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(10_000_000u64);
    let lttng = Lttng::start();
    println!("nanoseconds of processor time an event: the best of {ROUNDS} rounds, and the median\n");
    println!("{:48} {:>16} {:>22}", "", "empty", "stack of 16 frames");
    let mut peer = None;
    if let Some(lttng) = &lttng {
        let figures = Figures::of(lttng_rounds(lttng, count));
        figures.print("LTTng-UST, CLOCK_MONOTONIC", None);
        peer = Some(figures);
    }
    let start = Instant::now();
    let ours: [(&str, &dyn Fn() -> Rounds); 4] = [
        ("CLOCK_MONOTONIC read, nothing written", &|| clock_alone(count)),
        ("backtrail, CLOCK_MONOTONIC", &|| rounds(count, monotonic)),
        ("backtrail, time stamp counter", &|| match cycles() {
            Some(_) => rounds(count, || cycles().unwrap_or(0)),
            None => Vec::new(),
        }),
        ("backtrail, no clock", &|| rounds(count, || 1)),
    ];
    for (name, run) in ours {
        Figures::of(run()).print(name, peer.as_ref());
    }
    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Nanoseconds of an empty event and of a stack, per round.
type Rounds = Vec<(f64, f64)>;

/// What was measured of both events.
struct Figures {
    empty: (f64, f64),
    stack: (f64, f64),
}

impl Figures {
    fn of(rounds: Rounds) -> Figures {
        let best_and_median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
            (at(0), at(values.len() / 2))
        };
        Figures {
            empty: best_and_median(rounds.iter().map(|round| round.0).collect()),
            stack: best_and_median(rounds.iter().map(|round| round.1).collect()),
        }
    }

    fn print(&self, name: &str, peer: Option<&Figures>) {
        let ratio =
            |ours: f64, theirs: Option<f64>| theirs.map_or(String::new(), |theirs| format!(" ({:.2})", ours / theirs));
        let empty = ratio(self.empty.0, peer.map(|peer| peer.empty.0));
        let stack = ratio(self.stack.0, peer.map(|peer| peer.stack.0));
        println!(
            "{name:40} {:>8.2} {:>8.2}{empty:>8} {:>12.2} {:>8.2}{stack:>8}",
            self.empty.0, self.empty.1, self.stack.0, self.stack.1
        );
    }
}

fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The lower bound for everyone who reads this clock for each event.
fn clock_alone(count: u64) -> Rounds {
    let round = |_| {
        let start = processor_time();
        for _ in 0..count {
            black_box(monotonic());
        }
        let each = (processor_time() - start) / count as f64;
        (each, each)
    };
    (0..ROUNDS).map(round).collect()
}

fn rounds(count: u64, clock: impl Fn() -> u64) -> Rounds {
    let plan = Arc::new(Plan::new(description()).expect("a sound description"));
    let layout = RingLayout::new(&plan, StreamOptions::for_cpu(0, 0)).expect("a class that can be written");
    let mut memory = vec![0; PACKETS * PACKET_BYTES];
    let mut ring = Ring::new(layout, &mut memory, PACKET_BYTES, clock()).expect("room for packets");
    let ips: [u64; FRAMES] = std::array::from_fn(|frame| 0x7f00_0000_1000 + frame as u64 * 77);
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let start = processor_time();
        for _ in 0..count {
            empty(&mut ring, clock());
        }
        let after_empty = processor_time();
        for _ in 0..count {
            stack(&mut ring, clock(), black_box(&ips));
        }
        let end = processor_time();
        let each = |time: f64| time / count as f64;
        all.push((each(after_empty - start), each(end - after_empty)));
    }
    assert_eq!(ring.discarded(), 0);
    black_box(&memory);
    all
}

/// Not part of the loop, as a tracepoint is not part of a program's.
#[inline(never)]
fn empty(ring: &mut Ring<'_>, time: u64) {
    if let Some(event) = ring.event(EMPTY, time, 0) {
        event.commit();
    }
}

#[inline(never)]
fn stack(ring: &mut Ring<'_>, time: u64, ips: &[u64]) {
    if let Some(mut event) = ring.event(STACK, time, 8 + size_of_val(ips)) {
        event.u64(ips.len() as u64);
        event.u64s(ips);
        event.commit();
    }
}

fn description() -> Description {
    let order = Endian::NATIVE;
    let u = |size| Integer::unsigned(size, order);
    let length = Reference::payload(&["_ips_length"]);
    let stack = Struct::new()
        .with("_ips_length", u(64))
        .with("ips", Array::sequence(length, u(64).hexadecimal()));
    let events = vec![
        EventClass::new(EMPTY.into(), "kit:empty", Struct::new()),
        EventClass::new(STACK.into(), "kit:stack", stack),
    ];
    Description::of_events(Clock::nanoseconds("monotonic", 0), events)
}
