//! The events between two times are those that reading all of them finds there, and packets outside
//! are not read.

use backtrail_trace::description::{Clock, Description, EventClass, Integer, Struct};
use backtrail_trace::{
    ClockFormat, Condition, Dialect, Endian, Options, StreamOptions, TextWriter, Trace, TraceWriter, convert_part,
    find_traces, render,
};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

const STREAMS: u64 = 3;
const PACKETS: u64 = 100;
const EVENTS: u64 = 5;
const FIRST: i64 = 1_000_000;

/// Streams whose packets follow each other without a gap, 100 ns long; events are 20 ns apart.
fn write(directory: &Path) {
    let order = Endian::Little;
    let fields = Struct::new().with("n", Integer::unsigned(32, order));
    let mut clock = Clock::nanoseconds("c", 0);
    clock.offset_cycles = FIRST as u64;
    let events = vec![
        EventClass::new(0, "net:a", fields.clone()),
        EventClass::new(1, "disk:b", fields),
    ];
    let description = Description::of_events(clock, events);
    let trace = TraceWriter::create(directory, description, Dialect::V1_8).unwrap();
    for cpu in 0..STREAMS {
        let name = format!("main_{cpu}");
        let mut stream = trace.stream(&name, StreamOptions::for_cpu(0, cpu as u32)).unwrap();
        for packet in 0..PACKETS {
            for index in 0..EVENTS {
                let time = packet * 100 + index * 20 + cpu;
                let mut event = stream.writer().event(index % 2, time);
                event.u32((packet * EVENTS + index) as u32);
                event.finish().unwrap();
            }
            stream.flush(packet * 100 + 90).unwrap();
        }
    }
}

/// As LTTng writes it; with `wrong`, its times are not those of the packets.
fn write_index(directory: &Path, cpu: u64, wrong: bool) {
    let size = fs::metadata(directory.join(format!("main_{cpu}"))).unwrap().len() / PACKETS;
    let mut index: Vec<u8> = [0xc1f1_dcc1u32, 1, 1, 72]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    for packet in 0..PACKETS {
        let shift = if wrong { 4_000 } else { 0 };
        let (begin, end) = (packet * 100 + cpu + shift, packet * 100 + 90 + shift);
        let entry = [packet * size, size * 8, size * 8, begin, end, 0, 0, cpu, packet];
        index.extend(entry.iter().flat_map(|word| word.to_be_bytes()));
    }
    fs::create_dir_all(directory.join("index")).unwrap();
    fs::write(directory.join(format!("index/main_{cpu}.idx")), index).unwrap();
}

fn times(trace: &Trace, options: Options) -> Vec<i64> {
    let mut events = trace.events(options).unwrap();
    let mut times = Vec::new();
    while let Some(event) = events.next().unwrap() {
        times.push(event.time().unwrap());
    }
    times
}

fn between(begin: Option<i64>, end: Option<i64>) -> Options {
    let mut options = Options::default();
    (options.begin, options.end) = (begin, end);
    options
}

#[test]
fn as_if_all_were_read() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("trace");
    write(&directory);
    let trace = Trace::open(&directory).unwrap();
    let all = times(&trace, Options::default());
    assert_eq!(all.len() as u64, STREAMS * PACKETS * EVENTS);
    for index in [None, Some(false), Some(true)] {
        if let Some(wrong) = index {
            (0..STREAMS).for_each(|cpu| write_index(&directory, cpu, wrong));
        }
        for (begin, end) in [
            (None, None),
            (Some(FIRST + 5_000), None),
            (None, Some(FIRST + 5_040)),
            (Some(FIRST + 5_020), Some(FIRST + 5_020)),
            (Some(FIRST + 5_095), Some(FIRST + 5_099)),
            (Some(FIRST - 10), Some(FIRST + 21)),
            (Some(FIRST + 9_981), Some(i64::MAX)),
            (Some(FIRST + 20_000), None),
            (None, Some(0)),
        ] {
            let wanted = |time: &i64| begin.is_none_or(|begin| begin <= *time) && end.is_none_or(|end| *time <= end);
            let expected: Vec<i64> = all.iter().copied().filter(wanted).collect();
            let options = between(begin, end);
            assert_eq!(times(&trace, options), expected, "{index:?} {begin:?} {end:?}");
            let streams = (0..trace.streams().len()).map(|stream| trace.stream(stream, options).unwrap());
            let mut rendered = Vec::new();
            let result = render(
                streams.collect(),
                3,
                |event, bytes| TextWriter::fields(bytes, event),
                |time, _| {
                    rendered.extend(time);
                    ControlFlow::Continue(())
                },
            );
            assert!(result.error.is_none());
            assert_eq!(rendered, expected, "{index:?} {begin:?} {end:?}");
            let events: u64 = result.streams.iter().map(|stream| stream.statistics().events).sum();
            assert_eq!(events, expected.len() as u64);
        }
    }
}

/// Reads of the file, and not the time they take, which depends on the machine.
#[test]
fn packets_outside_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("trace");
    write(&directory);
    write_index(&directory, 0, false);
    let trace = Trace::open(&directory).unwrap();
    let options = between(Some(FIRST + 9_000), Some(FIRST + 9_099));
    for (stream, reads) in [(0, 8), (1, PACKETS)] {
        let mut reader = trace.stream(stream, options).unwrap().fail_after(reads);
        let mut events = 0;
        while reader.next().unwrap().is_some() {
            events += 1;
        }
        assert_eq!(events, EVENTS);
        assert_eq!(reader.statistics().packets, 1);
    }
}

#[test]
fn conditions_choose_events() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("trace");
    write(&directory);
    let trace = Trace::open(&directory).unwrap();
    for (text, expected) in [
        ("name == net:*", STREAMS * PACKETS * 3),
        ("name != net:*", STREAMS * PACKETS * 2),
        ("name = \"disk:?\" && n < 5", STREAMS * 2),
        ("n >= 0x1f3 || fields.n == 0", STREAMS * 2),
        ("cpu == 1", PACKETS * EVENTS),
        ("!(cpu == 1) && n == 7.0", STREAMS - 1),
        ("packet.cpu_id > 0 && n <= 1", (STREAMS - 1) * 2),
        ("n", STREAMS * (PACKETS * EVENTS - 1)),
        ("missing != 3", 0),
        ("!missing", STREAMS * PACKETS * EVENTS),
        ("n == text", 0),
        ("process == 3", 0),
    ] {
        let condition = Condition::parse(text).unwrap();
        let mut events = trace.events(Options::default()).unwrap();
        let mut count = 0;
        while let Some(event) = events.next().unwrap() {
            count += u64::from(condition.matches(&event));
        }
        assert_eq!(count, expected, "{text}");
    }
}

/// Lines without the time since the previous one.
fn lines(directory: &Path, options: Options) -> Vec<u8> {
    let mut events = Trace::open(directory).unwrap().events(options).unwrap();
    let mut writer = TextWriter::new(ClockFormat::Seconds).without_delta();
    let mut text = Vec::new();
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    text
}

/// Parts of our trace and of LTTng's are what showing a part shows, and they pass the check.
#[test]
fn a_part_is_converted() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("trace");
    write(&own);
    let mut directories = vec![own];
    if let Some(corpus) = crate::support::corpus() {
        for case in [
            "lttng-kitchen-ctx",
            "lttng-ctf2-kitchen-ctx",
            "lttng-pid-buffers",
            "lttng-discarded",
        ] {
            directories.extend(find_traces(&corpus.join("cases/recorded").join(case)).unwrap());
        }
    }
    for (number, directory) in directories.iter().enumerate() {
        let trace = Trace::open(directory).unwrap();
        let all = times(&trace, Options::default());
        for (first, last) in [(1, 10), (3, 4), (0, 5), (5, 10), (4, 4)] {
            let time = |tenth: usize| Some(all[(all.len() - 1) * tenth / 10]);
            let options = between(time(first), time(last));
            for dialect in [Dialect::V1_8, Dialect::V2] {
                let part = folder.path().join(format!("part{number}-{first}-{last}-{dialect:?}"));
                assert_eq!(convert_part(&trace, &part, dialect, options).unwrap(), 0);
                let (ours, expected) = (lines(&part, Options::default()), lines(directory, options));
                assert!(
                    ours == expected && !ours.is_empty(),
                    "{} {first} {last}",
                    directory.display()
                );
                assert!(Trace::open(&part).unwrap().check().is_empty());
            }
        }
    }
}

/// barectf can put a text into the context of packets, after which nothing has a fixed place.
#[test]
fn packets_with_a_text_in_their_context_are_cut() {
    const TEXT: &str = "/* CTF 1.8 */
trace { major = 1; minor = 8; byte_order = be; packet.header := struct { integer { size = 32; } magic; }; };
clock { name = c; freq = 1000000000; };
typealias integer { size = 64; map = clock.c.value; } := time;
stream {
    packet.context := struct {
        integer { size = 32; } packet_size; integer { size = 32; } content_size;
        time timestamp_begin; time timestamp_end; string note; integer { size = 8; } cpu_id;
    };
    event.header := struct { time timestamp; };
};
event { name = \"e\"; fields := struct { integer { size = 8; } n; }; };
";
    let folder = tempfile::tempdir().unwrap();
    let [directory, part] = ["trace", "part"].map(|name| folder.path().join(name));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("metadata"), TEXT).unwrap();
    let mut packets = Vec::new();
    for packet in 0..3_u64 {
        let mut events = Vec::new();
        for event in 0..4_u64 {
            events.extend((packet * 100 + event * 10).to_be_bytes());
            events.push((packet * 4 + event) as u8);
        }
        let note = b"why\0\x07";
        let size = (4 + 4 + 4 + 8 + 8 + note.len() + events.len()) as u32 * 8;
        packets.extend(0xc1fc_1fc1_u32.to_be_bytes());
        packets.extend([size.to_be_bytes(), size.to_be_bytes()].concat());
        packets.extend([(packet * 100).to_be_bytes(), (packet * 100 + 40).to_be_bytes()].concat());
        packets.extend(note);
        packets.extend(events);
    }
    fs::write(directory.join("stream"), packets).unwrap();
    let trace = Trace::open(&directory).unwrap();
    let left = convert_part(&trace, &part, Dialect::V1_8, between(Some(20), Some(210))).unwrap();
    assert_eq!(left, 0);
    assert!(Trace::open(&part).unwrap().check().is_empty());
    let expected = [20, 30, 100, 110, 120, 130, 200, 210];
    assert_eq!(times(&Trace::open(&part).unwrap(), Options::default()), expected);
    if let Some(peer) = backtrail_testkit::peers::babeltrace2_2_1() {
        let theirs = peer.command().arg("--clock-cycles").arg(&part).output().unwrap();
        let theirs = String::from_utf8(theirs.stdout).unwrap();
        let numbers: Vec<&str> = theirs
            .lines()
            .map(|line| line.rsplit_once("{ n = ").unwrap().1)
            .collect();
        assert_eq!(numbers, ["2 }", "3 }", "4 }", "5 }", "6 }", "7 }", "8 }", "9 }"]);
    }
}
