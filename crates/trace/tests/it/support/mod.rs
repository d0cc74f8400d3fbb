//! A trace with every class of field that can be written.
#![allow(dead_code)] // Each test file uses its part.

pub(crate) mod fuzz;
pub(crate) mod json2;
pub(crate) mod verdicts;

use backtrail_testkit::skip;
use backtrail_testkit::text::Random;
use backtrail_trace::description::{
    Array, Base, Clock, Description, Encoding, Enumeration, EnvironmentValue, EventClass, FieldClass, Float, Integer,
    Mapping, Range, Reference, Scope, StreamClass, Struct, Variant, VariantOption, compact_event_header,
    large_event_header, packet_context, packet_header, parse_uuid,
};
use backtrail_trace::{
    ClockFormat, Dialect, EventWriter, Events, Options, PacketFile, StreamOptions, TextWriter, Trace, TraceError,
    TraceWriter, find_traces,
};
use backtrail_wire::Endian;
use std::path::{Path, PathBuf};

pub(crate) const EVERYTHING: u64 = 0;
pub(crate) const EMPTY: u64 = 1;
pub(crate) const STACK: u64 = 40;
pub(crate) const START: u64 = 5_000_000_000;

/// The text of all events of the trace in a directory.
pub(crate) fn text_of(directory: &Path) -> Result<Vec<u8>, TraceError> {
    let mut events = Trace::open(directory)?.events(Options::default())?;
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
    while let Some(event) = events.next()? {
        writer.event(&mut text, &event);
    }
    Ok(text)
}

/// The public traces next to the workspace.
pub(crate) fn corpus() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/trace");
    if !path.join("must.tsv").exists() {
        skip("no corpus of traces next to the workspace");
        return None;
    }
    Some(path)
}

/// The text of all events of the traces in a directory or below.
pub(crate) fn text_below(path: &Path) -> Result<Vec<u8>, TraceError> {
    let mut streams = Vec::new();
    for directory in find_traces(path)? {
        let trace = Trace::open(&directory)?;
        for index in 0..trace.streams().len() {
            streams.push(trace.stream(index, Options::default())?);
        }
    }
    let mut text = Vec::new();
    let mut events = Events::new(streams);
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next()? {
        writer.event(&mut text, &event);
    }
    Ok(text)
}

/// Lines of equal time may come in any order, so the differences of time, which depend on it, are
/// left out.
pub(crate) fn comparable(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| match (line.find(" (+"), line.find(") ")) {
            (Some(start), Some(end)) if start < end => format!("{}{}", &line[..start], &line[end + 1..]),
            _ => line.to_owned(),
        })
        .collect();
    lines.sort();
    lines
}

/// Changes, removes, doubles and moves a few bytes; text stays text.
pub(crate) fn mutate(random: &mut Random, seed: &[u8], from: usize, text: bool) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        if data.len() <= from {
            break;
        }
        let place = from + random.below(data.len() - from);
        let len = random.below(40).min(data.len() - place);
        match random.below(5) {
            0 if !text => data[place] ^= 1 << random.below(8),
            0 | 1 => {
                data[place] = [b"{}[];:=<>,.\"09-_al".as_slice(), &[0, 0xff, 0x80, 1]][usize::from(!text)]
                    [random.below(4 + 14 * usize::from(text))]
            }
            2 => drop(data.drain(place..place + len)),
            3 => {
                let piece = data[place..place + len].to_vec();
                let target = from + random.below(data.len() - from);
                data.splice(target..target, piece);
            }
            _ => data.truncate(place),
        }
    }
    data
}

fn option(name: &str, first: i128, last: i128, class: impl Into<FieldClass>) -> VariantOption {
    VariantOption {
        name: name.to_owned(),
        ranges: vec![Range { first, last }],
        class: class.into(),
    }
}

fn mapping(name: &str, ranges: &[(i128, i128)]) -> Mapping {
    Mapping {
        name: name.to_owned(),
        ranges: ranges.iter().map(|&(first, last)| Range { first, last }).collect(),
    }
}

fn everything(order: Endian) -> Struct {
    let u = |size| Integer::unsigned(size, order);
    let frame = Struct::new()
        .with("n", u(8))
        .with("lines", Array::sequence(Reference::payload(&["frames", "n"]), u(16)))
        .with("name", FieldClass::String(Encoding::Utf8));
    let wide = Struct::new().with("len", u(16)).with(
        "bytes",
        Array::sequence(Reference::payload(&["choice", "wide", "len"]), u(8).hexadecimal()),
    );
    Struct::new()
        .with("u8", u(8))
        .with("u16", u(16).hexadecimal())
        .with(
            "u32",
            Integer {
                base: Base::Octal,
                ..u(32)
            },
        )
        .with("u64", u(64))
        .with(
            "bits",
            Integer {
                base: Base::Binary,
                ..u(8)
            },
        )
        .with("i8", Integer::signed(8, order))
        .with("i16", Integer::signed(16, order).hexadecimal())
        .with("i32", Integer::signed(32, order))
        .with("i64", Integer::signed(64, order))
        .with("net", Integer::unsigned(32, order.swapped()))
        .with("u24", u(24))
        .with(
            "f32",
            Float {
                size: 32,
                align: 8,
                byte_order: order,
                reversed: false,
            },
        )
        .with(
            "f64",
            Float {
                size: 64,
                align: 8,
                byte_order: order,
                reversed: false,
            },
        )
        .with("text", FieldClass::String(Encoding::Utf8))
        .with("fixed_text", Array::fixed(8, Integer::character(Endian::Little)))
        .with("_text_length", u(8))
        .with(
            "long_text",
            Array::sequence(
                Reference::payload(&["_text_length"]),
                Integer::character(Endian::Little),
            ),
        )
        .with("array", Array::fixed(3, Integer::signed(16, order)))
        .with("matrix", Array::fixed(2, Array::fixed(2, u(8))))
        .with("_stack_length", u(16))
        .with(
            "stack",
            Array::sequence(Reference::payload(&["_stack_length"]), u(64).hexadecimal()),
        )
        .with("_frames_length", u(32))
        .with(
            "frames",
            Array::sequence(Reference::payload(&["_frames_length"]), frame),
        )
        .with(
            "inner",
            Struct::new()
                .with("a", u(8))
                .with("b", Struct::new().with("c", Integer::signed(8, order))),
        )
        .with(
            "kind",
            Enumeration {
                integer: Integer::signed(8, order),
                mappings: vec![
                    mapping("narrow", &[(-3, -1)]),
                    mapping("text", &[(0, 0), (7, 7)]),
                    mapping("wide", &[(1, 5)]),
                ],
            },
        )
        .with(
            "choice",
            Variant {
                tag: Reference::payload(&["kind"]),
                options: vec![
                    option("narrow", -3, -1, u(8)),
                    VariantOption {
                        ranges: vec![Range::one(0), Range::one(7)],
                        ..option("text", 0, 0, FieldClass::String(Encoding::Utf8))
                    },
                    option("wide", 1, 5, wide),
                ],
            },
        )
        .with("_context_length_copy", u(8))
        .with(
            "of_context",
            Array::sequence(Reference::new(Scope::StreamEventContext, &["depth"]), u(8)),
        )
        .with("struct", u(8))
}

/// Two stream classes: one with compact and one with large event headers.
pub(crate) fn description(order: Endian) -> Description {
    let event = |id, name: &str, payload: Struct| EventClass {
        id,
        name: name.to_owned(),
        log_level: Some(13),
        context: None,
        payload: Some(payload),
    };
    let stack = Struct::new().with("_ips_length", Integer::unsigned(16, order)).with(
        "ips",
        Array::sequence(
            Reference::payload(&["_ips_length"]),
            Integer::unsigned(64, order).hexadecimal(),
        ),
    );
    let context = Struct::new()
        .with("vpid", Integer::signed(32, order))
        .with("depth", Integer::unsigned(8, order))
        .with("procname", Array::fixed(16, Integer::character(Endian::Little)));
    let mut with_context = event(STACK, "test:stack", stack);
    with_context.context = Some(Struct::new().with("ip", Integer::unsigned(64, order).hexadecimal()));
    let class = |id, header| StreamClass {
        id,
        name: None,
        clock: Some(0),
        packet_context: Some(packet_context(order, 0)),
        event_header: Some(header),
        event_context: Some(context.clone()),
        events: vec![
            event(EVERYTHING, "test:everything", everything(order)),
            event(EMPTY, "test:empty", Struct::new()),
            with_context.clone(),
        ],
    };
    Description {
        uuid: parse_uuid("0dbbdbbe-c726-4ca0-b516-19f9b5ee2ef7"),
        byte_order: Some(order),
        // In the order of their names, since JSON keeps none.
        environment: vec![
            ("architecture_bit_width".into(), EnvironmentValue::Integer(64)),
            ("domain".into(), EnvironmentValue::String("ust".into())),
            ("hostname".into(), EnvironmentValue::String("the \"host\"".into())),
            ("tracer_name".into(), EnvironmentValue::String("backtrail".into())),
        ],
        clocks: vec![Clock {
            uuid: parse_uuid("43011dd4-bab2-40f1-81de-47f9f9f3bd33"),
            description: Some("Monotonic clock".into()),
            ..Clock::nanoseconds("monotonic", 1_795_185_990_900_000_741)
        }],
        packet_header: Some(packet_header(order)),
        streams: vec![
            class(0, compact_event_header(order, 0)),
            class(1, large_event_header(order, 0)),
        ],
        ..Description::default()
    }
}

/// The fields that every event has.
fn context(event: &mut EventWriter<'_>, number: u64) {
    event.i32(1234);
    event.u8((number % 3) as u8);
    event.string("proc ä");
}

/// An event whose values depend on its number.
pub(crate) fn put_everything(event: &mut EventWriter<'_>, number: u64) {
    context(event, number);
    let signed = number as i64 - 3;
    event.u8(number as u8);
    event.u16(0xabc0 + number as u16 % 16);
    event.u32(number as u32 * 9);
    event.u64(u64::MAX - number);
    event.u8(number as u8);
    event.signed(signed % 128);
    event.signed(signed);
    event.i32(signed as i32);
    event.i64(i64::MIN + number as i64);
    event.u32(0x0102_0304);
    event.u32(0x00ff_0000 + number as u32);
    event.f64(number as f64 / 4.0);
    event.f64(-1.5e-9 * number as f64);
    event.string(&format!("line \"{number}\" ü\\\n\tend"));
    // Never empty: of an empty one babeltrace2 2.0.4 prints what it has printed before.
    event.string("12345678".get(..1 + number as usize % 8).unwrap());
    event.sequence_len(4);
    event.string("four");
    for value in [-1, 0, signed] {
        event.i64(value);
    }
    event.bytes(&[1, 2]);
    event.bytes(&[3, 4]);
    let stack: Vec<u64> = (0..number % 5).map(|frame| 0x5555_0000 + frame * 16).collect();
    event.sequence_len(stack.len());
    event.u64s(&stack);
    event.sequence_len(number as usize % 3);
    for frame in 0..number % 3 {
        event.sequence_len(frame as usize);
        for line in 0..frame {
            event.u16(line as u16 + 100);
        }
        event.string("frame");
    }
    event.u8(7);
    event.signed(-7);
    let kind = [-2, 0, 3, 7][number as usize % 4];
    event.signed(kind);
    match kind {
        -2 => event.u8(9),
        3 => {
            event.sequence_len(3);
            event.bytes(b"abc");
        }
        _ => event.string("chosen"),
    }
    event.u8(0);
    event.bytes(&[5; 2][..number as usize % 3]);
    event.u8(1);
}

fn put_stack(event: &mut EventWriter<'_>, number: u64, len: u64) {
    context(event, number);
    event.u64(0x4000 + number);
    event.sequence_len(len as usize);
    for frame in 0..len {
        event.u64(0x7fff_0000 + frame);
    }
}

/// A packet of a few events of every class, with jumps of time on both sides of what 27 and 32 bits
/// say.
pub(crate) fn fill(stream: &mut PacketFile, base: u64, number: u64) {
    let writer = stream.writer();
    writer.begin(base);
    let steps = [0, 1, (1 << 27) - 1, 1 << 27, 1 << 32, 5];
    let mut time = base;
    for (index, step) in (0..).zip(steps) {
        time += step;
        let mut event = writer.event(EVERYTHING, time);
        put_everything(&mut event, number + index);
        event.finish().unwrap();
        let mut event = writer.event(EMPTY, time);
        context(&mut event, number);
        event.finish().unwrap();
        let mut event = writer.event(STACK, time + 3);
        put_stack(&mut event, number, index * 7);
        event.finish().unwrap();
    }
    // Its contents could tell about all the others.
    let mut event = writer.front_event(STACK);
    put_stack(&mut event, number + 1000, 2);
    event.finish().unwrap();
}

/// Two streams of each class, several packets each; how many events there are.
pub(crate) fn write_trace(directory: &Path, dialect: Dialect, order: Endian) -> u64 {
    let trace = TraceWriter::create(directory, description(order), dialect).unwrap();
    let mut events = 0;
    for class in 0..2u64 {
        for cpu in 0..2u32 {
            let name = format!("channel{class}_{cpu}");
            let mut stream = trace.stream(&name, StreamOptions::for_cpu(class, cpu)).unwrap();
            for packet in 0..4u64 {
                let base = START + packet * 20_000_000_000 + u64::from(cpu) * 777 + class * 31;
                if packet == 2 {
                    // A packet of nothing.
                    stream.flush(base).unwrap();
                    continue;
                }
                fill(&mut stream, base, packet * 4 + u64::from(cpu));
                events += stream.writer().events();
                stream.flush(base + 10_000_000_000).unwrap();
            }
        }
    }
    events
}
