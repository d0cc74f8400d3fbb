//! The fuzz targets for a second each, on valid inputs with a few bytes changed.

use crate::fuzz;
use crate::support;
use crate::support::fuzz::run;
use backtrail_trace::{json2, tsdl};
use backtrail_wire::Endian;

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

#[test]
fn conditions() {
    let texts = [
        "name == \"net:*\" && (len >= 0x10 || !(packet.cpu_id < -1)) && peer",
        "a || b || c = 1.5",
    ];
    let seeds: Vec<(Vec<u8>, usize)> = texts.map(|text| (text.into(), 0)).into();
    run(fuzz::conditions, &seeds, true);
}
