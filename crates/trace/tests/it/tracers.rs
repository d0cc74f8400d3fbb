//! Traces that other tracers have recorded, read by us like babeltrace2: LTTng-UST with contexts,
//! with buffers for each process, a snapshot, a rotation, and what is got from a killed program's
//! buffers; barectf with everything in bytes, and in bits.

use crate::support;
use backtrail_testkit::peers::{Barectf, Lttng, Peer, babeltrace1, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_testkit::scratch;
use backtrail_trace::{Dialect, Trace, convert, find_traces};
use std::path::Path;

/// Compares our text of all traces below a directory with that of babeltrace2, without the warnings
/// of either reader.
fn compare(peer: &Peer, directory: &Path, least: usize) {
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(support::text_below(directory).unwrap()).unwrap();
    same_lines(&text, &String::from_utf8(output.stdout).unwrap());
    assert!(text.lines().count() >= least, "{}", text.lines().count());
}

fn same_lines(text: &str, theirs: &str) {
    for (number, (ours, theirs)) in text.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", number + 1);
    }
    assert_eq!(text.lines().count(), theirs.lines().count());
}

#[test]
fn recorded_by_lttng_2_13() {
    recorded_by_lttng(Lttng::start(), Dialect::V1_8);
}

#[test]
fn recorded_by_lttng_2_16() {
    recorded_by_lttng(Lttng::start_2_16(), Dialect::V2);
}

fn recorded_by_lttng(lttng: Option<Lttng>, dialect: Dialect) {
    let (Some(peer), Some(lttng)) = (babeltrace2_2_1(), lttng) else {
        return;
    };
    let record = |lttng: &Lttng| {
        lttng.events(&["400"]);
    };
    let blocking = ["--blocking-timeout=inf"];
    let contexts = ["vpid", "vtid", "procname", "ip"];
    let trace = lttng.record("contexts", &blocking, &contexts, record);
    compare(&peer, &trace, 400);
    let found = find_traces(&trace).unwrap();
    assert_eq!(Trace::open(&found[0]).unwrap().dialect(), dialect);
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

    compare(&peer, &lttng.crash("crash", 100), 100);
}

#[test]
fn recorded_by_barectf() {
    let (current, before, oldest) = (babeltrace2_2_1(), babeltrace2_2_0(), babeltrace1());
    for description in ["barectf", "barectf_packed"] {
        let Some(barectf) = Barectf::tracer(description) else {
            return;
        };
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        // Packets of 64 KiB: several of them.
        barectf.record(&trace, 2, 6000);
        if let Some(peer) = &current {
            compare(peer, &trace, 12_000);
        }
        let converted = scratch.path().join("converted");
        let opened = Trace::open(&trace).unwrap();
        convert(&opened, &converted, Dialect::V2).unwrap();
        if let Some(peer) = &current {
            compare(peer, &converted, 12_000);
        }
        let text = support::text_below(&trace).unwrap();
        assert_eq!(text, support::text_below(&converted).unwrap());
        if let Some(peer) = &before {
            compare(peer, &trace, 12_000);
        }
        // It aborts where fields have other than whole bytes.
        if let Some(peer) = oldest.as_ref().filter(|_| description == "barectf") {
            let output = peer.command().arg("--clock-seconds").arg(&trace).output().unwrap();
            assert!(output.status.success());
            // It quotes nothing in texts.
            let unquoted = String::from_utf8(text).unwrap().replace('\\', "");
            same_lines(&unquoted, &String::from_utf8(output.stdout).unwrap());
        }
    }
}
