//! The RFC's dialect as it is written: our reader gives back what was put in, and babeltrace2 reads
//! the same bytes by a twin description in 1.8.

use crate::support;
use backtrail_testkit::peers::babeltrace2_2_0;
use backtrail_trace::description::{
    Array, Description, Encoding, Enumeration, EventClass, FieldClass, Integer, Length, Mapping, Range, Storage, Struct,
};
use backtrail_trace::{ClockFormat, CreateErrorKind, EncodeError, Options, StreamOptions, StreamWriter, TextWriter};
use backtrail_trace_rfc::metadata::{self as rfc, HeaderType};
use backtrail_trace_rfc::{Checksum, Compression, Key, Packing, create, open};
use backtrail_wire::Endian;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];
const TYPES: [HeaderType; 2] = [HeaderType::Type1, HeaderType::Type2];
const SESSION: u32 = 0xfeed_0001;

fn sequence(length: Integer, element: impl Into<FieldClass>) -> Array {
    Array {
        length: Length::Prefixed { length, name: None },
        ..Array::fixed(0, element)
    }
}

fn payload(order: Endian) -> Struct {
    let u = |size| Integer::unsigned(size, order);
    let mapping = |name: &str, values: &[i128]| Mapping {
        name: name.to_owned(),
        ranges: values.iter().map(|&value| Range::one(value)).collect(),
    };
    Struct::new()
        .with("small", u(8))
        .with("minus", Integer::signed(16, order))
        .with("odd", u(24))
        .with("net", Integer::unsigned(32, order.swapped()))
        .with(
            "kind",
            Enumeration {
                integer: Integer::signed(8, order),
                mappings: vec![mapping("none", &[-1]), mapping("some thing", &[0, 1])],
            },
        )
        .with("pair", Array::fixed(2, u(16)))
        .with("stack", sequence(u(8), u(64)))
        .with("text", FieldClass::String(Encoding::Utf8))
        .with(
            "inner",
            Struct::new().with("a", u(8)).with("b", Integer::signed(64, order)),
        )
}

fn described(order: Endian, header: HeaderType, event_size: bool) -> Description {
    let mut section = rfc::section(0, "main", order, header, event_size);
    for (id, name) in [(1, "first"), (70_000, "app:second")] {
        section.events.push(EventClass {
            id,
            name: name.to_owned(),
            payload: Some(payload(order)),
            ..EventClass::default()
        });
    }
    section.events.push(EventClass {
        id: 2,
        name: "empty".to_owned(),
        ..EventClass::default()
    });
    let mut description = rfc::description(order, SESSION);
    description.streams.push(section);
    description
}

/// Times that need a short header, a long one, and whose low bits wrap.
const TIMES: [u64; 7] = [
    1_000,
    1_005,
    1_004 + (1 << 27),
    1 << 33,
    (1 << 33) + (1 << 26),
    1 << 50,
    (1 << 50) + 1,
];

fn put(writer: &mut StreamWriter, number: u64, time: u64) {
    let mut event = writer.event([1, 70_000, 2][number as usize % 3], time);
    if number % 3 < 2 {
        event.u8(number as u8);
        event.signed(-300 - number as i64);
        event.u32(0x01_0203);
        event.u32(0x0405_0607);
        event.signed(number as i64 % 2 - 1);
        event.u16(1);
        event.u16(0x102);
        event.sequence_len(number as usize);
        (0..number).for_each(|frame| event.u64(0xffff_8000_0000_0000 + frame));
        event.string("täxt");
        event.u8(7);
        event.i64(i64::MIN);
    }
    event.finish().unwrap();
}

fn write(directory: &Path, description: Description, packets: u64, packing: Packing) {
    let trace = create(directory, description, packing).unwrap();
    let mut stream = trace.stream("main_3", StreamOptions::for_cpu(0, 3)).unwrap();
    for packet in 0..packets {
        let start = packet << 51;
        stream.writer().begin(start);
        for (number, time) in (0..).zip(TIMES) {
            put(stream.writer(), number, start + time);
        }
        stream.writer().discard(packet * 2);
        stream.flush(start + (1 << 50) + 9).unwrap();
    }
}

fn text(directory: &Path, key: Option<Key>) -> String {
    let mut events = open(directory, key).unwrap().events(Options::default()).unwrap();
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    String::from_utf8(text).unwrap()
}

fn twin(order: Endian, header: HeaderType, event_size: bool) -> String {
    let native = if order == Endian::Little { "le" } else { "be" };
    let other = if order == Endian::Little { "be" } else { "le" };
    let time = |size: u32, align: u32| {
        format!("integer {{ size = {size}; align = {align}; map = clock.c.value; }} timestamp;")
    };
    let header = match header {
        HeaderType::Type1 => format!(
            "enum : integer {{ size = 5; align = 1; }} {{ compact = 0 ... 30, extended = 31 }} id; {}
             variant <id> {{ struct {{ }} compact; struct {{ u32 id; {} }} extended; }} v;",
            time(27, 1),
            time(64, 8)
        ),
        HeaderType::Type2 => format!(
            "{} enum : u16 {{ compact = 0 ... 65534, extended = 65535 }} id;
             variant <id> {{ struct {{ }} compact; struct {{ {} u32 id; }} extended; }} v;",
            time(32, 8),
            time(64, 8)
        ),
    };
    let context = match event_size {
        true => "event.context := struct { u16 payload_size; };",
        false => "",
    };
    let fields = format!(
        "fields := struct {{ u8 small; i16 minus; integer {{ size = 24; align = 8; }} odd;
        integer {{ size = 32; align = 8; byte_order = {other}; }} net;
        enum : integer {{ size = 8; signed = true; }} {{ none = -1, \"some thing\" = 0 ... 1 }} kind;
        u16 pair[2]; u8 _stack_length; u64 stack[_stack_length]; string text;
        struct {{ u8 a; integer {{ size = 64; align = 8; signed = true; }} b; }} inner; }};"
    );
    format!(
        "/* CTF 1.8 */
typealias integer {{ size = 8; align = 8; }} := u8;
typealias integer {{ size = 16; align = 8; }} := u16;
typealias integer {{ size = 16; align = 8; signed = true; }} := i16;
typealias integer {{ size = 32; align = 8; }} := u32;
typealias integer {{ size = 64; align = 8; }} := u64;
trace {{ major = 1; minor = 8; byte_order = {native};
  packet.header := struct {{ u32 magic; u32 session; u32 content; u32 packet; u32 sum; u32 count;
    u64 ts_begin; u64 ts_end; u32 discarded; u32 schemes; }}; }};
clock {{ name = c; freq = 1000000000; }};
stream {{ event.header := struct {{ {header} }} align(8); {context} }};
event {{ name = first; id = 1; {fields} }};
event {{ name = \"app:second\"; id = 70000; {fields} }};
event {{ name = empty; id = 2; }};
"
    )
}

#[test]
fn babeltrace2_reads_the_same_bytes_by_a_twin() {
    let Some(peer) = babeltrace2_2_0() else { return };
    for order in ORDERS {
        for header in TYPES {
            for event_size in [false, true] {
                let scratch = tempfile::tempdir().unwrap();
                let (ours, theirs) = (scratch.path().join("ours"), scratch.path().join("theirs"));
                write(&ours, described(order, header, event_size), 1, Packing::default());
                // 1.8 has no packet whose sizes are in bytes, so there is one packet, and it is its
                // content.
                let packet = fs::read(ours.join("main_3")).unwrap();
                assert_eq!(packet.len() % 4096, 0);
                let size: [u8; 4] = packet[8..12].try_into().unwrap();
                let size = match order {
                    Endian::Little => u32::from_le_bytes(size),
                    Endian::Big => u32::from_be_bytes(size),
                };
                fs::create_dir(&theirs).unwrap();
                fs::write(theirs.join("metadata"), twin(order, header, event_size)).unwrap();
                fs::write(theirs.join("main_3"), &packet[..size as usize]).unwrap();
                let output = peer.command().arg("--clock-seconds").arg(&theirs).output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{errors}");
                let mut shown = String::from_utf8(output.stdout).unwrap();
                for length in 0..TIMES.len() {
                    shown = shown.replace(&format!("stack_length = {length}, "), "");
                }
                assert_eq!(text(&ours, None), shown, "{header:?} {order:?}");
                assert_eq!(shown.lines().count(), TIMES.len());
                if event_size {
                    // 8 + 16 + 24 + 32 + 8 + 2 * 16 + 8 bits, 8 bytes a frame, the text, 9 bytes.
                    assert!(shown.contains("{ payload_size = 31 }, { small = 0,"), "{shown}");
                    assert!(shown.contains("{ payload_size = 39 }, { small = 1,"), "{shown}");
                    assert!(shown.contains("{ payload_size = 0 }"), "{shown}");
                }
            }
        }
    }
}

#[test]
fn whatever_is_done_to_the_content() {
    let key = Key::try_from([0x5a; 32].as_slice()).unwrap();
    let compressions = [Compression::None, Compression::Bzip2, Compression::Gzip];
    let checksums = [Checksum::None, Checksum::Md5, Checksum::Sha1, Checksum::Crc32];
    for order in ORDERS {
        let mut plain = None;
        for (compression, encryption, checksum) in compressions.into_iter().flat_map(|compression| {
            [None, Some(key)]
                .into_iter()
                .flat_map(move |key| checksums.map(|checksum| (compression, key, checksum)))
        }) {
            let packing = Packing {
                compression,
                encryption,
                checksum,
            };
            let scratch = tempfile::tempdir().unwrap();
            let directory = scratch.path().join("trace");
            write(&directory, described(order, HeaderType::Type1, true), 3, packing);
            let shown = text(&directory, encryption);
            assert_eq!(plain.get_or_insert_with(|| shown.clone()), &shown, "{packing:?}");
            let bytes = fs::read(directory.join("main_3")).unwrap();
            let schemes = [compression as u8, u8::from(encryption.is_some()), checksum as u8];
            assert_eq!(bytes[45..48], schemes);
            let stored = &bytes[48..1000];
            let readable = stored.windows(5).any(|bytes| bytes == "täxt".as_bytes());
            assert_eq!(readable, compression == Compression::None && encryption.is_none());
            if encryption.is_some() {
                // Not two packets with one nonce.
                assert_ne!(bytes[48..60], bytes[4096 + 48..4096 + 60]);
            }
        }
    }
}

/// What other programs make of the stored content, not what this crate does.
#[test]
fn digests_are_those_of_the_usual_programs() {
    for (checksum, program) in [(Checksum::Md5, "md5sum"), (Checksum::Sha1, "sha1sum")] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        let packing = Packing {
            compression: Compression::Gzip,
            checksum,
            ..Packing::NONE
        };
        write(
            &directory,
            described(Endian::Little, HeaderType::Type2, false),
            1,
            packing,
        );
        let bytes = fs::read(directory.join("main_3")).unwrap();
        let end = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let content = scratch.path().join("content.gz");
        fs::write(&content, &bytes[48..end]).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let output = std::process::Command::new(program)
                .args(arguments)
                .arg(&content)
                .output();
            output.expect(program).stdout
        };
        let sum: String = bytes[16..20].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(String::from_utf8_lossy(&run(program, &[])[..8]), sum);
        let plain = run("gzip", &["-dc"]);
        assert!(plain.windows(5).any(|bytes| bytes == "täxt".as_bytes()));
    }
}

#[test]
fn counts_in_the_packet_header() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let description = described(Endian::Big, HeaderType::Type2, false);
    write(&directory, description.clone(), 3, Packing::default());
    let trace = open(&directory, None).unwrap();
    assert_eq!(trace.description(), &description);
    let mut stream = trace.stream(0, Options::default()).unwrap();
    let mut seen = Vec::new();
    while let Some(event) = stream.next().unwrap() {
        seen.push(*event.packet());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
    // Before the first event of each: 0, 0, 0 + 2.
    for (number, (packet, discarded)) in (0..).zip(seen.iter().zip([0, 0, 2])) {
        assert_eq!(packet.session, Some(u64::from(SESSION)));
        assert_eq!(
            (packet.sequence_number, packet.sequence_number_bits),
            (Some(number), 32)
        );
        assert_eq!(packet.events_discarded, Some(discarded));
        assert_eq!(packet.begin, Some(number << 51));
        assert_eq!(packet.end, Some((number << 51) + (1 << 50) + 9));
    }
    // Metadata packets are like those of data.
    let metadata = fs::read(directory.join("metadata")).unwrap();
    assert_eq!(
        (metadata.len() % 4096, &metadata[..8]),
        (0, [0xc1, 0xfc, 0x1f, 0xc1, 0xfe, 0xed, 0, 1].as_slice())
    );
    let stored = u32::from_be_bytes(metadata[8..12].try_into().unwrap()) as usize;
    let sum = u32::from_be_bytes(metadata[16..20].try_into().unwrap());
    assert_eq!(crc32fast::hash(&metadata[48..stored]), sum);
}

/// What is written is read as it was, for every kind of type.
#[test]
fn descriptions_come_back() {
    for order in ORDERS {
        let mut description = described(order, HeaderType::Type1, true);
        let bits = |size, storage| Integer {
            storage,
            ..Integer::signed(size, order).align(1)
        };
        let odd = Struct::new()
            .with("a", bits(12, Storage::Unit(16)))
            .with("b", bits(5, Storage::Unit(16)))
            .with("c", bits(3, Storage::Bits))
            .with(
                "named length",
                Array {
                    length: Length::Prefixed {
                        length: Integer::unsigned(16, order.swapped()),
                        name: Some("len \"x\"".to_owned()),
                    },
                    ..Array::fixed(
                        0,
                        sequence(
                            Integer::unsigned(8, order),
                            Struct::new().with("x", bits(7, Storage::Bits)),
                        ),
                    )
                },
            )
            .with("ascii", FieldClass::String(Encoding::Ascii))
            .with("fields", Integer::unsigned(64, order).align(64));
        description.streams[0].events[0].payload = Some(odd.clone());
        let mut other = rfc::section(1, "other_name", order, HeaderType::Type2, false);
        other.event_context = Some(Struct::new().with("pid", Integer::signed(32, order)));
        other.events.push(EventClass {
            id: u64::from(u32::MAX),
            name: "type".to_owned(),
            payload: Some(odd),
            ..EventClass::default()
        });
        description.streams.push(other);
        let entries = rfc::write(&description).unwrap();
        let again = rfc::parse(&entries.join("\n"), order).unwrap();
        assert_eq!(
            again,
            Description {
                session: None,
                ..description
            }
        );
    }
}

#[test]
fn what_cannot_be_said_is_named() {
    use backtrail_trace_rfc::metadata::WriteErrorKind as Kind;
    let order = Endian::Little;
    let base = described(order, HeaderType::Type1, false);
    let refused = |change: &dyn Fn(&mut Description)| {
        let mut description = base.clone();
        change(&mut description);
        rfc::write(&description).unwrap_err()
    };
    let field = |class: FieldClass| {
        let error = refused(&|description| {
            description.streams[0].events[1].payload = Some(Struct::new().with("x", class.clone()));
        });
        assert_eq!((error.stream, error.event), (Some(0), Some(70_000)));
        error.kind
    };
    let u8 = Integer::unsigned(8, order);
    assert_eq!(field(FieldClass::Boolean(u8)), Kind::Boolean);
    assert_eq!(
        field(Array::fixed(3, Integer::character(order)).into()),
        Kind::TextArray
    );
    assert_eq!(
        field(FieldClass::String(Encoding::Utf16Be)),
        Kind::Encoding(Encoding::Utf16Be)
    );
    let leb = Integer {
        storage: Storage::Leb128,
        ..u8
    };
    assert_eq!(field(leb.into()), Kind::Storage(Storage::Leb128));
    let range = Mapping {
        name: "all".to_owned(),
        ranges: vec![Range {
            first: 0,
            last: 1 << 40,
        }],
    };
    let wide = Enumeration {
        integer: Integer::unsigned(64, order),
        mappings: vec![range],
    };
    assert_eq!(field(wide.into()), Kind::Mappings);
    assert_eq!(refused(&|it| it.streams[0].name = None).kind, Kind::SectionName);
    assert_eq!(refused(&|it| it.session = None).kind, Kind::Packets);
    assert_eq!(refused(&|it| it.streams[0].event_header = None).kind, Kind::EventHeader);
    assert_eq!(
        refused(&|it| it.streams[0].events[0].id = 1 << 32).kind,
        Kind::EventId(1 << 32)
    );
    assert_eq!(
        refused(&|it| it.streams[0].events[0].context = Some(Struct::new())).kind,
        Kind::EventContext
    );
    assert_eq!(
        refused(&|it| it.streams.push(base.streams[0].clone())).kind,
        Kind::DuplicateSection
    );
}

#[test]
fn files_belong_to_sections_and_payloads_to_16_bits() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let mut description = rfc::description(Endian::Little, 1);
    let mut section = rfc::section(0, "s", Endian::Little, HeaderType::Type1, true);
    section.events.push(EventClass {
        payload: Some(Struct::new().with("text", FieldClass::String(Encoding::Utf8))),
        ..EventClass::default()
    });
    description.streams.push(section);
    let trace = create(&directory, description, Packing::default()).unwrap();
    for name in ["t", "s_x", "metadata"] {
        let error = trace.stream(name, StreamOptions::for_cpu(0, 0)).unwrap_err();
        assert!(matches!(error.kind, CreateErrorKind::StreamName), "{name}");
    }
    let mut stream = trace.stream("s_0", StreamOptions::for_cpu(0, 0)).unwrap();
    let mut text = |length: usize| {
        let mut event = stream.writer().event(0, 5);
        event.string(&"x".repeat(length));
        event.finish()
    };
    assert_eq!(text(65_535), Err(EncodeError::OutOfRange(65_536)));
    assert_eq!(text(65_534), Ok(()));
    // No other dialect says what was done to the content.
    let plan = Arc::new(backtrail_trace::Plan::new(support::description(Endian::Little)).unwrap());
    let options = StreamOptions {
        content: Some(Arc::new(Packing {
            compression: Compression::Gzip,
            ..Packing::NONE
        })),
        ..StreamOptions::for_cpu(0, 0)
    };
    assert_eq!(StreamWriter::new(plan, options).unwrap_err(), EncodeError::Packing);
}
