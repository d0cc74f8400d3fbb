//! Compares the cost of recording an event with the tracer, LTTng-UST, and `tracing` with an
//! appender, in one run: nanoseconds of processor time, including the time stamp.
//!
//! `cargo run --release --bin tracer [EVENTS]`, by default 5,000,000. Tracer and LTTng record as
//! flight recorders, so that nobody empties their buffers meanwhile; `tracing` writes lines to a
//! file through a thread of its own. "stack" is LTTng's array of 16 addresses that are there
//! already; the tracer walks the stack for its own.

#[path = "../events.rs"]
mod events;

use std::hint::black_box;
use std::process::ExitCode;

use backtrail_testkit::peers::Lttng;
use backtrail_testkit::raw::cycles;
use backtrail_tracer::{Options, event};
use tracing_subscriber::fmt::MakeWriter;

use events::{lttng_rounds, processor_time};

const ROUNDS: usize = 5;

fn main() -> ExitCode {
    let count = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(5_000_000u64);
    println!("nanoseconds of processor time an event: the best of {ROUNDS} rounds, and the ratio to the clock alone\n");
    let clock = best(count, |_| {
        black_box(cycles());
    });
    row("time stamp counter alone", clock, clock);
    let peer = lttng(count);
    if let Some((empty, stack)) = peer {
        row("LTTng-UST, empty", empty, clock);
        row("LTTng-UST, array of 16 addresses", stack, clock);
    }
    let lines = appender(count / 10);
    row("tracing and tracing-appender, empty", lines, clock);

    let tracer = backtrail_tracer::start(Options::flight_recorder().ring(4, 1 << 20)).expect("tracing starts");
    row("tracer, empty", best(count, |_| empty()), clock);
    row("tracer, 3 integers", best(count, three), clock);
    row(
        "tracer, string of 20",
        best(count, |_| text(black_box("abcdefghijklmnopqrst"))),
        clock,
    );
    let walked = best(count / 10, |_| descend(DEPTH, 0, false));
    row(
        "tracer, stack of 16 frames, same",
        best(count / 10, |_| descend(DEPTH, 0, true)) - walked,
        clock,
    );
    let walked = best(count / 10, |number| descend(DEPTH, scatter(number), false));
    row(
        "tracer, stack of 16 frames, new",
        best(count / 10, |number| descend(DEPTH, scatter(number), true)) - walked,
        clock,
    );
    for threads in [2, 8] {
        let each = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| best(count / threads, |_| empty())))
                .collect();
            let all: Vec<f64> = all
                .into_iter()
                .map(|thread| thread.join().expect("the thread ends"))
                .collect();
            all.iter().sum::<f64>() / all.len() as f64
        });
        row(&format!("tracer, empty, {threads} threads"), each, clock);
    }
    tracer.switch("-*").expect("a rule");
    row(
        "tracer, off",
        best(count, |_| empty()) - best(count, |_| nothing()),
        clock,
    );
    ExitCode::SUCCESS
}

fn row(name: &str, each: f64, clock: f64) {
    println!("{name:44} {each:8.2} {:8.2}", each / clock);
}

/// Nanoseconds of the calling thread for one call.
fn best(count: u64, act: impl Fn(u64)) -> f64 {
    let round = |_| {
        let start = processor_time();
        for number in 0..count {
            act(number);
        }
        (processor_time() - start) / count as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

// Not part of the loop, as a tracepoint is not part of a program's.
#[inline(never)]
fn nothing() {
    black_box(());
}

#[inline(never)]
fn empty() {
    event!(bench::empty);
}

#[inline(never)]
fn three(number: u64) {
    event!(bench::three, a: u64 = number, b: u32 = 5, c: i32 = -1);
}

#[inline(never)]
fn text(text: &str) {
    event!(bench::text, text: &str);
}

/// With `main` and what is above and below it, 16 frames.
const DEPTH: u32 = 9;

fn scatter(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[inline(never)]
fn descend(depth: u32, way: u64, is_event: bool) {
    match (depth, way & 1) {
        (0, _) if is_event => event!(bench::stack, stack: true),
        (0, _) => {}
        (_, 0) => descend(depth - 1, way >> 1, is_event),
        _ => other(depth - 1, way >> 1, is_event),
    }
    // Not the last call, which would leave no frame.
    black_box(depth);
}

#[inline(never)]
fn other(depth: u32, way: u64, is_event: bool) {
    match (depth, way & 1) {
        (0, _) if is_event => event!(bench::stack, stack: true),
        (0, _) => {}
        (_, 0) => descend(depth - 1, way >> 1, is_event),
        _ => other(depth - 1, way >> 1, is_event),
    }
    black_box(depth);
}

fn lttng(count: u64) -> Option<(f64, f64)> {
    let rounds = lttng_rounds(&Lttng::start()?, count).into_iter();
    rounds.reduce(|best, round| (best.0.min(round.0), best.1.min(round.1)))
}

/// A line in a file for each event, as `tracing` is commonly used.
fn appender(count: u64) -> f64 {
    let (writer, guard) = tracing_appender::non_blocking(std::fs::File::create("/dev/null").expect("the null device"));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.make_writer())
        .finish();
    let each = tracing::subscriber::with_default(subscriber, || best(count, |_| tracing::info!("empty")));
    drop(guard);
    each
}
