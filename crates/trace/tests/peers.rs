//! What we write is read by us and by both series of babeltrace2, with the same text and without a warning.

mod support;

use backtrail_testkit::peers::{Peer, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_trace::{ClockFormat, Dialect, Events, Options, TextWriter, Trace, json2, tsdl};
use backtrail_wire::Endian;
use std::path::Path;

fn our_text(directory: &Path) -> (String, u64) {
    let trace = Trace::open(directory).unwrap();
    let mut events: Events = trace.events(Options::default()).unwrap();
    let mut text = Vec::new();
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    let statistics = events.statistics();
    assert_eq!(
        (statistics.discarded, statistics.lost_packets, statistics.damaged),
        (0, 0, 0)
    );
    (String::from_utf8(text).unwrap(), statistics.events)
}

fn peer_text(peer: &Peer, directory: &Path) -> String {
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{}: {errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

fn compare(ours: &str, theirs: &str) {
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", number + 1);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

fn every_class(dialect: Dialect, order: Endian, peers: &[Option<Peer>]) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let written = support::write_trace(&directory, dialect, order);
    let (ours, events) = our_text(&directory);
    assert_eq!(events, written);
    for peer in peers.iter().flatten() {
        compare(&ours, &peer_text(peer, &directory));
    }
}

#[test]
fn little_endian_1_8() {
    every_class(Dialect::V1_8, Endian::Little, &[babeltrace2_2_0(), babeltrace2_2_1()]);
}

#[test]
fn big_endian_1_8() {
    every_class(Dialect::V1_8, Endian::Big, &[babeltrace2_2_0(), babeltrace2_2_1()]);
}

#[test]
fn little_endian_2() {
    every_class(Dialect::V2, Endian::Little, &[babeltrace2_2_1()]);
}

#[test]
fn big_endian_2() {
    every_class(Dialect::V2, Endian::Big, &[babeltrace2_2_1()]);
}

#[test]
fn both_dialects_say_the_same() {
    for order in [Endian::Little, Endian::Big] {
        let description = support::description(order);
        assert_eq!(
            tsdl::parse(&tsdl::write(&description).unwrap()).unwrap().streams,
            description.streams
        );
        let mut from_json = json2::parse(&json2::write(&description).unwrap()).unwrap();
        // CTF 2 has no byte order for the whole trace, and for single bytes any is as good.
        from_json.byte_order = Some(order);
        let text = |description| tsdl::write(description).unwrap();
        let lines = |text: String| -> String {
            let line = |line: &str| match line.contains("size = 8;") {
                true => line.replace(" byte_order = le;", "") + "\n",
                false => line.to_owned() + "\n",
            };
            text.lines().map(line).collect()
        };
        compare(&lines(text(&description)), &lines(text(&from_json)));
    }
}
