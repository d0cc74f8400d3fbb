//! Traces that LTTng-UST records: contexts, buffers for each process, a snapshot, a rotation.

mod support;

use backtrail_testkit::peers::{Lttng, Peer, babeltrace2_2_1};
use backtrail_trace::{ClockFormat, Events, Options, TextWriter, Trace, find_traces};
use std::path::Path;

/// Our text of all traces below a directory, which must be that of babeltrace2.
fn compare(peer: &Peer, directory: &Path, least: usize) {
    let mut streams = Vec::new();
    for directory in find_traces(directory).unwrap() {
        let trace = Trace::open(&directory).unwrap();
        streams.extend((0..trace.streams().len()).map(|index| trace.stream(index, Options::default()).unwrap()));
    }
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
    let mut events = Events::new(streams);
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text, String::from_utf8(output.stdout).unwrap());
    assert!(text.lines().count() >= least, "{}", text.lines().count());
}

#[test]
fn recorded_now() {
    let (Some(peer), Some(lttng)) = (babeltrace2_2_1(), Lttng::start()) else {
        return;
    };
    let record = |lttng: &Lttng| {
        lttng.events(&["400"]);
    };
    let blocking = ["--blocking-timeout=inf"];
    let contexts = ["vpid", "vtid", "procname", "ip"];
    let trace = lttng.record("contexts", &blocking, &contexts, record);
    compare(&peer, &trace, 400);
    let trace = lttng.record("processes", &["--buffers-pid"], &[], |lttng| {
        record(lttng);
        record(lttng);
    });
    compare(&peer, &trace, 800);

    let trace = lttng.folder().join("snapshot");
    let option = format!("--output={}", trace.display());
    lttng.lttng(&["create", "snapshot", "--snapshot", &option]);
    lttng.channel(&["--subbuf-size=4096", "--num-subbuf=4"], &[]);
    lttng.lttng(&["start"]);
    lttng.events(&["2000"]);
    lttng.lttng(&["snapshot", "record"]);
    lttng.lttng(&["destroy"]);
    compare(&peer, &trace, 20);

    let trace = lttng.record("rotation", &blocking, &[], |lttng| {
        record(lttng);
        lttng.lttng(&["rotate"]);
        record(lttng);
    });
    compare(&peer, &trace, 800);
}
