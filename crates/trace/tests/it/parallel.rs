//! However many threads read a trace, it says the same: events and their order, errors, statistics.

use backtrail_testkit::text::Random;
use backtrail_trace::description::{
    Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct, packet_context,
};
use backtrail_trace::{
    Dialect, Endian, Event, Events, JsonWriter, Options, Recover, Rendered, Statistics, StreamOptions, StreamReader,
    Trace, TraceWriter, render,
};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Of all streams, but for those that the second one does not have.
const EVENTS: u64 = 60_000;

/// Events of the second stream.
const FEW: u64 = 10;

fn events_of(streams: u32, cpu: u32) -> u64 {
    match cpu {
        1 => FEW,
        _ => EVENTS / u64::from(streams),
    }
}

/// Streams whose times overlap in places, of packets of this many bytes; one of them has hardly
/// any events.
fn write(directory: &Path, streams: u32, packet_bytes: usize, has_times: bool) {
    let fields = Struct::new()
        .with("number", Integer::unsigned(64, Endian::NATIVE))
        .with("text", FieldClass::String(Encoding::Utf8));
    let events = vec![EventClass::new(0, "test:event", fields)];
    let mut description = Description::of_events(Clock::nanoseconds("monotonic", 77), events);
    if !has_times {
        let mut context = packet_context(Endian::NATIVE, 0);
        context.members.drain(..2);
        description.streams[0].packet_context = Some(context);
    }
    let trace = TraceWriter::create(directory, description, Dialect::V1_8).unwrap();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    for cpu in 0..streams {
        let options = StreamOptions {
            max_packet_bytes: packet_bytes,
            ..StreamOptions::for_cpu(0, cpu)
        };
        let mut file = trace.stream(&format!("s_{cpu}"), options).unwrap();
        let mut time = random.below(1_000_000) as u64;
        for number in 0..events_of(streams, cpu) {
            // Sometimes it is the other streams' turn for long.
            time += match random.below(2_000) {
                0 => 10_000_000,
                step => step as u64 % 5,
            };
            if file.writer().content_bytes() > packet_bytes - 256 {
                if random.below(4) == 0 {
                    file.writer().discard(3);
                }
                file.flush(time).unwrap();
                // Packets without events too.
                if random.below(8) == 0 {
                    time += 50;
                    file.flush(time).unwrap();
                }
            }
            let mut event = file.writer().event(0, time);
            event.u64(number);
            event.string(&"text, longer or shorter"[..random.below(24)]);
            event.finish().unwrap();
        }
        file.flush(time).unwrap();
    }
}

fn readers(directory: &Path, options: Options) -> Vec<StreamReader> {
    let trace = Trace::open(directory).unwrap();
    (0..trace.streams().len())
        .map(|index| trace.stream(index, options).unwrap())
        .collect()
}

/// What a stream's reader has counted, and its begin and end.
type Counted = (Statistics, (Option<i64>, Option<i64>));

/// What a reader of the trace learns.
#[derive(PartialEq)]
struct Outcome {
    lines: Vec<(Option<i64>, Vec<u8>)>,
    error: Option<String>,
    statistics: Vec<Counted>,
}

fn statistics(streams: &[StreamReader]) -> Vec<Counted> {
    streams
        .iter()
        .map(|stream| (stream.statistics(), stream.span()))
        .collect()
}

fn alone(directory: &Path, options: Options) -> Outcome {
    let mut events = Events::new(readers(directory, options));
    let mut lines = Vec::new();
    let error = loop {
        match events.next() {
            Ok(Some(event)) => {
                let mut line = Vec::new();
                JsonWriter.event(&mut line, &event);
                lines.push((event.time(), line));
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let statistics = statistics(events.streams());
    Outcome {
        lines,
        error,
        statistics,
    }
}

fn together(directory: &Path, options: Options, threads: usize) -> Outcome {
    let mut lines = Vec::new();
    let Rendered { streams, error } = render(
        readers(directory, options),
        threads,
        |event: &Event<'_>, bytes: &mut Vec<u8>| JsonWriter.event(bytes, event),
        |time, bytes| {
            lines.push((time, bytes.to_vec()));
            ControlFlow::Continue(())
        },
    );
    Outcome {
        lines,
        error: error.map(|error| error.to_string()),
        statistics: statistics(&streams),
    }
}

fn compare(what: &str, directory: &Path, options: Options) -> Outcome {
    let alone = alone(directory, options);
    for threads in [1, 2, 3, 8] {
        let mut together = together(directory, options, threads);
        let first = alone
            .lines
            .iter()
            .zip(&together.lines)
            .position(|(one, other)| one != other);
        assert_eq!(first, None, "{what}, {threads} threads");
        assert_eq!(alone.lines.len(), together.lines.len(), "{what}, {threads} threads");
        assert_eq!(alone.error, together.error, "{what}, {threads} threads");
        // After an error, threads may be further than anybody asked for.
        if alone.error.is_some() {
            together.statistics.clone_from(&alone.statistics);
        }
        assert_eq!(alone.statistics, together.statistics, "{what}, {threads} threads");
    }
    alone
}

#[test]
fn streams_of_all_sizes() {
    for (streams, packet_bytes, has_times) in [
        (1, 4096, true),
        (1, 128 << 10, true),
        (2, 16 << 10, true),
        (3, 256 << 10, true),
        (2, 8192, false),
        (40, 8192, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("trace");
        write(&directory, streams, packet_bytes, has_times);
        let what = format!("{streams} streams, packets of {packet_bytes}, times: {has_times}");
        let outcome = compare(&what, &directory, Options::default());
        assert_eq!(outcome.error, None);
        let events: u64 = (0..streams).map(|cpu| events_of(streams, cpu)).sum();
        assert_eq!(outcome.lines.len() as u64, events);
    }
}

/// A bit is wrong somewhere: in headers of packets, of events, in times.
#[test]
fn damaged_streams() {
    damaged(2, 8192, 8);
    // In groups.
    damaged(40, 1024, 3);
}

fn damaged(streams: u32, packet_bytes: usize, all_rounds: usize) {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("trace");
    write(&directory, streams, packet_bytes, true);
    let file = directory.join("s_0");
    let sound = fs::read(&file).unwrap();
    let packets = sound.len() / packet_bytes;
    assert!(packets > 30, "{packets}");
    let mut random = Random::new(4711);
    let (mut errors, mut rounds) = (0, 0);
    while rounds < all_rounds {
        let mut damaged = sound.clone();
        let packet = random.below(packets) * packet_bytes;
        let place = packet + random.below(if rounds % 2 == 0 { 90 } else { packet_bytes });
        damaged[place] ^= 1 << random.below(8);
        if rounds % 8 == 7 {
            damaged.truncate(place);
        }
        fs::write(&file, damaged).unwrap();
        for recover in [Recover::Never, Recover::EndStream, Recover::NextPacket] {
            let options = Options {
                recover,
                ..Options::default()
            };
            let outcome = compare(&format!("byte {place}, {recover:?}"), &directory, options);
            errors += usize::from(outcome.error.is_some());
        }
        rounds += 1;
    }
    assert!(errors > 0 || streams > 2, "{errors}");
}

/// Who has enough need not take the rest.
#[test]
fn taken_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("trace");
    write(&directory, 2, 16 << 10, true);
    for threads in [1, 2, 5] {
        for wanted in [1, 1_000, 9_999] {
            let mut taken = 0;
            let rendered = render(
                readers(&directory, Options::default()),
                threads,
                |_, bytes| bytes.push(b'x'),
                |_, bytes| {
                    assert_eq!(bytes, b"x");
                    taken += 1;
                    match taken < wanted {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                },
            );
            assert_eq!((taken, rendered.streams.len()), (wanted, 2));
            assert!(rendered.error.is_none());
        }
    }
}
