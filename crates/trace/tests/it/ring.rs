//! Events in a ring buffer: what was put in is read, by us and by babeltrace2; old packets make
//! room; what a killed writer leaves is whole but for the event in flight; and no code of it
//! allocates or panics.

use crate::support;
use backtrail_testkit::peers::{Peer, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_testkit::raw::shared_file;
use backtrail_testkit::reached::{Compiler, FRAME, mentions};
use backtrail_testkit::text::Random;
use backtrail_trace::description::{
    Array, Clock, Description, Encoding, EventClass, FieldClass, Integer, Reference, Struct, compact_event_header,
};
use backtrail_trace::{
    Dialect, EncodeError, Events, Options, Plan, Ring, RingLayout, StreamOptions, Trace, TraceWriter, packets_of_ring,
    salvage,
};
use backtrail_wire::Endian;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const NUMBERED: u32 = 3;
const STACK: u32 = 40;
const EMPTY: u32 = 0;
const PACKET: usize = 8192;

fn description(compact: bool) -> Description {
    let order = Endian::NATIVE;
    let u = |size| Integer::unsigned(size, order);
    let numbered = Struct::new()
        .with("number", u(64))
        .with("twice", Integer::signed(32, order))
        .with("text", FieldClass::String(Encoding::Utf8));
    let length = Reference::payload(&["_ips_length"]);
    let stack = Struct::new()
        .with("_ips_length", u(16))
        .with("ips", Array::sequence(length, u(64).hexadecimal()));
    let events = vec![
        EventClass::new(NUMBERED.into(), "ring:numbered", numbered),
        EventClass::new(STACK.into(), "ring:stack", stack),
        EventClass::new(EMPTY.into(), "ring:empty", Struct::new()),
    ];
    let mut description = Description::of_events(Clock::nanoseconds("monotonic", 0), events);
    description.uuid = Some(*b"a trace of a rin");
    // One of the ids is beyond what compact headers say in short.
    if compact {
        description.streams[0].event_header = Some(compact_event_header(order, 0));
    }
    description
}

fn layout(compact: bool) -> (Arc<Plan>, RingLayout) {
    let plan = Arc::new(Plan::new(description(compact)).unwrap());
    let layout = RingLayout::new(&plan, StreamOptions::for_cpu(0, 3)).unwrap();
    (plan, layout)
}

/// Steps of the time that need every form of the headers.
const STEPS: [u64; 6] = [0, 1, (1 << 27) - 1, 1 << 27, 1 << 32, 3];

fn put(ring: &mut Ring<'_>, number: u64, time: u64) -> bool {
    let event = match number % 3 {
        0 => ring.event(NUMBERED, time, 8 + 4 + 20).map(|mut event| {
            event.u64(number);
            event.i32(-2 * number as i32);
            event.text(format!("text {number}").as_bytes());
            event
        }),
        1 => ring.event(STACK, time, 2 + 16 * 8).map(|mut event| {
            let ips: Vec<u64> = (0..number % 17).map(|frame| 0x7fff_0000_0000 + frame).collect();
            event.u16(ips.len() as u16);
            event.u64s(&ips);
            event
        }),
        _ => ring.event(EMPTY, time, 0),
    };
    event.is_some_and(|event| event.commit())
}

/// A trace of these packets.
fn stored<'p>(directory: &Path, compact: bool, packets: impl IntoIterator<Item = &'p [u8]>) {
    TraceWriter::create(directory, description(compact), Dialect::V1_8).unwrap();
    let bytes: Vec<u8> = packets.into_iter().flatten().copied().collect();
    fs::write(directory.join("stream_3"), bytes).unwrap();
}

fn peer_text(peer: &Peer, directory: &Path) -> String {
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn packets_are_those_of_a_trace() {
    for compact in [true, false] {
        let (plan, layout) = layout(compact);
        let mut memory = vec![0xaa; 10 * PACKET + 100];
        let mut ring = Ring::new(layout, &mut memory, PACKET, 1_000).unwrap();
        let mut time = 1_000;
        for (number, step) in (0..).zip(STEPS.into_iter().cycle().take(600)) {
            time += step;
            assert!(put(&mut ring, number, time));
            if number == 300 {
                // An event that is begun and dropped was never there.
                let mut event = ring.event(NUMBERED, time, 10).unwrap();
                event.u64(u64::MAX);
            }
        }
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        stored(&directory, compact, ring.packets());
        let ours = String::from_utf8(support::text_of(&directory).unwrap()).unwrap();
        assert_eq!(ours.lines().count(), 600);
        assert!(ours.contains("ring:numbered: { cpu_id = 3 }, { number = 597, twice = -1194, text = \"text 597\" }"));
        for peer in [babeltrace2_2_0(), babeltrace2_2_1()].iter().flatten() {
            assert_eq!(ours, peer_text(peer, &directory));
        }
        // Who looks at the memory finds the same.
        let packets: Vec<Vec<u8>> = ring.packets().map(<[u8]>::to_vec).collect();
        assert!(packets.len() >= 3);
        assert_eq!(packets_of_ring(&plan, &memory), packets);
    }
}

#[test]
fn the_oldest_packets_make_room_and_what_was_taken_is_gone() {
    let (plan, layout) = layout(true);
    let mut memory = vec![0; 3 * PACKET];
    let mut ring = Ring::new(layout, &mut memory, PACKET, 5).unwrap();
    let numbers = |packets: &mut dyn Iterator<Item = &[u8]>| {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        stored(&directory, true, packets);
        let mut stream = Trace::open(&directory).unwrap().stream(0, Options::default()).unwrap();
        let mut numbers = Vec::new();
        while let Some(event) = stream.next().unwrap() {
            numbers.push(event.field("number").unwrap().as_u64().unwrap());
        }
        assert_eq!(stream.statistics().lost_packets, 0);
        numbers
    };
    let write = |ring: &mut Ring<'_>, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let mut event = ring.event(NUMBERED, number, 13).unwrap();
            event.u64(number);
            event.i32(0);
            event.text(b"");
            assert!(event.commit());
        }
    };
    write(&mut ring, 0..10_000);
    let kept = numbers(&mut ring.packets());
    assert!(
        kept.len() > 2 * PACKET / 20 && kept.len() < 3 * PACKET / 17,
        "{}",
        kept.len()
    );
    assert!(kept.iter().copied().eq(10_000 - kept.len() as u64..10_000));
    let mut taken = Vec::new();
    ring.take(10_000, |packet| taken.push(packet.to_vec()));
    assert_eq!(numbers(&mut taken.iter().map(Vec::as_slice)), kept);
    write(&mut ring, 10_000..10_010);
    assert!(numbers(&mut ring.packets()).into_iter().eq(10_000..10_010));
    assert_eq!(packets_of_ring(&plan, &memory).len(), 1);
}

#[test]
fn what_has_no_room_is_counted() {
    let (_, layout) = layout(false);
    let mut memory = vec![0; 4096];
    assert!(Ring::new(layout, &mut memory[..4095], 4096, 0).is_err());
    assert!(Ring::new(layout, &mut memory, 4095, 0).is_err());
    let mut ring = Ring::new(layout, &mut memory, 4096, 0).unwrap();
    assert!(ring.event(NUMBERED, 1, 4096).is_none());
    assert!(ring.event(NUMBERED, 1, usize::MAX).is_none());
    // More than was said, up to the packet's end, is not yet too much.
    let mut event = ring.event(NUMBERED, 1, 1).unwrap();
    event.bytes(&[1; 100]);
    assert!(event.commit());
    let mut event = ring.event(NUMBERED, 1, 1).unwrap();
    event.bytes(&[1; 4000]);
    assert!(!event.commit());
    let mut event = ring.event(NUMBERED, 1, 1).unwrap();
    event.u64s(&[1; 600]);
    assert!(!event.commit());
    assert_eq!(ring.discarded(), 4);
    // Headers of others cannot be filled in.
    let plan = Arc::new(Plan::new(support::description(Endian::NATIVE.swapped())).unwrap());
    let refused = RingLayout::new(&plan, StreamOptions::for_cpu(0, 0));
    assert_eq!(refused.unwrap_err(), EncodeError::Unwritable);
}

/// Names the directory in which a child of this test writes.
const DIRECTORY: &str = "BACKTRAIL_TEST_DIRECTORY";
const RING_BYTES: u64 = 64 * PACKET as u64;

/// Not a test of its own: what is killed. The number of committed events is in a file of its
/// own.
#[test]
#[ignore = "started by the other tests"]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let directory = Path::new(&directory);
    let (_, layout) = layout(true);
    let mut counter = shared_file(&directory.join(".counter"), 8).unwrap();
    let mut memory = shared_file(&directory.join(".stream_3.ring"), RING_BYTES).unwrap();
    let mut ring = Ring::new(layout, &mut memory, PACKET, 0).unwrap();
    for number in 0u64.. {
        let mut event = ring.event(NUMBERED, number * 3, 8 + 4 + 20).unwrap();
        event.u64(number);
        event.i32(-2 * number as i32);
        event.text(&b"a text, not always as long"[..number as usize % 19]);
        assert!(event.commit());
        counter.copy_from_slice(&(number + 1).to_ne_bytes());
    }
}

fn killed(times: u32) {
    let peers = [babeltrace2_2_0(), babeltrace2_2_1()];
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let (mut in_flight, mut wrapped) = (0, 0);
    for round in 0..times {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        TraceWriter::create(&directory, description(true), Dialect::V1_8).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "ring::writer", "--ignored"])
            .env(DIRECTORY, &directory);
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        let counted = || {
            let mut count = [0; 8];
            let file = File::open(directory.join(".counter"));
            file.and_then(|file| file.read_exact_at(&mut count, 0))
                .map_or(0, |()| u64::from_ne_bytes(count))
        };
        while counted() == 0 {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the writer runs until it is killed"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let committed = counted();
        // What is read from the ring itself is what becomes a stream.
        let trace = Trace::open(&directory).unwrap();
        assert!(trace.streams().is_empty());
        let mut events = Events::new(trace.rings(Options::default()).unwrap());
        let mut from_ring = 0;
        while events.next().unwrap().is_some() {
            from_ring += 1;
        }
        let made = salvage(&directory).unwrap();
        assert_eq!(made, [directory.join("stream_3")]);
        let mut stream = Trace::open(&directory).unwrap().stream(0, Options::default()).unwrap();
        let (mut first, mut next) = (None, 0);
        while let Some(event) = stream.next().unwrap() {
            let number = event.field("number").unwrap().as_u64().unwrap();
            let expected = *first.get_or_insert(number) + next;
            assert_eq!(number, expected);
            assert_eq!(
                event.field("twice").unwrap().as_i64(),
                Some(i64::from(-2 * number as i32))
            );
            let text = &"a text, not always as long"[..number as usize % 19];
            assert_eq!(event.field("text").unwrap().as_str(), Some(text));
            next += 1;
        }
        assert_eq!(from_ring, next);
        assert!(
            Trace::open(&directory)
                .unwrap()
                .rings(Options::default())
                .unwrap()
                .is_empty()
        );
        // All that was committed is there, up to what the ring holds, and at most the one that was
        // not counted yet.
        let last = first.map_or(0, |first| first + next);
        assert!(
            last == committed || last == committed + 1,
            "{committed} committed, the last is {last}"
        );
        in_flight += u32::from(last > committed);
        wrapped += u32::from(first > Some(0));
        let first = first.unwrap_or(0);
        assert!(
            first == 0 || next as usize > 62 * PACKET / 40,
            "{next} events from {first} on"
        );
        if round % 50 == 0 {
            for peer in peers.iter().flatten() {
                assert_eq!(peer_text(peer, &directory).lines().count() as u64, next);
            }
        }
    }
    println!(
        "killed {times} times, {wrapped} of them after the ring was full, {in_flight} before an event was counted"
    );
}

#[test]
fn a_killed_writer_loses_the_event_in_flight_at_most() {
    killed(60);
}

#[test]
#[ignore = "half a minute"]
fn a_thousand_killed_writers() {
    killed(1000);
}

/// What the signal handler's part of a ring may not refer to.
const FORBIDDEN: [&str; 3] = ["panicking", "__rust_alloc", "5alloc"];

const CALLS: &str = r#"
use ring::{Ring, RingLayout};

#[no_mangle]
pub fn audited_new<'m>(layout: RingLayout, memory: &'m mut [u8], bytes: usize, time: u64) -> Option<Ring<'m>> {
    Ring::new(layout, memory, bytes, time).ok()
}

#[no_mangle]
pub fn audited_event(ring: &mut Ring<'_>, id: u32, time: u64, room: usize, ips: &[u64], text: &[u8]) -> bool {
    let Some(mut event) = ring.event(id, time, room) else { return false };
    event.u8(1);
    event.u16(ips.len() as u16);
    event.u32(1);
    event.u64(1);
    event.i64(-1);
    event.f64(0.5);
    event.u64s(ips);
    event.bytes(text);
    event.text(text);
    event.commit()
}

#[no_mangle]
pub fn audited_packets(ring: &mut Ring<'_>, time: u64) -> usize {
    ring.discard(1);
    ring.end_packet(time);
    let mut bytes = ring.packets().map(|packet| packet.len()).sum();
    ring.take(time, |packet| bytes += packet.len());
    bytes
}
"#;

/// Panics: seen that the search finds it.
const PANICS: &str = "#[no_mangle]\npub fn audited_index(bytes: &[u8], at: usize) -> u8 { bytes[at] }\n";

#[test]
fn the_handlers_part_has_no_way_to_panic_or_to_allocate() {
    let compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ring.rs");
    // It uses nothing of its crate, so it is one for this purpose.
    let module = format!("#[path = {source:?}]\nmod ring;\n");
    let object = compiler.reached("audited", &[FRAME, &module, CALLS].concat());
    for function in ["audited_new", "audited_event", "audited_packets"] {
        assert!(mentions(&object, function), "{function} was compiled");
    }
    for name in FORBIDDEN {
        assert!(!mentions(&object, name), "the object code mentions {name}");
    }
    let control = compiler.reached("control", &[FRAME, &module, CALLS, PANICS].concat());
    assert!(mentions(&control, "panicking"));
}
