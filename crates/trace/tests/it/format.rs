//! Bytes and errors, one by one.

use crate::support;
use backtrail_trace::description::Integer;
use backtrail_trace::{
    Description, DescriptionErrorKind, Dialect, EncodeError, Options, Plan, StreamOptions, StreamWriter, Trace,
    TraceErrorKind, TraceWriter, json2, tsdl,
};
use backtrail_wire::{Bytes, Endian};
use std::sync::Arc;

/// Bytes of LTTng's packet header and packet context.
const HEADERS: usize = 4 + 16 + 4 + 8 + 6 * 8 + 4;

fn small() -> Description {
    let mut description = support::description(Endian::Little);
    let streams = &mut description.streams;
    for class in streams.iter_mut() {
        class.event_context = None;
        class.events[0].payload = Some(
            backtrail_trace::description::Struct::new()
                .with("a", Integer::unsigned(16, Endian::Little))
                .with("b", Integer::signed(8, Endian::Little)),
        );
        for event in &mut class.events {
            event.context = None;
        }
    }
    description
}

fn writer(max_packet_bytes: usize) -> StreamWriter {
    let options = StreamOptions {
        max_packet_bytes,
        ..StreamOptions::for_cpu(0, 3)
    };
    StreamWriter::new(Arc::new(Plan::new(small()).unwrap()), options).unwrap()
}

fn put(writer: &mut StreamWriter, timestamp: u64) -> Result<(), EncodeError> {
    let mut event = writer.event(0, timestamp);
    event.u16(0x1234);
    event.signed(-1);
    event.finish()
}

#[test]
fn the_compact_header_is_lttngs() {
    let mut writer = writer(1 << 20);
    let begin = 0x1_2345_6789u64;
    writer.begin(begin);
    put(&mut writer, begin + 1).unwrap();
    put(&mut writer, begin + (1 << 27)).unwrap();
    put(&mut writer, begin + (1 << 28)).unwrap();
    let mut event = writer.event(support::STACK, begin + (1 << 28));
    event.sequence_len(0);
    event.finish().unwrap();
    let mut event = writer.front_event(support::EMPTY);
    event.u8(1);
    assert_eq!(event.finish(), Err(EncodeError::WrongField));
    writer.front_event(support::EMPTY).finish().unwrap();
    let packet = writer.finish(0).unwrap();
    let mut cursor = Bytes::new(&packet[HEADERS..], Endian::Little).cursor(0);
    // Id 1 in the low 5 bits, and the packet's own begin.
    assert_eq!(cursor.u32().unwrap(), 1 | ((begin as u32) << 5));
    assert_eq!(cursor.u32().unwrap(), ((begin + 1) as u32) << 5);
    assert_eq!(cursor.slice(3).unwrap(), [0x34, 0x12, 0xff]);
    // 2^27 - 1 cycles after the event before: the short form still says it.
    assert_eq!(cursor.u32().unwrap(), ((begin + (1 << 27)) as u32) << 5);
    cursor.slice(3).unwrap();
    // 2^27 cycles after it: the long form, 13 bytes.
    assert_eq!(cursor.u8().unwrap(), 31);
    assert_eq!((cursor.u32().unwrap(), cursor.u64().unwrap()), (0, begin + (1 << 28)));
    cursor.slice(3).unwrap();
    // An id above 30: the long form too.
    assert_eq!(cursor.u8().unwrap(), 31);
    assert_eq!(
        (cursor.u32().unwrap(), cursor.u64().unwrap()),
        (support::STACK as u32, begin + (1 << 28))
    );
    assert_eq!(cursor.u16().unwrap(), 0);
    let content = HEADERS + cursor.offset();
    let context = Bytes::new(packet, Endian::Little);
    let values: Vec<u64> = (0..6).map(|index| context.u64(32 + index * 8).unwrap()).collect();
    assert_eq!(values, [begin, begin + (1 << 28), content as u64 * 8, 4096 * 8, 0, 0]);
    assert_eq!(
        (context.u32(80).unwrap(), context.u32(0).unwrap(), packet.len()),
        (3, 0xc1fc_1fc1, 4096)
    );
}

#[test]
fn timestamps_never_go_back() {
    let mut writer = writer(1 << 20);
    put(&mut writer, 1000).unwrap();
    put(&mut writer, 10).unwrap();
    let first = Bytes::new(writer.finish(5).unwrap(), Endian::Little).u64(40).unwrap();
    assert_eq!(first, 1000);
    put(&mut writer, 7).unwrap();
    let packet = Bytes::new(writer.finish(0).unwrap(), Endian::Little);
    assert_eq!(
        (
            packet.u64(32).unwrap(),
            packet.u64(40).unwrap(),
            packet.u64(64).unwrap()
        ),
        (1000, 1000, 1)
    );
}

#[test]
fn a_full_packet_refuses_and_stays() {
    let mut writer = writer(4096);
    let mut events = 0;
    let error = loop {
        match put(&mut writer, 1) {
            Ok(()) => events += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, writer.events()), (EncodeError::Full, events));
    assert_eq!(events as usize, (4096 - HEADERS) / 7);
    assert_eq!(writer.finish(1).unwrap().len(), 4096);
    put(&mut writer, 1).unwrap();
    let mut event = writer.event(support::STACK, 1);
    event.sequence_len(1000);
    event.u64s(&[0; 1000]);
    assert_eq!(event.finish(), Err(EncodeError::TooLarge));
    assert_eq!(writer.events(), 1);
}

#[test]
fn wrong_values_leave_no_trace() {
    let mut writer = writer(4096);
    let empty = writer.content_bytes();
    let mut event = writer.event(0, 1);
    event.u32(0x1_0000);
    event.signed(1);
    assert_eq!(event.finish(), Err(EncodeError::OutOfRange(0x1_0000)));
    let mut event = writer.event(0, 1);
    event.string("no number");
    assert_eq!(event.finish(), Err(EncodeError::WrongField));
    let mut event = writer.event(0, 1);
    event.u16(1);
    assert_eq!(event.finish(), Err(EncodeError::MissingField));
    drop(writer.event(0, 1));
    assert_eq!(writer.event(77, 1).finish(), Err(EncodeError::UnknownEventClass(77)));
    assert_eq!((writer.content_bytes(), writer.events()), (empty, 0));
}

#[test]
fn what_was_dropped_is_counted() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let trace = TraceWriter::create(&directory, small(), Dialect::V2).unwrap();
    let mut stream = trace.stream("s", StreamOptions::for_cpu(0, 0)).unwrap();
    let mut lost = trace.stream("t", StreamOptions::for_cpu(0, 1)).unwrap();
    for packet in 0..3 {
        put(stream.writer(), packet).unwrap();
        stream.writer().discard(packet * 2 + 1);
        stream.flush(packet).unwrap();
        put(lost.writer(), packet).unwrap();
        if packet == 1 {
            lost.writer().finish(packet).unwrap();
        } else {
            lost.flush(packet).unwrap();
        }
    }
    assert!(trace.stream("s", StreamOptions::for_cpu(0, 0)).is_err());
    let mut events = Trace::open(&directory).unwrap().events(Options::default()).unwrap();
    let mut times = Vec::new();
    while let Some(event) = events.next().unwrap() {
        assert_eq!(event.field("b").unwrap().as_i64(), Some(-1));
        times.push(event.cycles().unwrap());
    }
    assert_eq!(times, [0, 0, 1, 2, 2]);
    let statistics = events.statistics();
    assert_eq!(
        (statistics.discarded, statistics.lost_packets, statistics.packets),
        (1 + 3 + 5, 1, 5)
    );
}

#[test]
fn values_are_lent_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    support::write_trace(&directory, Dialect::V1_8, Endian::Big);
    let mut events = Trace::open(&directory).unwrap().stream(0, Options::default()).unwrap();
    let mut seen = 0;
    while let Some(event) = events.next().unwrap() {
        if event.name() != "test:everything" {
            continue;
        }
        assert_eq!(event.field("vpid").unwrap().as_u64(), Some(1234));
        assert_eq!(event.field("cpu_id").unwrap().as_u64(), Some(0));
        assert_eq!(event.field("procname").unwrap().as_str(), Some("proc ä"));
        let fields = event.payload().unwrap();
        let number = fields.get("u8").unwrap().as_u64().unwrap();
        let stack: Vec<u64> = fields.get("stack").unwrap().as_array().unwrap().u64s().collect();
        assert_eq!(stack.len() as u64, number % 5);
        assert!(stack.iter().zip(0..).all(|(&ip, frame)| ip == 0x5555_0000 + frame * 16));
        let frames = fields.get("frames").unwrap().as_array().unwrap();
        for (frame, lines) in frames.iter().zip(0..) {
            let frame = frame.as_struct().unwrap();
            assert_eq!(frame.get("name").unwrap().as_str(), Some("frame"));
            assert_eq!(frame.get("lines").unwrap().as_array().unwrap().len(), lines);
        }
        if let Some(wide) = fields.get("choice").unwrap().as_struct() {
            assert_eq!(wide.get("bytes").unwrap().as_bytes(), Some(b"abc".as_slice()));
            seen += 1;
        }
    }
    assert!(seen > 0);
}

#[test]
fn errors_in_tsdl_say_where() {
    let with = |body: &str| {
        format!(
            "/* CTF 1.8 */\ntrace {{ major = 1; minor = 8; byte_order = le; }};\ntypealias integer {{ size = 8; }} := u8;\nevent {{ name = x; fields := struct {{\n{body}\n}}; }};\n"
        )
    };
    for (text, expected) in [
        (with("  u8 a; u9 b;"), "5:9: unknown type"),
        (
            with("u8 a;\n  u8 b[c];"),
            "6:8: no integer of this name before this field",
        ),
        (with("integer { size = 65; } a;"), "5:11: wrong value for size"),
        (
            with("integer { align = 3; size = 8; } a;"),
            "5:11: wrong value for align",
        ),
        (
            with("integer { size = 8; map = clock.no.value; } a;"),
            "5:21: unknown clock",
        ),
        (with("string a; string a;"), "5:18: name is used twice"),
        (with("u8 a\n}"), "6:1: expected ;"),
        (
            with("variant <a> { u8 x; } v;"),
            "5:10: no integer of this name before this field",
        ),
        (with("enum : u8 { A = 2 ... 1 } e;"), "5:13: wrong value for label"),
        (with("u8 *p;"), "5:4: pointers are not supported"),
        (
            "/* CTF 1.8 */\nclock { freq = 0; };".to_owned(),
            "2:9: wrong value for freq",
        ),
        ("event { name = x; };".to_owned(), "1:1: trace is missing"),
        (
            "trace { byte_order = native; };".to_owned(),
            "1:9: wrong value for byte_order",
        ),
    ] {
        assert_eq!(tsdl::parse(&text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn types_that_explode_are_refused() {
    let mut text = "typealias integer { size = 8; } := t0;\n".to_owned();
    for level in 1..40 {
        text += &format!("typedef struct {{ t{0} a; t{0} b; }} t{level};\n", level - 1);
    }
    assert_eq!(tsdl::parse(&text).unwrap_err().kind, tsdl::ErrorKind::TooLarge);
    let deep = format!("{}u8 a;{}", "struct { ".repeat(10_000), "} a;".repeat(10_000));
    assert_eq!(tsdl::parse(&deep).unwrap_err().kind, tsdl::ErrorKind::TooDeep);
    let mut text = "typealias integer { size = 8; } := t0;\n".to_owned();
    for level in 1..200 {
        text += &format!("typedef t{} t{level}[1];\n", level - 1);
    }
    assert_eq!(tsdl::parse(&text).unwrap_err().kind, tsdl::ErrorKind::TooDeep);
}

#[test]
fn errors_in_json_say_where() {
    let with = |fragment: &str| format!("\u{1e}{{\"type\":\"preamble\",\"version\":2}}\n\u{1e}{fragment}\n");
    let stream = |class: &str| {
        with(&format!(
            "{{\"type\":\"data-stream-class\",\"event-record-common-context-field-class\":{{\"type\":\"structure\",\"member-classes\":[{{\"name\":\"a\",\"field-class\":{class}}}]}}}}"
        ))
    };
    for (text, expected) in [
        (
            String::new(),
            "1:1: fragment 0: the preamble must be the first fragment, and only that",
        ),
        ("{}".to_owned(), "1:1: fragment 1: no record separator"),
        (with("{\"type\":\n \"x\",}"), "3:6: fragment 2: malformed JSON"),
        (with("{\"type\":\"x\"}"), "2:1: fragment 2: unknown type"),
        (
            with("{\"type\":\"data-stream-class\",\"x\":1}"),
            "2:1: fragment 2: unknown property in data stream class",
        ),
        (
            with("{\"type\":\"data-stream-class\",\"extensions\":{\"a\":{}}}"),
            "2:1: fragment 2: unknown extension",
        ),
        (
            with("{\"type\":\"data-stream-class\",\"default-clock-class-id\":\"c\"}"),
            "2:1: fragment 2: unknown clock class",
        ),
        (stream("\"alias\""), "2:1: fragment 2: unknown field class alias"),
        (
            stream("{\"type\":\"fixed-length-unsigned-integer\",\"length\":8}"),
            "2:1: fragment 2: property `byte-order` is missing",
        ),
        (
            stream("{\"type\":\"dynamic-length-string\",\"length-field-location\":{\"path\":[\"n\"]}}"),
            "2:1: fragment 2: field location leads to no field before it",
        ),
        (
            with("{\"type\":\"event-record-class\"}"),
            "2:1: fragment 2: no data stream class has the id 0",
        ),
    ] {
        assert_eq!(json2::parse(&text).unwrap_err().to_string(), expected, "{text}");
    }
    assert!(json2::parse(&stream("{\"type\":\"null-terminated-string\"}")).is_ok());
}

#[test]
fn descriptions_are_checked() {
    let mut description = small();
    description.streams[1].id = 0;
    assert_eq!(
        Plan::new(description).unwrap_err().kind,
        DescriptionErrorKind::DuplicateStream(0)
    );
    let mut description = small();
    description.streams[0].events[1].id = support::STACK;
    let error = Plan::new(description).unwrap_err();
    assert_eq!(error.kind, DescriptionErrorKind::DuplicateEvent(support::STACK));
    let mut description = small();
    description.clocks.clear();
    let error = Plan::new(description).unwrap_err();
    assert_eq!(error.to_string(), "there is no clock 0 of stream class 0");
}

#[test]
fn other_files_are_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let open = |metadata: &[u8]| {
        std::fs::write(scratch.path().join("metadata"), metadata).unwrap();
        Trace::open(scratch.path()).unwrap_err().kind
    };
    let rfc = open(&0xc1fc_1fc1u32.to_be_bytes());
    assert!(matches!(rfc, TraceErrorKind::OtherDialect(Dialect::Rfc1_1)), "{rfc:?}");
    // The header of CTF 2's metadata packets has its major version at the same place.
    let mut packets = vec![0x57, 0x1d, 0xd1, 0x75];
    packets.resize(35, 0);
    packets.extend([2, 0]);
    assert!(matches!(open(&packets), TraceErrorKind::MetadataPacket(0)));
    assert!(matches!(
        open(b"\x7fELF\x02\x01\x01\x00"),
        TraceErrorKind::UnknownDialect([0x7f, b'E', b'L', b'F'])
    ));
    assert!(matches!(open(b"\x57\x1d\xd1\x75"), TraceErrorKind::MetadataPacket(0)));
    assert!(matches!(open(b"/* CTF 1.8 */ trace {\xff"), TraceErrorKind::Utf8(21)));
    let text = tsdl::write(&small()).unwrap();
    std::fs::write(scratch.path().join("metadata"), text).unwrap();
    std::fs::write(scratch.path().join("foreign"), [7; 200]).unwrap();
    let mut events = Trace::open(scratch.path()).unwrap().events(Options::default()).unwrap();
    let error = events.next().unwrap_err().to_string();
    assert!(error.ends_with("foreign: packet at offset 0x0: packet begins with 0x7070707, not with the magic number at byte 0x0 of the packet"), "{error}");
}
