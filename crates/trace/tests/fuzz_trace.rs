//! The fuzz targets for two seconds each, on valid inputs with a few bytes changed.

mod support;

use backtrail_testkit::text::Random;
use backtrail_trace::{Dialect, fuzz, json2, tsdl};
use backtrail_wire::Endian;
use std::time::{Duration, Instant};
use support::mutate;

fn run(target: fn(&[u8]), seeds: &[(Vec<u8>, usize)], text: bool) {
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let mut runs = 0u64;
    for (seed, _) in seeds {
        target(seed);
    }
    while start.elapsed() < Duration::from_secs(2) {
        let (seed, from) = &seeds[random.below(seeds.len())];
        target(&mutate(&mut random, seed, *from, text));
        runs += 1;
    }
    println!("{runs} runs");
    assert!(runs > 100);
}

/// What LTTng writes and our own writer doesn't.
const TSDL: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 32; align = 8; } := uint32_t;
typealias integer { size = 64; align = 8; } := unsigned long;
typealias integer { size = 5; align = 1; } := uint5_t;
trace { major = 1; minor = 8; uuid = \"788c37bb-3a42-4bd9-8ae8-755ba0c059c4\"; byte_order = be;
	packet.header := struct { uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; }; };
clock { name = monotonic; freq = 1000000000; offset_s = -1; offset = 17; };
typealias integer { size = 27; align = 1; map = clock.monotonic.value; } := uint27_clock_t;
struct event_header_compact {
	enum : uint5_t { compact = 0 ... 30, extended = 31 } id;
	variant <id> {
		struct { uint27_clock_t timestamp; } compact;
		struct { uint32_t id; integer { size = 64; map = clock.monotonic.value; } timestamp; } extended;
	} v;
} align(8);
stream { id = 0; event.header := struct event_header_compact;
	packet.context := struct { unsigned long content_size; unsigned long packet_size; uint8_t n; }; };
event { name = \"a\"; id = 0; stream_id = 0; fields := struct {
	typedef uint8_t pair[2]; pair _pairs[stream.packet.context.n]; string _s;
	variant <stream.event.header.id> { uint8_t compact; string extended; } _x; }; };
event { name = b; id = 1; stream_id = 0; context := struct { uint8_t k; };
	fields := struct { struct { uint8_t m; uint32_t v[m]; } one[k]; floating_point { exp_dig = 8; mant_dig = 24; } f; }; };
callsite { name = \"a\"; func = \"f\"; };
";

#[test]
fn tsdl_text() {
    let ours = tsdl::write(&support::description(Endian::Big)).unwrap();
    tsdl::parse(TSDL).unwrap();
    run(fuzz::tsdl, &[(ours.into_bytes(), 0), (TSDL.into(), 0)], true);
}

#[test]
fn json2_text() {
    let ours = json2::write(&support::description(Endian::Little)).unwrap();
    let more = support::json2::METADATA;
    json2::parse(more).unwrap();
    run(fuzz::json2, &[(ours.into_bytes(), 0), (more.into(), 0)], true);
}

/// The RFC's kinds of types, and what they inherit.
const RFC: &str = "trace { major = 1; minor = 1; }
type uint8_t { parent = integer; size = 8; }
type uint32_t { parent = integer; size = 32; signed = false; align = 32; byte_order = network; }
abstract_type wide { parent = integer; size = 64; };
type kind { parent = enum; parent = uint8_t; map = { { 0, a }, { -1, \"b\" } }; }
type pair { parent = struct; fields = { { type { parent = wide; align = 1; }, x } { kind, y }, }; };
section { name = s; event { header_type = type1; context { event_size = true; } } }
section { name = t; event { header_type = type2; context = type { parent = struct; fields = { { uint, pid } }; } } }
event { name = one; id = 1; section = s; fields = type { parent = struct; fields = {
  { type { parent = sequence; length_type = uint8_t; elem_type = pair; }, q },
  { type { parent = array; length = 3; elem_type = uint32_t; }, r },
  { type { parent = gcc_bitfield; unit_size = 16; size = 5; align = 1; }, b },
  { type { parent = string; encoding = UTF8; }, n },
  { type { parent = floating_point; exp_dig = 8; mant_dig = 24; }, f } }; }; }
";

#[test]
fn rfc_text() {
    backtrail_trace::rfc::parse(RFC, Endian::Little).unwrap();
    run(fuzz::rfc, &[(RFC.into(), 0)], true);
}

/// Every dialect, plain and compressed.
#[test]
fn whole_traces() {
    use support::rfc::{Header, metadata, packet};
    let seed = |metadata: &[u8], stream: &[u8]| {
        let length = (metadata.len() as u32).to_le_bytes();
        ([&length, metadata, stream].concat(), 4)
    };
    let mut seeds = Vec::new();
    for order in [Endian::Little, Endian::Big] {
        let metadata = metadata(order, &[RFC]);
        let content: Vec<u8> = (0..200u8).map(|byte| byte % 32).collect();
        for compression in 0..3 {
            let header = Header {
                compression,
                ..Header::new(order)
            };
            let one = packet(header, &content, 7);
            seeds.push(seed(&metadata, &[one.as_slice(), &one].concat()));
        }
    }
    for (dialect, order) in [(Dialect::V1_8, Endian::Big), (Dialect::V2, Endian::Little)] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        support::write_trace(&directory, dialect, order);
        let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
        seeds.push(seed(&read("metadata"), &read("channel0_0")[..16384]));
    }
    let events = support::json2::event(1, 5).repeat(4);
    seeds.push(seed(support::json2::METADATA.as_bytes(), &events));
    run(fuzz::trace, &seeds, false);
}

#[test]
fn packets() {
    let mut seeds = Vec::new();
    for (dialect, order) in [(Dialect::V1_8, Endian::Little), (Dialect::V2, Endian::Big)] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        support::write_trace(&directory, dialect, order);
        let mut seed = std::fs::read(directory.join("metadata")).unwrap();
        seed.extend([0, 0]);
        let start = seed.len();
        seed.extend(&std::fs::read(directory.join("channel0_0")).unwrap()[..16384]);
        seeds.push((seed, start));
    }
    run(fuzz::packet, &seeds, false);
}

#[test]
fn every_read_may_fail() {
    for dialect in [Dialect::V1_8, Dialect::V2] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        support::write_trace(&directory, dialect, Endian::Little);
        let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
        let reads = fuzz::failing_reads(&read("metadata"), &read("channel0_0"));
        // Each of four packets is one, or two where it is longer than what is read first.
        assert!((4..=8).contains(&reads), "{reads}");
    }
}
