//! How fast traces are read, beside babeltrace2 2.1 and babeltrace 1.5, in one run: events per second of processor time.
//!
//! `cargo run --release --bin trace [EVENTS]`, by default 5,000,000, and four times that. The traces are recorded by LTTng-UST with two
//! processes at once; without LTTng only what our writer writes is read. Reads from the page cache: each trace is read once before.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use backtrail_testkit::peers::{Lttng, Peer, babeltrace1, babeltrace2_2_1};
use backtrail_testkit::scratch;
use backtrail_trace::description::{
    Array, Clock, Description, Encoding, EventClass, FieldClass, Integer, Reference, Struct,
};
use backtrail_trace::{
    ClockFormat, Dialect, Events, JsonWriter, Options, StreamOptions, StreamReader, TextWriter, Trace, TraceWriter,
    find_traces, render,
};
use backtrail_wire::Endian;

const ROUNDS: usize = 3;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    // A child of this program: what one reader of ours takes.
    if let (Some(what), Some(path)) = (&first, arguments.next()) {
        return child(what, Path::new(&path));
    }
    let events: u64 = first.and_then(|text| text.parse().ok()).unwrap_or(5_000_000);
    let folder = scratch();
    let readers = Readers {
        babeltrace2: babeltrace2_2_1(),
        babeltrace1: babeltrace1(),
    };
    println!("million events per second of processor time; MiB at most\n");
    let lttng = Lttng::start();
    for (size, factor) in [("", 1), (", 4 times as long", 4)] {
        if let Some(lttng) = &lttng {
            let name = format!("lttng{factor}");
            let channel = ["--subbuf-size=1M", "--num-subbuf=8", "--blocking-timeout=inf"];
            let count = (events * factor / 2).to_string();
            let trace = lttng.record(&name, &channel, &["vpid", "vtid"], |lttng| {
                std::thread::scope(|scope| {
                    let half = || lttng.events(&[&count]);
                    let other = scope.spawn(half);
                    half();
                    other.join().expect("the program ran");
                });
            });
            readers.compare(&format!("LTTng-UST{size}"), &trace);
            let _ = std::fs::remove_dir_all(trace);
        }
    }
    for (what, streams) in [("our writer, 2 streams", 2), ("our writer, 64 streams", 64)] {
        let trace = folder.path().join(format!("own{streams}"));
        write(&trace, streams, events);
        readers.compare(what, &trace);
        let _ = std::fs::remove_dir_all(trace);
    }
    let trace = folder.path().join("long");
    write_string(&trace, 1 << 20);
    println!("a string of 1 MiB, milliseconds");
    for (name, mut command) in readers
        .all(&trace)
        .into_iter()
        .filter(|(name, _)| name.contains("text"))
    {
        let start = Instant::now();
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        println!(
            "  {name:32} {:8.1}  {}",
            start.elapsed().as_secs_f64() * 1e3,
            done.is_ok_and(|status| status.success())
        );
    }
    ExitCode::SUCCESS
}

struct Readers {
    babeltrace2: Option<Peer>,
    babeltrace1: Option<Peer>,
}

impl Readers {
    fn all(&self, trace: &Path) -> Vec<(&'static str, Command)> {
        let mut all = Vec::new();
        let mut add = |name, peer: &Peer, arguments: &[&str]| {
            let mut command = peer.command();
            command.arg(trace).args(arguments);
            all.push((name, command));
        };
        if let Some(peer) = &self.babeltrace2 {
            add("babeltrace2 2.1, dummy sink", peer, &["--component=sink.utils.dummy"]);
            add("babeltrace2 2.1, text", peer, &[]);
        }
        if let Some(peer) = &self.babeltrace1 {
            add("babeltrace 1.5, dummy", peer, &["--output-format=dummy"]);
            add("babeltrace 1.5, text", peer, &[]);
        }
        for name in OURS {
            let Ok(me) = std::env::current_exe() else { continue };
            let mut command = Command::new(me);
            command.arg(name).arg(trace);
            all.push((name, command));
        }
        all
    }

    fn compare(&self, what: &str, trace: &Path) {
        let events = count(trace);
        let bytes: u64 = streams(trace).iter().map(StreamReader::file_bytes).sum();
        println!("{what}: {events} events, {} bytes each", bytes / events.max(1));
        let mut best: Vec<(&str, Duration, Duration, u64)> = Vec::new();
        for round in 0..ROUNDS {
            for (index, (name, mut command)) in self.all(trace).into_iter().enumerate() {
                let Some((cpu, wall, memory)) = measure(&mut command) else {
                    println!("  {name}: failed");
                    continue;
                };
                match best.get_mut(index) {
                    Some(old) if round > 0 => *old = (name, old.1.min(cpu), old.2.min(wall), old.3.max(memory)),
                    _ => best.push((name, cpu, wall, memory)),
                }
            }
        }
        for (name, cpu, wall, memory) in best {
            let rate = events as f64 / 1e6;
            println!(
                "  {name:32} {:8.2} per second of processor time, {:8.2} of the clock, {:5} MiB",
                rate / cpu.as_secs_f64(),
                rate / wall.as_secs_f64(),
                memory >> 10
            );
        }
        println!();
    }
}

const OURS: [&str; 6] = [
    "backtrail, decode and merge",
    "backtrail, text",
    "backtrail, text, 1 thread",
    "backtrail, decode, 2 threads",
    "backtrail, JSON",
    "backtrail, decode, 1 stream each",
];

/// Processor time, time and kilobytes at most of a command: as GNU time has them.
fn measure(command: &mut Command) -> Option<(Duration, Duration, u64)> {
    let mut timed = Command::new("/usr/bin/time");
    timed.args(["--format=%U %S %e %M", "--output=/dev/fd/2"]);
    timed.arg(command.get_program()).args(command.get_args());
    let output = timed.stdout(Stdio::null()).output().ok()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let figures: Vec<f64> = errors
        .lines()
        .last()?
        .split(' ')
        .map_while(|figure| figure.parse().ok())
        .collect();
    let [user, system, wall, memory] = figures[..] else {
        return None;
    };
    let seconds = |value: f64| Duration::from_secs_f64(value.max(0.001));
    output
        .status
        .success()
        .then(|| (seconds(user + system), seconds(wall), memory as u64))
}

fn streams(path: &Path) -> Vec<StreamReader> {
    let mut all = Vec::new();
    for directory in find_traces(path).expect("a trace") {
        let trace = Trace::open(&directory).expect("a trace that can be read");
        all.extend((0..trace.streams().len()).map(|index| trace.stream(index, Options::default()).expect("a stream")));
    }
    all
}

fn count(path: &Path) -> u64 {
    let mut events = Events::new(streams(path));
    let mut count = 0;
    while events.next().expect("a sound trace").is_some() {
        count += 1;
    }
    count
}

fn child(what: &str, path: &Path) -> ExitCode {
    let mut writer = TextWriter::new(ClockFormat::TimeOfDay);
    let (mut lines, mut bytes) = (Vec::new(), 0u64);
    let mut text = |threads: usize| {
        let take = |time, rest: &[u8]| {
            writer.time(&mut lines, time);
            lines.extend_from_slice(rest);
            if lines.len() > 1 << 16 {
                bytes += lines.len() as u64;
                lines.clear();
            }
            ControlFlow::Continue(())
        };
        render(
            streams(path),
            threads,
            |event, out| TextWriter::fields(out, event),
            take,
        );
    };
    match what {
        "backtrail, decode and merge" => {
            black_box(count(path));
        }
        "backtrail, decode, 1 stream each" => {
            for mut stream in streams(path) {
                while stream.next().expect("a sound trace").is_some() {}
            }
        }
        "backtrail, decode, 2 threads" => {
            let mut events = 0u64;
            render(
                streams(path),
                2,
                |_, _| {},
                |_, _| {
                    events += 1;
                    ControlFlow::Continue(())
                },
            );
            black_box(events);
        }
        "backtrail, text" => text(2),
        "backtrail, text, 1 thread" => text(1),
        _ => {
            let take = |_, rest: &[u8]| {
                bytes += rest.len() as u64;
                ControlFlow::Continue(())
            };
            render(streams(path), 1, |event, out| JsonWriter.event(out, event), take);
        }
    }
    black_box(bytes);
    ExitCode::SUCCESS
}

fn description() -> Description {
    let order = Endian::NATIVE;
    let stack = Struct::new().with("_ips_length", Integer::unsigned(16, order)).with(
        "ips",
        Array::sequence(
            Reference::payload(&["_ips_length"]),
            Integer::unsigned(64, order).hexadecimal(),
        ),
    );
    let numbers = Struct::new()
        .with("a", Integer::signed(32, order))
        .with("b", Integer::unsigned(64, order).hexadecimal());
    let text = Struct::new().with("s", FieldClass::String(Encoding::Utf8));
    let events = vec![
        EventClass::new(0, "bench:empty", Struct::new()),
        EventClass::new(1, "bench:numbers", numbers),
        EventClass::new(2, "bench:text", text),
        EventClass::new(3, "bench:stack", stack),
    ];
    let clock = Clock::nanoseconds("monotonic", 1_795_185_990_900_000_741);
    Description {
        uuid: Some([7; 16]),
        ..Description::of_events(clock, events)
    }
}

fn write(path: &Path, streams: u32, events: u64) {
    let trace = TraceWriter::create(path, description(), Dialect::V1_8).expect("a directory");
    let each = events / u64::from(streams);
    for cpu in 0..streams {
        let mut options = StreamOptions::for_cpu(0, cpu);
        options.max_packet_bytes = 512 << 10;
        let mut file = trace.stream(&format!("s_{cpu}"), options).expect("a stream");
        let mut time = 1000 + u64::from(cpu);
        for number in 0..each {
            time += 500 + number % 37;
            let writer = file.writer();
            if writer.content_bytes() > (512 << 10) - 1024 {
                file.flush(time).expect("room on the disk");
            }
            let mut event = file.writer().event(number % 4, time);
            match number % 4 {
                0 => {}
                1 => {
                    event.i32(number as i32);
                    event.u64(number * 77_777);
                }
                2 => event.string("text number 1"),
                _ => {
                    event.sequence_len(5);
                    event.u64s(&[0x7f00_0000_1000, 2, 3, 4, number]);
                }
            }
            event.finish().expect("an event");
        }
        file.flush(time).expect("room on the disk");
    }
}

fn write_string(path: &Path, length: usize) {
    let trace = TraceWriter::create(path, description(), Dialect::V1_8).expect("a directory");
    let mut options = StreamOptions::for_cpu(0, 0);
    options.max_packet_bytes = length + 8192;
    let mut file = trace.stream("s_0", options).expect("a stream");
    let mut event = file.writer().event(2, 1000);
    event.string(&"x".repeat(length));
    event.finish().expect("an event");
    file.flush(1000).expect("room on the disk");
}
