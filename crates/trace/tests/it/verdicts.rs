//! What is accepted and what is refused, held against babeltrace2 2.1: small traces of 1.8 that
//! differ in one place each.

use crate::support;
use crate::support::verdicts::expect;
use backtrail_testkit::peers::babeltrace2_2_1;
use backtrail_trace::Trace;

const TYPES: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := uint8_t;
typealias integer { size = 32; align = 8; } := uint32_t;
typealias integer { size = 64; align = 8; } := uint64_t;
typealias integer { size = 32; align = 8; signed = true; } := int32_t;
";
const CLOCK: &str = "clock { name = c; freq = 1000000000; };";
const MAGIC: [u8; 4] = [0xc1, 0x1f, 0xfc, 0xc1];

/// The parts of a trace in which cases differ.
struct Parts<'t> {
    trace: &'t str,
    header: &'t str,
    before: &'t str,
    stream: &'t str,
    fields: &'t str,
}

const PLAIN: Parts<'_> = Parts {
    trace: "major = 1; minor = 8; byte_order = le;",
    header: "uint32_t magic;",
    before: "",
    stream: "",
    fields: "uint8_t a;",
};

impl Parts<'_> {
    fn metadata(&self) -> String {
        let Parts {
            trace,
            header,
            before,
            stream,
            fields,
        } = self;
        format!(
            "{TYPES}trace {{ {trace} packet.header := struct {{ {header} }}; }};\n{before}\n\
             stream {{ {stream} }};\nevent {{ name = e; fields := struct {{ {fields} }}; }};\n"
        )
    }
}

fn stream(content: &[u8]) -> Vec<u8> {
    [&MAGIC, content].concat()
}

#[test]
fn reserved_fields_of_headers() {
    let peer = babeltrace2_2_1();
    let check = |header: &str, content: &[u8], accepted| {
        let metadata = Parts { header, ..PLAIN }.metadata();
        expect(peer.as_ref(), header, metadata.as_bytes(), content, accepted);
    };
    check("uint32_t magic;", &stream(&[1]), true);
    check("enum : uint32_t { A } magic;", &stream(&[1]), true);
    check("uint8_t magic;", &[0xc1, 1], false);
    check("int32_t magic;", &stream(&[1]), false);
    check("string magic;", b"x\0\x01", false);
    check("uint8_t x; uint32_t magic;", &[&[0], &stream(&[1])[..]].concat(), false);
    for (uuid, size, accepted) in [
        ("uint8_t uuid[16];", 16, true),
        ("uint8_t uuid[15];", 15, false),
        ("uint8_t uuid;", 1, false),
        ("integer { size = 8; signed = true; } uuid[16];", 16, false),
        ("integer { size = 8; align = 1; } uuid[16];", 16, false),
        ("uint32_t stream_id;", 4, true),
        ("int32_t stream_id;", 4, false),
        ("string stream_id;", 1, false),
        ("int32_t stream_instance_id;", 4, false),
        ("struct { uint32_t stream_id; } x;", 4, true),
    ] {
        let header = format!("uint32_t magic; {uuid}");
        check(&header, &stream(&vec![0; size + 1]), accepted);
    }
}

#[test]
fn reserved_fields_of_packet_contexts() {
    let peer = babeltrace2_2_1();
    let names = [
        "content_size",
        "packet_size",
        "packet_seq_num",
        "events_discarded",
        "timestamp_begin",
        "timestamp_end",
    ];
    for name in names {
        for (field, accepted) in [
            (format!("uint32_t {name};"), true),
            (format!("int32_t {name};"), false),
            (format!("struct {{ uint32_t {name}; }} x;"), true),
            (format!("string {name};"), false),
        ] {
            let context = format!("packet.context := struct {{ {field} }};");
            let metadata = Parts {
                before: CLOCK,
                stream: &context,
                ..PLAIN
            }
            .metadata();
            // babeltrace2 aborts where there is an end without a begin.
            expect(
                peer.as_ref().filter(|_| name != "timestamp_end" || !accepted),
                &field,
                metadata.as_bytes(),
                &stream(&[80, 0, 0, 0, 1, 2]),
                accepted,
            );
        }
    }
    let two = CLOCK.to_owned() + &CLOCK.replace("= c;", "= d;");
    let metadata = Parts {
        before: &two,
        stream: "packet.context := struct { uint32_t timestamp_begin; };",
        ..PLAIN
    }
    .metadata();
    expect(
        peer.as_ref(),
        "which clock?",
        metadata.as_bytes(),
        &stream(&[1, 0, 0, 0, 1]),
        false,
    );
}

#[test]
fn sizes_of_packets() {
    let peer = babeltrace2_2_1();
    for (name, size, accepted) in [
        ("content_size", 63, false),
        ("content_size", 64, false),
        ("content_size", 72, false),
        ("content_size", 80, true),
        ("content_size", 88, false),
        ("content_size", 0, false),
        ("packet_size", 81, false),
        ("packet_size", 80, true),
        ("packet_size", 56, false),
        ("packet_size", 0, false),
    ] {
        let context = format!("packet.context := struct {{ uint32_t {name}; }};");
        let metadata = Parts {
            stream: &context,
            ..PLAIN
        }
        .metadata();
        let packet = stream(&[size, 0, 0, 0, 1, 2]);
        // babeltrace2 never ends with a packet of no size.
        let peer = peer.as_ref().filter(|_| (name, size) != ("packet_size", 0));
        expect(peer, &format!("{name} {size}"), metadata.as_bytes(), &packet, accepted);
    }
}

#[test]
fn blocks() {
    let peer = babeltrace2_2_1();
    let packet = stream(&[1, 2]);
    let check = |what: &str, metadata: String, accepted| {
        expect(peer.as_ref(), what, metadata.as_bytes(), &packet, accepted);
    };
    for (trace, accepted) in [
        ("major = 1; minor = 8; byte_order = le;", true),
        ("minor = 8; byte_order = le;", false),
        ("major = 1; byte_order = le;", false),
        ("major = 1; minor = 8;", false),
        ("major = 1; minor = 9; byte_order = le;", false),
    ] {
        check(trace, Parts { trace, ..PLAIN }.metadata(), accepted);
    }
    for entries in [
        "hostname = \"a\"; hostname = \"b\";",
        "hostname = word; vpid = 3;",
        "vpid = 18446744073709551615;",
        "vpid = -5;",
        "other.name = 1;",
    ] {
        let before = format!("env {{ {entries} }};");
        let metadata = Parts {
            before: &before,
            ..PLAIN
        }
        .metadata();
        check(entries, metadata, true);
    }
}

#[test]
fn fields() {
    let peer = babeltrace2_2_1();
    let content = [1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (fields, accepted) in [
        ("uint8_t a, b;", true),
        ("uint8_t a[3], b;", true),
        ("struct { uint8_t x; } a, b;", true),
        ("struct { uint8_t a; };", false),
        ("struct foo { uint8_t a; }; struct foo c;", false),
        (
            "enum : uint8_t { A, B } t; variant <t> { uint8_t A; uint8_t B; };",
            false,
        ),
        ("enum : uint8_t { A = 1 } t; variant <t> { uint8_t A; } v;", false),
        ("enum : uint8_t { A = 0 ... 9 } t; variant <t> { uint8_t A; } v;", true),
        (
            "integer { size = 4; align = 1; byte_order = be; } a; integer { size = 4; align = 1; } b;",
            false,
        ),
        (
            "integer { size = 4; align = 1; } a; integer { size = 4; align = 1; } b;",
            true,
        ),
        ("uint8_t n; uint8_t a[n];", true),
        ("uint8_t a[n]; uint8_t n;", false),
        ("uint8_t a : 3;", false),
        ("floating_point { exp_dig = 5; mant_dig = 11; } a;", false),
        ("integer { size = 64; align = 8; } a; uint32_t b[3];", true),
        ("integer { size = 65; align = 8; } a;", false),
        (
            "integer { size = 12; signed = true; base = 8; } a; integer { size = 12; base = 2; } b;",
            false,
        ),
        (
            "integer { size = 12; signed = true; base = 8; } a; integer { size = 28; base = 16; } b;",
            true,
        ),
    ] {
        let metadata = Parts { fields, ..PLAIN }.metadata();
        expect(peer.as_ref(), fields, metadata.as_bytes(), &stream(&content), accepted);
    }
}

/// Types that nobody can use are wrong too, which babeltrace2 does not see.
#[test]
fn types_that_nobody_can_use() {
    for types in [
        "typedef uint32_t A[x];",
        "typedef uint32_t A[uint32_t];",
        "struct s { enum : uint8_t { \" a \" } t; variant <t> { uint8_t a; } v; };",
    ] {
        let metadata = Parts { before: types, ..PLAIN }.metadata();
        expect(None, types, metadata.as_bytes(), &stream(&[1]), false);
    }
}

#[test]
fn text_comes_out_as_it_was_stored() {
    let metadata = Parts {
        fields: "string s;",
        ..PLAIN
    }
    .metadata();
    let peer = babeltrace2_2_1();
    let content = stream(b"\xff\xc3\xa4\x80 \x7f\x01\"\\\n\0");
    expect(peer.as_ref(), "bytes", metadata.as_bytes(), &content, true);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), metadata).unwrap();
    std::fs::write(directory.path().join("s"), content).unwrap();
    assert_eq!(
        support::text_of(directory.path()).unwrap(),
        b"e: { s = \"\xff\xc3\xa4\x80 \\x7f\\x01\\\"\\\\\\n\" }\n"
    );
}

/// Packets of metadata: `header` bytes of header, which say this version.
fn packets(pieces: &[&[u8]], header: usize, version: [u8; 2], big: bool, uuids: &[u8]) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = Vec::new();
    for (piece, uuid) in pieces.iter().zip(uuids) {
        let start = file.len();
        let content = (header + piece.len()) as u32 * 8;
        file.extend(word(0x75d1_1d57));
        file.extend([*uuid; 16]);
        file.extend(word(0));
        file.extend(word(content));
        file.extend(word(content + 5 * 8));
        file.extend([0; 3]);
        file.extend(version);
        file.resize(start + header, 0);
        file.extend_from_slice(piece);
        file.extend([0; 5]);
    }
    file
}

#[test]
fn metadata_in_packets() {
    let peer = babeltrace2_2_1();
    let text = PLAIN.metadata();
    let (first, second) = text.as_bytes().split_at(60);
    let content = stream(&[1, 2]);
    for (uuids, accepted) in [([7, 7], true), ([7, 8], false)] {
        let metadata = packets(&[first, second], 37, [1, 8], false, &uuids);
        expect(peer.as_ref(), "two packets", &metadata, &content, accepted);
    }
    let big = text.replace("byte_order = le", "byte_order = be");
    let metadata = packets(&[big.as_bytes()], 37, [1, 8], true, &[1]);
    expect(
        peer.as_ref(),
        "big endian",
        &metadata,
        &[&[0xc1, 0xfc, 0x1f, 0xc1], &[1, 2][..]].concat(),
        true,
    );

    // Those of CTF 2 have a longer header. babeltrace2 does not read them, so what it prints of the
    // same text without packets counts.
    let json = "\x1e{\"type\":\"preamble\",\"version\":2}\n\x1e{\"type\":\"data-stream-class\"}\n\x1e{\"type\":\"event-record-class\",\
         \"name\":\"e\",\"payload-field-class\":{\"type\":\"structure\",\"member-classes\":[{\"name\":\"a\",\"field-class\":\
         {\"type\":\"fixed-length-unsigned-integer\",\"length\":8,\"byte-order\":\"big-endian\"}}]}}\n";
    expect(peer.as_ref(), "CTF 2", json.as_bytes(), &[1, 2], true);
    let (first, second) = json.as_bytes().split_at(50);
    for (metadata, accepted) in [
        (packets(&[first, second], 44, [2, 0], false, &[3, 3]), true),
        (packets(&[first, second], 44, [2, 0], true, &[3, 3]), true),
        (packets(&[first, second], 37, [2, 0], false, &[3, 3]), true),
        (packets(&[first, second], 44, [2, 1], false, &[3, 3]), false),
        (packets(&[first, second], 44, [2, 0], false, &[3, 4]), false),
        (packets(&[text.as_bytes()], 44, [2, 0], false, &[3]), false),
    ] {
        expect(None, "fragments", &metadata, &[1, 2], accepted);
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("metadata"),
        packets(&[json.as_bytes()], 44, [2, 0], false, &[1]),
    )
    .unwrap();
    assert_eq!(Trace::open(directory.path()).unwrap().dialect().name(), "2");
}

#[test]
fn semicolons_without_a_declaration() {
    let peer = babeltrace2_2_1();
    let cases = [
        (PLAIN, true),
        (
            Parts {
                trace: "major = 1; minor = 8; byte_order = le;;",
                ..PLAIN
            },
            false,
        ),
        (
            Parts {
                header: "; uint32_t magic;",
                ..PLAIN
            },
            false,
        ),
        (Parts { before: ";", ..PLAIN }, false),
        (Parts { stream: ";", ..PLAIN }, false),
        (
            Parts {
                fields: "uint8_t a;; uint8_t b;",
                ..PLAIN
            },
            false,
        ),
        (
            Parts {
                fields: "integer { size = 8;; } a;",
                ..PLAIN
            },
            false,
        ),
    ];
    for (parts, accepted) in cases {
        let metadata = parts.metadata();
        expect(
            peer.as_ref(),
            &metadata,
            metadata.as_bytes(),
            &stream(&[5, 6]),
            accepted,
        );
    }
}

/// Where a file of metadata ends within its last packet, it is the content that counts.
#[test]
fn metadata_packets_without_padding() {
    const HEADER: usize = 37;
    let peer = babeltrace2_2_1();
    let text = PLAIN.metadata();
    let content = HEADER + text.len();
    let mut packet = 0x75d1_1d57u32.to_le_bytes().to_vec();
    packet.extend([7; 16]);
    packet.extend(0u32.to_le_bytes());
    packet.extend((content as u32 * 8).to_le_bytes());
    packet.extend((4096u32 * 8).to_le_bytes());
    packet.extend([0, 0, 0, 1, 8]);
    packet.extend(text.as_bytes());
    packet.resize(4096, 0);
    for (length, accepted) in [
        (4096, true),
        (content + 100, true),
        (content, true),
        (content - 1, false),
    ] {
        let what = format!("{length} bytes");
        expect(peer.as_ref(), &what, &packet[..length], &stream(&[5]), accepted);
    }
}

/// A time of few bits at a packet's begin says the time, however late the packet before has ended.
#[test]
fn short_times_of_packets() {
    let peer = babeltrace2_2_1();
    let metadata = "/* CTF 1.8 */
trace { major = 1; minor = 8; byte_order = le; };
clock { name = c; freq = 1000000000; };
typealias integer { size = 8; align = 8; } := uint8_t;
typealias integer { size = 8; align = 8; map = clock.c.value; } := time_t;
stream { packet.context := struct { time_t timestamp_begin; time_t timestamp_end; uint8_t content_size; uint8_t packet_size; };
  event.header := struct { time_t timestamp; }; };
event { name = e; fields := struct { uint8_t a; }; };
";
    let packet = |begin: u8, times: [u8; 3]| {
        let events = times.iter().flat_map(|&time| [time, 1]);
        [begin, times[2], 80, 80].into_iter().chain(events).collect::<Vec<u8>>()
    };
    // Within a packet a lower time is a later one.
    let stream = [
        packet(10, [12, 250, 3]),
        packet(5, [6, 7, 8]),
        packet(200, [201, 255, 0]),
    ]
    .concat();
    expect(peer.as_ref(), "packets", metadata.as_bytes(), &stream, true);
}
