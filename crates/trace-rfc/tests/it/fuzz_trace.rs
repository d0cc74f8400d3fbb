//! The fuzz targets for a second each, on valid inputs with a few bytes changed.

use crate::fuzz;
use crate::support;
use crate::support::fuzz::run;
use backtrail_trace::Dialect;
use backtrail_wire::Endian;

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
    backtrail_trace_rfc::metadata::parse(RFC, Endian::Little).unwrap();
    run(fuzz::rfc, &[(RFC.into(), 0)], true);
}

/// Every dialect, plain and compressed.
#[test]
fn whole_traces() {
    use crate::bytes::{Header, metadata, packet};
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
