//! The RFC's dialect: what was made byte by byte is read, and babeltrace2 reads the same from a
//! twin description.

use crate::bytes::{Header, KEY, SESSION, event, metadata, packet, section, types, u16, u32, u64};
use backtrail_testkit::peers::babeltrace2_2_0;
use backtrail_trace::{
    ClockFormat, DecodeErrorKind, Description, Dialect, JsonWriter, Options, Recover, TextWriter, Trace, TraceError,
    TraceErrorKind, tsdl,
};
use backtrail_trace_rfc::metadata::WriteError;
use backtrail_trace_rfc::{Key, Packing, create, open, source_line};
use backtrail_wire::Endian;
use std::error::Error;
use std::fs;
use std::path::Path;

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

/// A trace with these files.
fn directory(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

fn read(directory: &Path, key: Option<Key>, json: bool) -> Result<String, TraceError> {
    let trace = open(directory, key)?;
    let mut events = trace.events(Options::default())?;
    let mut text = Vec::new();
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next()? {
        match json {
            true => JsonWriter.event(&mut text, &event),
            false => writer.event(&mut text, &event),
        }
    }
    Ok(String::from_utf8(text).unwrap())
}

fn json(files: &[(&str, Vec<u8>)]) -> Result<String, TraceError> {
    read(directory(files).path(), None, true)
}

#[track_caller]
fn refused(files: &[(&str, Vec<u8>)]) -> DecodeErrorKind {
    match json(files).unwrap_err().kind {
        TraceErrorKind::Packet { error, .. } => error.kind,
        other => panic!("{other}"),
    }
}

/// Type 1 packs its id into the low bits of the first byte, or into the high ones of the first byte
/// where the order is big.
fn type1(order: Endian, id: u32, time: u32) -> [u8; 4] {
    match order {
        Endian::Little => u32(order, id | time << 5),
        Endian::Big => u32(order, id << 27 | time),
    }
}

#[test]
fn every_kind_of_field() {
    for order in ORDERS {
        let fields = "{ type { parent = enum; parent = uint8_t; map = { { 1, one }, { 2, \"two\" } }; }, e },
            { type { parent = array; length = 2; elem_type = uint16_t; }, a },
            { type { parent = sequence; length_type = uint8_t; elem_type = int16_t; }, s },
            { type { parent = string; encoding = ASCII; }, t },
            { type { parent = integer; size = 16; byte_order = network; }, n },
            { inner, i },
            { uint, u }";
        let inner = "abstract_type wide { parent = integer; size = 64; align = 8 }
            type inner { parent = struct; fields = { { type { parent = wide; signed = TRUE; }, w } { uint8_t, x } }; };";
        let inner = inner.replace("align = 8 }", "align = 8; }");
        let text = [types(false), inner, section("main", 1), event("all", 3, "main", fields)];
        let text: Vec<&str> = text.iter().map(String::as_str).collect();
        let mut content = type1(order, 3, 5).to_vec();
        content.push(2);
        content.extend([u16(order, 10), u16(order, 11)].concat());
        content.push(2);
        content.extend([u16(order, 7), u16(order, 0xffff)].concat());
        content.extend(b"text\0");
        content.extend([0x12, 0x34]);
        content.extend(u64(order, u64::MAX - 1));
        content.push(9);
        content.extend(u32(order, 99));
        let printed = json(&[
            ("metadata", metadata(order, &text)),
            ("main_3", packet(Header::new(order), &content, 3)),
        ]);
        assert_eq!(
            printed.unwrap(),
            "{\"section\": \"main\", \"name\": \"all\", \"ts\": 5, \"fields\": {\"e\": 2, \"a\": [10, 11], \"s\": [7, -1], \
             \"t\": \"text\", \"n\": 4660, \"i\": {\"w\": -2, \"x\": 9}, \"u\": 99}}\n"
        );
    }
}

/// The metadata in the other byte order than the data, which its own magic number shows.
#[test]
fn metadata_in_another_byte_order() {
    for order in ORDERS {
        let text = [types(false), section("s", 2), event("a", 7, "s", "{ uint32_t, v }")];
        let text: Vec<&str> = text.iter().map(String::as_str).collect();
        let content = [u32(order, 8).as_slice(), &u16(order, 7), &u32(order, 1)].concat();
        let data = packet(Header::new(order), &content, 0);
        let printed = json(&[("metadata", metadata(order.swapped(), &text)), ("s", data.clone())]);
        let expected = "{\"section\": \"s\", \"name\": \"a\", \"ts\": 8, \"fields\": {\"v\": 1}}\n";
        assert_eq!(printed.unwrap(), expected);
        // But all data packets must agree.
        let other = packet(Header::new(order.swapped()), &content, 0);
        let files = [("metadata", metadata(order, &text)), ("s", [data, other].concat())];
        assert_eq!(refused(&files), DecodeErrorKind::Magic(0xc11f_fcc1));
    }
}

/// Naturally aligned headers with extensions, and sequences whose elements are aligned more than
/// their lengths, beside the same bytes under a description that babeltrace2 reads.
#[test]
fn babeltrace2_reads_the_same_from_a_twin() {
    let Some(peer) = babeltrace2_2_0() else { return };
    for order in ORDERS {
        for (header_type, natural) in [(1, false), (1, true), (2, false), (2, true)] {
            let fields =
                "{ uint8_t, k }, { type { parent = sequence; length_type = uint8_t; elem_type = uint32_t; }, s },
                { uint64_t, l }";
            let text = [
                types(natural),
                section("s", header_type),
                event("small", 1, "s", fields),
                event("large", 70_000, "s", fields),
            ];
            let text: Vec<&str> = text.iter().map(String::as_str).collect();
            let stream = twin_stream(order, header_type, natural);
            let ours = directory(&[("metadata", metadata(order, &text)), ("s_0", stream.clone())]);
            let ours = read(ours.path(), None, false).unwrap();
            let twin = directory(&[
                ("metadata", twin_metadata(order, header_type, natural).into()),
                ("s_0", stream),
            ]);
            let output = peer.command().arg("--clock-seconds").arg(twin.path()).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            let theirs = String::from_utf8(output.stdout).unwrap();
            let theirs = theirs.replace("s_length = 2, ", "").replace("s_length = 0, ", "");
            assert_eq!(ours.lines().count(), 4);
            assert_eq!(ours, theirs, "type {header_type}, natural {natural}, {order:?}");
        }
    }
}

/// Four events, every other one with an extended header.
fn twin_stream(order: Endian, header_type: u8, natural: bool) -> Vec<u8> {
    let align = |content: &mut Vec<u8>, bytes: usize| {
        let bytes = if natural { bytes } else { 1 };
        // The packet header is 48 bytes, so it changes no alignment.
        content.resize(content.len().next_multiple_of(bytes), 0);
    };
    let mut content = Vec::new();
    for (index, id) in [1u32, 70_000, 1, 70_000].into_iter().enumerate() {
        let time = 1_000 + ((index as u64) << 36);
        let extended = id > 1 || index > 0;
        align(&mut content, 4);
        if header_type == 1 {
            content.extend(type1(order, if extended { 31 } else { id }, (time & 0x7ff_ffff) as u32));
        } else {
            content.extend(u32(order, time as u32));
            content.extend(u16(order, if extended { 0xffff } else { id as u16 }));
        }
        if extended && header_type == 1 {
            content.extend(u32(order, id));
            content.extend(u64(order, time));
            align(&mut content, 8);
        } else if extended {
            align(&mut content, 8);
            content.extend(u64(order, time));
            content.extend(u32(order, id));
            align(&mut content, 4);
        }
        align(&mut content, 8);
        content.push(index as u8);
        let elements = 2 * (index as u8 & 1);
        content.push(elements);
        align(&mut content, 4);
        for element in 0..elements {
            content.extend(u32(order, u32::from(element) + 5));
        }
        align(&mut content, 8);
        content.extend(u64(order, 77));
    }
    packet(Header::new(order), &content, 0)
}

fn twin_metadata(order: Endian, header_type: u8, natural: bool) -> String {
    let order = if order == Endian::Little { "le" } else { "be" };
    let align = |bits: u32| if natural { bits } else { 8 };
    let int = |size: u32, align: u32| format!("integer {{ size = {size}; align = {align}; }}");
    let time = |size: u32, align: u32| {
        format!("integer {{ size = {size}; align = {align}; map = clock.c.value; }} timestamp;")
    };
    let pad = |bits: u32| format!("struct {{ }} align({bits})");
    let (first, extension, end, last) = match header_type {
        1 => (
            format!(
                "enum : {} {{ compact = 0 ... 30, extended = 31 }} id; {}",
                int(5, 1),
                time(27, 1)
            ),
            format!("struct {{ {} id; {} }}", int(32, 1), time(64, 1)),
            align(64),
            align(32),
        ),
        _ => (
            format!(
                "{} enum : {} {{ compact = 0 ... 65534, extended = 65535 }} id;",
                time(32, align(32)),
                int(16, align(16))
            ),
            format!("struct {{ {} {} id; }} align({})", time(64, 8), int(32, 8), align(64)),
            align(32),
            8,
        ),
    };
    let fields = format!(
        "struct {{ {u8} k; {u8} s_length; {u32} s[s_length]; {u64} l; }}",
        u8 = int(8, 8),
        u32 = int(32, align(32)),
        u64 = int(64, align(64))
    );
    format!(
        "/* CTF 1.8 */
trace {{ major = 1; minor = 8; byte_order = {order};
  packet.header := struct {{ {u32} magic; {u32} session; {u32} content; {u32} packet; {u32} sum; {u32} count;
    {u64} ts_begin; {u64} ts_end; {u32} discarded; {u32} schemes; }}; }};
clock {{ name = c; freq = 1000000000; }};
stream {{ event.header := struct {{ {first}
    variant <id> {{ struct {{ }} compact; {extension} extended; }} v;
    variant <id> {{ struct {{ }} compact; {pad} extended; }} end; }} align({last}); }};
event {{ name = small; id = 1; fields := {fields}; }};
event {{ name = large; id = 70000; fields := {fields}; }};
",
        u32 = int(32, 8),
        u64 = int(64, 8),
        pad = pad(end),
    )
}

fn one_event(order: Endian) -> (Vec<u8>, Vec<u8>) {
    let text = [types(false), section("s", 1), event("a", 0, "s", "{ uint32_t, v }")];
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    let mut content = Vec::new();
    for index in 0..50 {
        content.extend(type1(order, 0, index));
        content.extend(u32(order, index * 3));
    }
    (metadata(order, &text), content)
}

#[test]
fn compressed_encrypted_and_checked() {
    for order in ORDERS {
        let (metadata, content) = one_event(order);
        let read_with = |header: Header, key: Option<Key>, change: fn(&mut Vec<u8>)| {
            let mut data = packet(header, &content, 5);
            change(&mut data);
            let files = directory(&[("metadata", metadata.clone()), ("s_0", data)]);
            match read(files.path(), key, true) {
                Ok(text) => Ok(text),
                Err(error) => match error.kind {
                    TraceErrorKind::Packet { error, .. } => Err(error.kind),
                    other => panic!("{other}"),
                },
            }
        };
        let key = Key::try_from(KEY.as_slice()).unwrap();
        let plain = read_with(Header::new(order), None, |_| {}).unwrap();
        assert_eq!(plain.lines().count(), 50);
        let schemes = (0..3).flat_map(|a| (0..2).flat_map(move |b| (0..4).map(move |c| (a, b, c))));
        for (compression, encryption, checksum) in schemes {
            let header = Header {
                compression,
                encryption,
                checksum,
                ..Header::new(order)
            };
            let which = format!("{compression} {encryption} {checksum} {order:?}");
            assert_eq!(read_with(header, Some(key), |_| {}).as_ref(), Ok(&plain), "{which}");
            let flip = |data: &mut Vec<u8>| data[80] ^= 1;
            let damaged = read_with(header, Some(key), flip);
            match (checksum, encryption) {
                (0, 0) if compression == 0 => assert_ne!(damaged.as_ref(), Ok(&plain)),
                (0, 0) => assert_eq!(damaged, Err(DecodeErrorKind::Decompress), "{which}"),
                (0, _) => assert_eq!(damaged, Err(DecodeErrorKind::Decrypt), "{which}"),
                _ => assert!(matches!(damaged, Err(DecodeErrorKind::Checksum { .. })), "{which}"),
            }
            if encryption == 1 {
                assert_eq!(read_with(header, None, |_| {}), Err(DecodeErrorKind::NoKey));
                let wrong = Key::try_from([1; 32].as_slice()).unwrap();
                assert_eq!(read_with(header, Some(wrong), |_| {}), Err(DecodeErrorKind::Decrypt));
            }
        }
        let unknown = |header| read_with(header, Some(key), |_| {}).unwrap_err();
        let new = Header::new(order);
        assert_eq!(
            unknown(Header { compression: 3, ..new }),
            DecodeErrorKind::CompressionScheme(3)
        );
        assert_eq!(
            unknown(Header { encryption: 2, ..new }),
            DecodeErrorKind::EncryptionScheme(2)
        );
        assert_eq!(
            unknown(Header { checksum: 4, ..new }),
            DecodeErrorKind::ChecksumScheme(4)
        );
    }
}

/// The reader of packets alone does not take stored content for events.
#[test]
fn without_a_decoder_nothing_may_be_done_to_content() {
    let order = Endian::Little;
    let (metadata, content) = one_event(order);
    let plain = Header::new(order);
    let schemes = [
        (plain, None),
        (
            Header { checksum: 3, ..plain },
            Some(DecodeErrorKind::ChecksumScheme(3)),
        ),
        (
            Header { encryption: 1, ..plain },
            Some(DecodeErrorKind::EncryptionScheme(1)),
        ),
        (
            Header {
                compression: 2,
                ..plain
            },
            Some(DecodeErrorKind::CompressionScheme(2)),
        ),
    ];
    for (header, expected) in schemes {
        let data = packet(header, &content, 0);
        let files = directory(&[("metadata", metadata.clone()), ("s_0", data)]);
        let described = open(files.path(), None).unwrap();
        let description = described.description().clone();
        let trace = Trace::described(files.path(), Dialect::Rfc1_1, description, None).unwrap();
        let first = trace
            .stream(0, Options::default())
            .unwrap()
            .next()
            .map(|event| event.is_some());
        match (first, expected) {
            (Ok(found), None) => assert!(found),
            (Err(error), Some(expected)) => match error.kind {
                TraceErrorKind::Packet { error, .. } => assert_eq!(error.kind, expected),
                other => panic!("{other}"),
            },
            (first, expected) => panic!("{first:?}, not {expected:?}"),
        }
    }
}

#[test]
fn errors_have_sources() {
    let files = directory(&[("metadata", metadata(Endian::Little, &["trace }"]))]);
    let error = open(files.path(), None).unwrap_err();
    assert!(error.source().unwrap().is::<tsdl::Error>());
    let line = source_line(&error).unwrap();
    assert_eq!((line.number, line.text.as_str()), (1, "trace }"));
    let target = tempfile::tempdir().unwrap();
    let error = create(target.path(), Description::default(), Packing::default()).unwrap_err();
    let source = error.source().unwrap();
    assert!(source.is::<WriteError>());
    assert!(error.to_string().ends_with(&source.to_string()));
}

#[test]
fn a_key_has_32_bytes() {
    assert!(Key::try_from([0; 31].as_slice()).is_err());
    let key = Key::try_from(KEY.as_slice()).unwrap();
    assert!(!format!("{key:?}").contains("48"), "a key is not shown");
}

#[test]
fn compression_bombs_are_refused() {
    let order = Endian::Little;
    let (metadata, _) = one_event(order);
    let zeros = vec![0; 64 << 20];
    let header = Header {
        compression: 1,
        ..Header::new(order)
    };
    let data = packet(header, &zeros, 0);
    assert!(data.len() < 1000);
    assert_eq!(refused(&[("metadata", metadata), ("s_0", data)]), DecodeErrorKind::Bomb);
    // Small packets of metadata that are large together.
    let spaces = packet(header, &vec![b' '; 1 << 20], 0).repeat(6);
    assert_eq!(refused(&[("metadata", spaces)]), DecodeErrorKind::Bomb);
}

#[test]
fn files_and_sessions_that_do_not_belong() {
    let order = Endian::Little;
    let (metadata, content) = one_event(order);
    let data = packet(Header::new(order), &content, 0);
    for name in ["t", "s_", "s_x", "s0", "s_0_1"] {
        let error = json(&[("metadata", metadata.clone()), (name, data.clone())]).unwrap_err();
        assert!(matches!(error.kind, TraceErrorKind::UnknownSection), "{name}");
    }
    let other = Header {
        session: SESSION + 1,
        ..Header::new(order)
    };
    let other = packet(other, &content, 0);
    assert_eq!(
        refused(&[("metadata", metadata), ("s", other)]),
        DecodeErrorKind::Session(u64::from(SESSION) + 1)
    );
}

#[test]
fn counts_wrap_at_their_significant_bits() {
    let order = Endian::Big;
    let (metadata, content) = one_event(order);
    let numbered = |count, discarded| {
        let header = Header {
            count,
            count_bits: 4,
            discarded,
            ..Header::new(order)
        };
        packet(header, &content, 0)
    };
    let data = [numbered(14, 3), numbered(15, 3), numbered(0, 8), numbered(3, 8)].concat();
    let files = directory(&[("metadata", metadata), ("s_0", data)]);
    let mut events = open(files.path(), None).unwrap().events(Options::default()).unwrap();
    while events.next().unwrap().is_some() {}
    let statistics = events.statistics();
    assert_eq!(
        (
            statistics.packets,
            statistics.events,
            statistics.lost_packets,
            statistics.discarded
        ),
        (4, 200, 2, 5)
    );
}

#[test]
fn recovery_goes_on_after_what_is_damaged() {
    let order = Endian::Little;
    let (metadata, content) = one_event(order);
    let good = packet(Header::new(order), &content, 0);
    let checked = Header {
        checksum: 3,
        ..Header::new(order)
    };
    let mut bad_sum = packet(checked, &content, 0);
    bad_sum[60] ^= 1;
    let mut unknown_id = content.clone();
    unknown_id[80] = 5;
    let unknown_id = packet(Header::new(order), &unknown_id, 0);
    let cut = &good[..48 + 25 * 8 + 3];
    let data = [&good, &bad_sum, &unknown_id, &good, cut].concat();
    let files = directory(&[("metadata", metadata), ("s_0", data)]);
    let trace = open(files.path(), None).unwrap();
    let events_with = |recover| {
        let options = Options {
            recover,
            ..Options::default()
        };
        let mut stream = trace.stream(0, options).unwrap();
        while stream.next().unwrap().is_some() {}
        let kinds: Vec<DecodeErrorKind> = stream.problems().iter().map(|problem| problem.error.kind).collect();
        (stream.statistics().events, kinds)
    };
    let (events, kinds) = events_with(Recover::NextPacket);
    assert_eq!(events, 50 + 10 + 50 + 25);
    assert!(
        matches!(
            kinds[..],
            [
                DecodeErrorKind::Checksum { .. },
                DecodeErrorKind::UnknownEventClass(5),
                DecodeErrorKind::PacketPastEnd { missing: 197 }
            ]
        ),
        "{kinds:?}"
    );
    assert_eq!(events_with(Recover::EndStream).0, 50);
    let mut strict = trace.stream(0, Options::default()).unwrap();
    let error = loop {
        match strict.next() {
            Ok(event) => assert!(event.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind, TraceErrorKind::Packet { .. }));
}

#[test]
fn metadata_errors_say_where() {
    use backtrail_trace::tsdl::ErrorKind;
    use backtrail_trace_rfc::metadata::parse;
    let with = |rest: &str| parse(&format!("trace {{ major = 1; minor = 1; }}\n{rest}"), Endian::Little);
    let section = section("s", 1);
    let fields = |fields: &str| format!("{section}\n{}", event("e", 0, "s", fields));
    for (text, kind, line) in [
        ("type a { parent = b; }".to_owned(), ErrorKind::UnknownType, 2),
        ("type a { parent = a; }".to_owned(), ErrorKind::TooDeep, 2),
        ("type a { parent = integer; }".to_owned(), ErrorKind::Missing("size"), 2),
        (
            "type a { parent = integer; size = 65; }".to_owned(),
            ErrorKind::Value("size"),
            2,
        ),
        (fields("{ integer, x }"), ErrorKind::Abstract, 3),
        (fields("{ int3_t, x }"), ErrorKind::UnknownType, 3),
        (fields("[ uint, x }"), ErrorKind::Expected("a value"), 3),
        (fields("{ uint, x }, { uint, x }"), ErrorKind::Duplicate, 3),
        (format!("{section}\n{section}"), ErrorKind::Duplicate, 3),
        (event("e", 0, "s", ""), ErrorKind::UnknownSection, 2),
        (
            "type a { parent = array; length = 2; elem_type = a; }".to_owned(),
            ErrorKind::TooDeep,
            2,
        ),
    ] {
        let error = with(&text).unwrap_err();
        assert_eq!((error.kind, error.position.line), (kind, line), "{text}");
    }
    assert_eq!(parse("", Endian::Little).unwrap_err().kind, ErrorKind::Missing("trace"));
    // Types that double each other stay within what the text justifies.
    let mut bomb = "type t0 { parent = integer; size = 8; }\n".to_owned();
    for level in 1..40 {
        let below = level - 1;
        bomb += &format!("type t{level} {{ parent = struct; fields = {{ {{ t{below}, a }}, {{ t{below}, b }} }}; }}\n");
    }
    assert_eq!(with(&bomb).unwrap_err().kind, ErrorKind::TooLarge);
}

#[test]
fn the_corpus_decodes_as_expected() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/trace/rfc/cases");
    let Ok(entries) = fs::read_dir(&cases) else {
        backtrail_testkit::skip("no corpus of traces next to the workspace");
        return;
    };
    let mut seen = 0;
    for case in entries {
        let case = case.unwrap().path();
        let printed = read(&case.join("trace"), None, true);
        match fs::read_to_string(case.join("expect.jsonl")) {
            // There the context has a shorter name.
            Ok(expected) => assert_eq!(
                printed.unwrap(),
                expected.replace("\"ctx\":", "\"context\":"),
                "{case:?}"
            ),
            Err(_) => drop(printed.unwrap_err()),
        }
        seen += 1;
    }
    assert!(seen >= 17);
}
