//! What we write is read by us, by both series of babeltrace2, and what it can read by babeltrace
//! 1.5, with the same text and without a warning.

use crate::support;
use backtrail_testkit::peers::{Peer, babeltrace1, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_trace::description::{
    Array, Clock, Description, Encoding, EnvironmentValue, EventClass, FieldClass, Float, Integer, Reference,
    StreamClass, Struct, compact_event_header, packet_context, packet_header,
};
use backtrail_trace::{
    ClockFormat, Dialect, Events, LineStyle, Options, StreamOptions, TextWriter, Trace, TraceWriter, json2, tsdl,
};
use backtrail_wire::Endian;
use std::path::Path;

fn our_text(directory: &Path) -> (String, u64) {
    let trace = Trace::open(directory).unwrap();
    let mut events: Events = trace.events(Options::default()).unwrap();
    let mut text = Vec::new();
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    let statistics = events.statistics();
    assert_eq!(
        (statistics.discarded, statistics.lost_packets, statistics.damaged),
        (0, 0, 0)
    );
    (String::from_utf8(text).unwrap(), statistics.events)
}

fn peer_text(peer: &Peer, directory: &Path) -> String {
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{}: {errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

fn compare(ours: &str, theirs: &str) {
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", number + 1);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

fn every_class(dialect: Dialect, order: Endian, peers: &[Option<Peer>]) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let written = support::write_trace(&directory, dialect, order);
    let (ours, events) = our_text(&directory);
    assert_eq!(events, written);
    for peer in peers.iter().flatten() {
        compare(&ours, &peer_text(peer, &directory));
    }
}

#[test]
fn little_endian_1_8() {
    every_class(Dialect::V1_8, Endian::Little, &[babeltrace2_2_0(), babeltrace2_2_1()]);
}

#[test]
fn big_endian_1_8() {
    every_class(Dialect::V1_8, Endian::Big, &[babeltrace2_2_0(), babeltrace2_2_1()]);
}

#[test]
fn little_endian_2() {
    every_class(Dialect::V2, Endian::Little, &[babeltrace2_2_1()]);
}

#[test]
fn big_endian_2() {
    every_class(Dialect::V2, Endian::Big, &[babeltrace2_2_1()]);
}

/// Names, fields and clocks as its options print them.
#[test]
fn names_and_fields_are_those_of_babeltrace2() {
    let Some(peer) = babeltrace2_2_0() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    support::write_trace(&directory, Dialect::V1_8, Endian::Little);
    let plain = || {
        let mut style = LineStyle::default();
        (style.context_names, style.payload_names) = (false, false);
        style
    };
    let styled = |change: fn(&mut LineStyle), mut style: LineStyle| {
        change(&mut style);
        style
    };
    let all = |style: &mut LineStyle| {
        (style.context_names, style.payload_names) = (true, true);
        (style.header_names, style.scope_names) = (true, true);
    };
    let fields = |style: &mut LineStyle| (style.domain, style.level) = (true, true);
    let every = "trace:hostname,trace:domain,trace:procname,trace:vpid,loglevel";
    let cases: [(&[&str], LineStyle, ClockFormat); 9] = [
        (&["--names=none"], plain(), ClockFormat::Seconds),
        (&["--names=all"], styled(all, plain()), ClockFormat::Seconds),
        (
            &["--names=header"],
            styled(|style| style.header_names = true, plain()),
            ClockFormat::Seconds,
        ),
        (
            &["--names=scope"],
            styled(|style| style.scope_names = true, plain()),
            ClockFormat::Seconds,
        ),
        (
            &["--names=context"],
            styled(|style| style.context_names = true, plain()),
            ClockFormat::Seconds,
        ),
        (
            &["--names=payload"],
            styled(|style| style.payload_names = true, plain()),
            ClockFormat::Seconds,
        ),
        (
            &["--fields", every],
            styled(fields, LineStyle::default()),
            ClockFormat::Seconds,
        ),
        (
            &["--names=all", "--fields", every],
            styled(fields, styled(all, plain())),
            ClockFormat::Seconds,
        ),
        (&["--clock-cycles"], LineStyle::default(), ClockFormat::Cycles),
    ];
    for (arguments, style, format) in cases {
        let clock = if format == ClockFormat::Seconds {
            "--clock-seconds"
        } else {
            "--clock-cycles"
        };
        let mut command = peer.command();
        let output = command.arg(clock).args(arguments).arg(&directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut events = Trace::open(&directory).unwrap().events(Options::default()).unwrap();
        let (mut text, mut writer) = (Vec::new(), TextWriter::new(format).styled(style));
        while let Some(event) = events.next().unwrap() {
            writer.event(&mut text, &event);
        }
        compare(
            &String::from_utf8_lossy(&text),
            &String::from_utf8_lossy(&output.stdout),
        );
    }
}

/// What babeltrace 1.5 can read: fields of whole bytes. It puts the option's name into a variant
/// and quotes nothing in texts, so there is neither.
#[test]
fn whole_bytes_for_babeltrace_1_5() {
    for order in [Endian::Little, Endian::Big] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        write_whole_bytes(&directory, order);
        let (ours, events) = our_text(&directory);
        assert_eq!(events, 1500);
        for peer in [babeltrace1(), babeltrace2_2_0(), babeltrace2_2_1()].iter().flatten() {
            compare(&ours, &peer_text(peer, &directory));
        }
    }
}

fn write_whole_bytes(directory: &Path, order: Endian) {
    let unsigned = |size| Integer::unsigned(size, order);
    let numbers = Struct::new()
        .with("a", Integer::signed(32, order))
        .with("b", unsigned(64).hexadecimal())
        .with("c", unsigned(16))
        .with(
            "half",
            Float {
                size: 64,
                align: 8,
                byte_order: order,
                reversed: false,
            },
        );
    let text = Struct::new()
        .with("small", unsigned(8))
        .with("s", FieldClass::String(Encoding::Utf8))
        .with("ips", Array::fixed(3, unsigned(64).hexadecimal()));
    let length = Reference::payload(&["_ips_length"]);
    let stack = Struct::new()
        .with("_ips_length", unsigned(16))
        .with("ips", Array::sequence(length, unsigned(64).hexadecimal()));
    let events = vec![
        EventClass::new(0, "test:empty", Struct::new()),
        EventClass::new(1, "test:numbers", numbers),
        EventClass::new(2, "test:text", text),
        EventClass::new(3, "test:stack", stack),
    ];
    let description = Description {
        byte_order: Some(order),
        // Without any it prints a 0 for what is not there.
        environment: vec![("hostname".into(), EnvironmentValue::String("host".into()))],
        clocks: vec![Clock::nanoseconds("monotonic", 1_700_000_000_000_000_000)],
        packet_header: Some(packet_header(order)),
        streams: vec![StreamClass {
            clock: Some(0),
            packet_context: Some(packet_context(order, 0)),
            event_header: Some(compact_event_header(order, 0)),
            events,
            ..StreamClass::default()
        }],
        ..Description::default()
    };
    let trace = TraceWriter::create(directory, description, Dialect::V1_8).unwrap();
    for cpu in 0..3 {
        let mut stream = trace
            .stream(&format!("s_{cpu}"), StreamOptions::for_cpu(0, cpu))
            .unwrap();
        let mut time = 1_000 + u64::from(cpu);
        for number in 0..500 {
            // Now and then further than what the header's 27 bits say.
            time += if number % 50 == 7 { 1 << 28 } else { 777 };
            let mut event = stream.writer().event(number % 4, time);
            match number % 4 {
                0 => {}
                1 => {
                    event.i32(-(number as i32));
                    event.u64(number << 40);
                    event.u16(number as u16);
                    event.f64(number as f64 / 8.0);
                }
                2 => {
                    event.u8(number as u8);
                    event.string("text, as it is");
                    event.u64s(&[1, 2, number]);
                }
                _ => {
                    let ips: Vec<u64> = (0..number % 20).map(|frame| 0x7f00_0000_1000 + frame).collect();
                    event.sequence_len(ips.len());
                    event.u64s(&ips);
                }
            }
            event.finish().unwrap();
            if number % 100 == 99 {
                stream.flush(time).unwrap();
            }
        }
    }
}

#[test]
fn both_dialects_say_the_same() {
    for order in [Endian::Little, Endian::Big] {
        let description = support::description(order);
        assert_eq!(
            tsdl::parse(&tsdl::write(&description).unwrap()).unwrap().streams,
            description.streams
        );
        let mut from_json = json2::parse(&json2::write(&description).unwrap()).unwrap();
        // CTF 2 has no byte order for the whole trace, and for single bytes any is as good.
        from_json.byte_order = Some(order);
        let text = |description| tsdl::write(description).unwrap();
        let lines = |text: String| -> String {
            let line = |line: &str| match line.contains("size = 8;") {
                true => line.replace(" byte_order = le;", "") + "\n",
                false => line.to_owned() + "\n",
            };
            text.lines().map(line).collect()
        };
        compare(&lines(text(&description)), &lines(text(&from_json)));
    }
}

/// Its sink writes a clock once for each class of streams.
#[test]
fn what_babeltrace2s_sink_writes() {
    const METADATA: &str = "/* CTF 1.8 */
typealias integer { size = 64; align = 8; } := u64;
typealias integer { size = 32; align = 8; } := u32;
trace { major = 1; minor = 8; byte_order = le; packet.header := struct { u32 magic; u32 stream_id; }; };
clock { name = c; freq = 1000000000; };
typealias integer { size = 64; align = 8; map = clock.c.value; } := time;
stream { id = 0; packet.context := struct { time timestamp_begin; time timestamp_end; };
  event.header := struct { time timestamp; }; };
stream { id = 1; packet.context := struct { time timestamp_begin; time timestamp_end; };
  event.header := struct { time timestamp; }; };
event { name = e; stream_id = 0; fields := struct { u32 a; }; };
event { name = f; stream_id = 1; fields := struct { u32 a; }; };
";
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    std::fs::create_dir(&trace).unwrap();
    std::fs::write(trace.join("metadata"), METADATA).unwrap();
    for class in 0..2u32 {
        let mut packet = [0xc1fc_1fc1u32.to_le_bytes(), class.to_le_bytes()].concat();
        packet.extend([10u64.to_le_bytes(), 100u64.to_le_bytes()].concat());
        for number in 0..3u32 {
            packet.extend((10 + u64::from(number) * 10 + u64::from(class)).to_le_bytes());
            packet.extend(number.to_le_bytes());
        }
        std::fs::write(trace.join(format!("s{class}")), packet).unwrap();
    }
    let (expected, _) = our_text(&trace);
    assert_eq!(expected.lines().count(), 6);
    for (peer, version) in [
        (babeltrace2_2_0(), None),
        (babeltrace2_2_1(), Some("1")),
        (babeltrace2_2_1(), Some("2")),
    ] {
        let Some(peer) = peer else { continue };
        let sunk = folder.path().join(format!("sunk{}", version.unwrap_or_default()));
        let mut parameters = format!("path=\"{}\"", sunk.display());
        if let Some(version) = version {
            parameters += &format!(",ctf-version=\"{version}\"");
        }
        let mut command = peer.command();
        command
            .arg(&trace)
            .args(["--component=sink.ctf.fs", "--params", &parameters]);
        assert!(command.output().unwrap().status.success());
        assert_eq!(our_text(&sunk.join("trace")).0, expected, "{version:?}");
    }
}

/// A trace of 1.8 with one event class of these fields, and an event for each content.
fn by_hand(directory: &Path, fields: &str, contents: &[&[u8]]) {
    std::fs::create_dir_all(directory).unwrap();
    let metadata = format!(
        "/* CTF 1.8 */\ntypealias integer {{ size = 8; align = 8; }} := u8;\n\
         trace {{ major = 1; minor = 8; byte_order = be; packet.header := \
         struct {{ integer {{ size = 32; align = 8; }} magic; }}; }};\n\
         stream {{ }};\nevent {{ name = e; fields := struct {{ {fields} }}; }};\n"
    );
    std::fs::write(directory.join("metadata"), metadata).unwrap();
    let mut stream = vec![0xc1, 0xfc, 0x1f, 0xc1];
    stream.extend(contents.concat());
    std::fs::write(directory.join("stream"), stream).unwrap();
}

/// Negative numbers in bases whose digits do not divide their size.
#[test]
fn negative_numbers_in_other_bases() {
    let directory = tempfile::tempdir().unwrap();
    let mut fields = String::new();
    // babeltrace2 prints hexadecimal numbers of 61 to 63 bits as 0.
    for size in 1..=64 {
        for base in [2, 8, 10, 16] {
            if base == 16 && (61..=63).contains(&size) {
                continue;
            }
            for signed in [true, false] {
                fields += &format!(
                    "integer {{ size = {size}; align = 64; base = {base}; signed = {signed}; }} f{size}_{base}_{signed};\n"
                );
            }
        }
    }
    // The header has four bytes, and fields begin after eight.
    let count = fields.lines().count() * 8;
    let padding = [0; 4];
    let contents = [0xff, 0x80, 0x40, 0xa5].map(|byte| vec![byte; count]);
    let mut all: Vec<&[u8]> = vec![&padding];
    all.extend(contents.iter().map(Vec::as_slice));
    by_hand(directory.path(), &fields, &all);
    let (ours, _) = our_text(directory.path());
    assert_eq!(ours.lines().count(), 4);
    for peer in [babeltrace2_2_0(), babeltrace2_2_1()].iter().flatten() {
        compare(&ours, &peer_text(peer, directory.path()));
    }
}

/// Labels that begin with an underscore name the options of variants as they are.
#[test]
fn options_with_an_underscore() {
    let directory = tempfile::tempdir().unwrap();
    let (original, again) = (directory.path().join("original"), directory.path().join("again"));
    by_hand(
        &original,
        "enum : u8 { _a = 0, b = 1, __c = 2 } t; variant <t> { u8 _a; string b; struct { u8 in; } __c; } v;",
        &[b"\0\x07", b"\x01text\0", b"\x02\x09"],
    );
    let (ours, _) = our_text(&original);
    std::fs::create_dir_all(&again).unwrap();
    let description = Trace::open(&original).unwrap().description().clone();
    std::fs::write(again.join("metadata"), tsdl::write(&description).unwrap()).unwrap();
    std::fs::copy(original.join("stream"), again.join("stream")).unwrap();
    assert_eq!(our_text(&again).0, ours);
    for peer in [babeltrace2_2_0(), babeltrace2_2_1(), babeltrace1()].iter().flatten() {
        let theirs = peer_text(peer, &again);
        assert_eq!(theirs, peer_text(peer, &original));
        assert_eq!(theirs.lines().count(), 3);
    }
}
