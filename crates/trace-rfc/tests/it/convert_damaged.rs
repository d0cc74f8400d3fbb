//! Damaged traces are converted or refused; what was converted says what we read from the original.

use crate::bytes::{Header, event, metadata, packet, section, types, u16, u32};
use crate::fuzz;
use crate::support;
use backtrail_testkit::text::Random;
use backtrail_trace::{Dialect, StreamOptions, TraceWriter};
use backtrail_wire::Endian;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A trace of the RFC, and one of 1.8 that it can express.
fn seeds(folder: &Path) -> Vec<(Dialect, Vec<u8>, Vec<u8>)> {
    let order = Endian::Big;
    let fields = "{ type { parent = sequence; length_type = uint8_t; elem_type = uint16_t; }, s },
        { type { parent = enum; parent = int8_t; map = { { -1, a }, { 2, b } }; }, e },
        { type { parent = gcc_bitfield; unit_size = 16; size = 5; align = 1; }, f }, { type { parent = string; }, t }";
    let text = [types(false), section("s", 2), event("a", 7, "s", fields)];
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    let mut content = Vec::new();
    for time in 0..20 {
        content.extend(
            [
                u32(order, time).as_slice(),
                &u16(order, 7),
                &[2],
                &u16(order, 9),
                &u16(order, 3),
            ]
            .concat(),
        );
        content.extend([0xff, 0xa8]);
        content.extend(b"text\0");
        // The next event is aligned on the unit.
        content.resize(content.len().next_multiple_of(2), 0);
    }
    let stream = packet(Header::new(order), &content, 0);
    let rfc = (Dialect::Rfc1_1, metadata(order, &text), stream.repeat(2));
    let directory = folder.join("seed");
    let mut description = support::description(Endian::Little);
    description.streams.truncate(1);
    description.streams[0].events.retain(|event| event.id == support::EMPTY);
    let trace = TraceWriter::create(&directory, description, Dialect::V1_8).unwrap();
    let mut stream = trace.stream("s_0", StreamOptions::for_cpu(0, 0)).unwrap();
    for time in 0..20 {
        let mut event = stream.writer().event(support::EMPTY, time << 25);
        event.i32(-1);
        event.u8(time as u8);
        event.string("name");
        event.finish().unwrap();
    }
    stream.flush(1 << 40).unwrap();
    let read = |name: &str| fs::read(directory.join(name)).unwrap();
    vec![rfc, (Dialect::V1_8, read("metadata"), read("s_0"))]
}

#[test]
fn damaged_traces() {
    let scratch = tempfile::tempdir().unwrap();
    let seeds = seeds(scratch.path());
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let (mut converted, mut refused) = (0, 0);
    let mut round = 0;
    // For a second, and at least forty of them however busy the machine is.
    while round < 40 || start.elapsed() < Duration::from_secs(1) {
        let (dialect, metadata, stream) = &seeds[round % seeds.len()];
        let (mut metadata, mut stream) = (metadata.clone(), stream.clone());
        // The first of each as it is, mostly the stream, sometimes the metadata.
        if round >= seeds.len() {
            let (bytes, most) = match random.below(4) {
                0 => (&mut metadata, 2000),
                _ => (&mut stream, 400),
            };
            for _ in 0..1 + random.below(3) {
                let place = random.below(bytes.len().min(most));
                bytes[place] ^= 1 << random.below(8);
            }
            let cut = random.below(8) == 0;
            stream.truncate(if cut { random.below(stream.len()) } else { stream.len() });
        }
        let length = (metadata.len() as u32).to_le_bytes();
        let done = fuzz::convert(&[&length, metadata.as_slice(), &stream].concat());
        assert!(round >= seeds.len() || done.refused == 0, "{dialect}");
        converted += done.made;
        refused += done.refused;
        round += 1;
    }
    println!("{round} traces: {converted} conversions, {refused} refused");
    assert!(converted > 20 && refused > 5);
}
