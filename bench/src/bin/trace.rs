//! Measures how fast traces are read, beside babeltrace2 2.1, babeltrace 1.5 and (for barectf's
//! traces) barectf-parser, in one run: events per second of processor time.
//!
//! `cargo run --release --bin trace [PART] [EVENTS]`. Parts are `lttng` (recorded by LTTng-UST with
//! two processes at once), `barectf`, `own` (one and two streams of our writer), `streams` (64 of
//! them) and `string` (one event with a text of 1 MiB). Without a part all of them run, and with at
//! least 5,000,000 events, the default, `docs/trace-speed.md` is written. `lttng`, `barectf` and
//! `own` also read four times as many events. A part whose tracer is not available is left out.
//! Reads from the page cache: each trace is read once before.

use std::fmt::Write;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use backtrail_testkit::peers::{Barectf, Lttng, Peer, babeltrace1, babeltrace2_2_1};
use backtrail_testkit::{place, scratch};
use backtrail_trace::description::{
    Array, Clock, Description, Encoding, EventClass, FieldClass, Integer, Reference, Struct,
};
use backtrail_trace::{
    ClockFormat, Dialect, Events, JsonWriter, Options, StreamOptions, StreamReader, TextWriter, Trace, TraceWriter,
    find_traces, render,
};
use backtrail_wire::Endian;

const EVENTS: u64 = 5_000_000;
const ROUNDS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        // A child of this program: measures one reader.
        [reader, path] if reader == BARECTF_PARSER || OURS.contains(&reader.as_str()) => {
            return child(reader, Path::new(path));
        }
        _ => {}
    }
    let events = arguments.iter().find_map(|text| text.parse().ok()).unwrap_or(EVENTS);
    let part = arguments.iter().find(|text| text.parse::<u64>().is_err());
    let part = part.map_or("", String::as_str);
    if !PARTS.contains(&part) {
        eprintln!("no such part: {part}; there are {}", PARTS[1..].join(", "));
        return ExitCode::FAILURE;
    }
    let page = report(part, events);
    // Fewer events show whether it works, not how fast it is.
    if part.is_empty() && events >= EVENTS {
        let path = place::workspace().join("docs/trace-speed.md");
        std::fs::write(path, page).expect("the workspace can be written");
    }
    ExitCode::SUCCESS
}

/// All of them, and each.
const PARTS: [&str; 6] = ["", "lttng", "barectf", "own", "streams", "string"];

const ABOUT: &str = "# How fast traces are read

Made by `cargo run --release --bin trace` in `bench/`: million events per second of processor time and
of the clock, the best of three rounds in which all readers took turns, and the largest memory of each.
In brackets, the factor over babeltrace2: over its dummy sink for readers that print nothing, over its
text for text and JSON. LTTng-UST was recorded from two processes at once, with the contexts vpid and
vtid: empty events, numbers, texts, stacks of 3 to 16 frames; barectf's two streams have similar events.
barectf-parser is a crate that reads one stream after the other. On a busy machine, ratios are more
reliable than figures.
";

/// Compares all readers on the traces of a part, or on all; returns the page, which is also printed
/// as it grows.
fn report(part: &str, events: u64) -> String {
    let folder = scratch();
    let readers = Readers {
        babeltrace2: babeltrace2_2_1(),
        babeltrace1: babeltrace1(),
    };
    let mut page = ABOUT.to_owned();
    let mut add = |section: String| {
        print!("{section}");
        page.push_str(&section);
    };
    let is_wanted = |name| part.is_empty() || part == name;
    let sizes = [("", events), (", 4 times as long", 4 * events)];
    if is_wanted("lttng")
        && let Some(lttng) = Lttng::start()
    {
        for (size, events) in sizes {
            let trace = record_lttng(&lttng, events);
            add(readers.compare(&format!("LTTng-UST{size}"), &trace));
            let _ = std::fs::remove_dir_all(trace);
        }
    }
    let trace = folder.path().join("trace");
    if is_wanted("barectf")
        && let Some(barectf) = Barectf::tracer("barectf")
    {
        let description = barectf_description(&trace);
        std::fs::write(&description, barectf.whole_description()).expect("room on the disk");
        for (size, events) in sizes {
            barectf.record(&trace, 2, events / 2);
            add(readers.compare(&format!("barectf{size}"), &trace));
            let _ = std::fs::remove_dir_all(&trace);
        }
        let _ = std::fs::remove_file(description);
    }
    for (part, what, streams, events) in [
        ("own", "our writer, 1 stream", 1, events),
        ("own", "our writer, 2 streams", 2, events),
        ("own", "our writer, 2 streams, 4 times as long", 2, 4 * events),
        ("streams", "our writer, 64 streams", 64, events),
    ] {
        if is_wanted(part) {
            write(&trace, streams, events);
            add(readers.compare(what, &trace));
            let _ = std::fs::remove_dir_all(&trace);
        }
    }
    if is_wanted("string") {
        write_string(&trace, 1 << 20);
        add(readers.time_text(&trace));
    }
    page
}

fn record_lttng(lttng: &Lttng, events: u64) -> PathBuf {
    let channel = ["--subbuf-size=1M", "--num-subbuf=8", "--blocking-timeout=inf"];
    let count = (events / 2).to_string();
    lttng.record(&format!("lttng{events}"), &channel, &["vpid", "vtid"], |lttng| {
        std::thread::scope(|scope| {
            let half = || lttng.events(&[&count]);
            let other = scope.spawn(half);
            half();
            other.join().expect("the program ran");
        });
    })
}

/// The path at which barectf-parser finds the description of a trace: beside it.
fn barectf_description(trace: &Path) -> PathBuf {
    trace.with_extension("yaml")
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
            add(BABELTRACE2_DUMMY, peer, &["--component=sink.utils.dummy"]);
            add(BABELTRACE2_TEXT, peer, &[]);
        }
        if let Some(peer) = &self.babeltrace1 {
            add("babeltrace 1.5, dummy", peer, &["--output-format=dummy"]);
            add("babeltrace 1.5, text", peer, &[]);
        }
        let barectf = barectf_description(trace).exists().then_some(BARECTF_PARSER);
        for name in barectf.into_iter().chain(OURS) {
            let Ok(me) = std::env::current_exe() else { continue };
            let mut command = Command::new(me);
            command.arg(name).arg(trace);
            all.push((name, command));
        }
        all
    }

    /// The figures of all readers of a trace.
    fn compare(&self, what: &str, trace: &Path) -> String {
        let events = count(trace);
        let bytes: u64 = streams(trace).iter().map(StreamReader::file_bytes).sum();
        let mut best: Vec<Option<Figures>> = Vec::new();
        for _ in 0..ROUNDS {
            let all = self.all(trace);
            best.resize(all.len(), None);
            for (best, (name, mut command)) in best.iter_mut().zip(all) {
                let measured = measure(name, &mut command);
                *best = match (*best, measured) {
                    (Some(old), Some(new)) => Some(old.better(new)),
                    (_, new) => new,
                };
            }
        }
        let mut page = format!("\n## {what}: {events} events, {} bytes each\n\n", bytes / events.max(1));
        page.push_str("| | of processor time | of the clock | MiB |\n|---|---|---|---|\n");
        let best: Vec<Figures> = best.into_iter().flatten().collect();
        for figures in &best {
            let prints = figures.name.contains("text") || figures.name.contains("JSON");
            let peer = if prints { BABELTRACE2_TEXT } else { BABELTRACE2_DUMMY };
            let peer = best.iter().find(|figures| figures.name == peer);
            let ratio = |time: fn(&Figures) -> Duration| {
                let ratio = peer.map(|peer| time(peer).as_secs_f64() / time(figures).as_secs_f64());
                ratio.map_or(String::new(), |ratio| format!(" ({ratio:.1})"))
            };
            let rate = |time: Duration| events as f64 / 1e6 / time.as_secs_f64();
            let (cpu, wall) = (rate(figures.cpu), rate(figures.wall));
            let (of_cpu, of_wall) = (ratio(|figures| figures.cpu), ratio(|figures| figures.wall));
            // Writing to a String cannot fail.
            let _ = writeln!(
                page,
                "| {} | {cpu:.2}{of_cpu} | {wall:.2}{of_wall} | {} |",
                figures.name,
                figures.kilobytes >> 10
            );
        }
        page
    }

    /// How long the text of a trace takes.
    fn time_text(&self, trace: &Path) -> String {
        let mut page = "\n## One event with a text of 1 MiB, as text\n\n| | ms |\n|---|---|\n".to_owned();
        let all = self.all(trace).into_iter();
        for (name, mut command) in all.filter(|(name, _)| name.contains("text")) {
            let start = Instant::now();
            let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            let time = match done.is_ok_and(|status| status.success()) {
                true => format!("{:.1}", start.elapsed().as_secs_f64() * 1e3),
                false => "failed".to_owned(),
            };
            let _ = writeln!(page, "| {name} | {time} |");
        }
        page
    }
}

const BARECTF_PARSER: &str = "barectf-parser 0.3";
const BABELTRACE2_DUMMY: &str = "babeltrace2 2.1, dummy sink";
const BABELTRACE2_TEXT: &str = "babeltrace2 2.1, text";

/// The cost of a reader.
#[derive(Clone, Copy)]
struct Figures {
    name: &'static str,
    cpu: Duration,
    wall: Duration,
    kilobytes: u64,
}

impl Figures {
    fn better(self, other: Figures) -> Figures {
        Figures {
            name: self.name,
            cpu: self.cpu.min(other.cpu),
            wall: self.wall.min(other.wall),
            kilobytes: self.kilobytes.max(other.kilobytes),
        }
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

/// The cost of a command, as measured by GNU time.
fn measure(name: &'static str, command: &mut Command) -> Option<Figures> {
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
    output.status.success().then(|| Figures {
        name,
        cpu: seconds(user + system),
        wall: seconds(wall),
        kilobytes: memory as u64,
    })
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

/// Reads stream after stream with barectf-parser, whose packets contain all events and their
/// values; returns the number of events.
fn read_with_barectf_parser(path: &Path) -> u64 {
    let description = std::fs::read_to_string(barectf_description(path)).expect("a description");
    let description = serde_yaml::from_str(&description).expect("a description that it knows");
    let parser = barectf_parser::Parser::new(&description).expect("a description that it takes");
    let mut events = 0;
    for stream in Trace::open(path).expect("a trace").streams() {
        let mut stream = BufReader::with_capacity(1 << 18, File::open(stream).expect("a stream"));
        while !stream.fill_buf().expect("a stream").is_empty() {
            let packet = parser.parse(&mut stream).expect("a packet that it takes");
            events += packet.events.len() as u64;
        }
    }
    events
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
        BARECTF_PARSER => {
            black_box(read_with_barectf_parser(path));
        }
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
