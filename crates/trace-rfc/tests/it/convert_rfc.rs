//! From and to the RFC's dialect: events are what they were, there and back, and babeltrace2 reads
//! what came of the RFC's.

use crate::support;
use backtrail_testkit::peers::{babeltrace2_2_0, babeltrace2_2_1};
use backtrail_trace::description::{Clock, Description, EventClass, Float, Integer, Struct};
use backtrail_trace::{
    CreateErrorKind, Dialect, JsonWriter, Options, Statistics, StreamOptions, StreamReader, TraceError, TraceWriter,
};
use backtrail_trace_rfc::{Checksum, Compression, Key, Packing, Unsaid, convert, open};
use backtrail_wire::Endian;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/trace");
    match corpus.join("must.tsv").exists() {
        true => Some(corpus),
        false => {
            backtrail_testkit::skip("no corpus of traces next to the workspace");
            None
        }
    }
}

fn json(directory: &Path) -> Result<String, TraceError> {
    let mut events = open(directory, None)?.events(Options::default())?;
    let mut text = Vec::new();
    while let Some(event) = events.next()? {
        JsonWriter.event(&mut text, &event);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What the tracer lost, of each stream.
fn losses(directory: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let trace = open(directory, None).unwrap();
    let read = |mut stream: StreamReader| {
        while stream.next().unwrap().is_some() {}
        let Statistics {
            discarded,
            lost_packets,
            ..
        } = stream.statistics();
        let name = PathBuf::from(stream.path().file_name().unwrap());
        (name, (discarded, lost_packets))
    };
    let streams = (0..trace.streams().len()).map(|index| read(trace.stream(index, Options::default()).unwrap()));
    streams.collect()
}

fn converted(from: &Path, to: &Path, dialect: Dialect) -> Result<Vec<Unsaid>, CreateErrorKind> {
    let trace = open(from, None).unwrap();
    convert(&trace, to, dialect, Packing::default()).map_err(|error| error.kind)
}

/// To `there` and back: the same events, the same losses. What came of it, or why it cannot be.
fn there_and_back(id: &str, trace: &Path, folder: &Path, there: Dialect) -> Result<PathBuf, CreateErrorKind> {
    let back = open(trace, None).unwrap().dialect();
    let first = folder.join(format!("{id}-{}", there.name()));
    let second = folder.join(format!("{id}-{}-back", there.name()));
    converted(trace, &first, there)?;
    converted(&first, &second, back).unwrap_or_else(|error| panic!("{id}: no way back: {error}"));
    let (before, after) = (
        json(trace).unwrap(),
        json(&second).unwrap_or_else(|error| panic!("{id}: {error}")),
    );
    for (before, after) in before.lines().zip(after.lines()) {
        assert_eq!(before, after, "{id} by {there}");
    }
    assert_eq!(before.lines().count(), after.lines().count(), "{id}");
    assert_eq!(json(&first).unwrap().lines().count(), before.lines().count(), "{id}");
    let mut lost = losses(trace);
    let streams = losses(&second);
    // Files without a packet have no section.
    lost.retain(|name, losses| streams.contains_key(name) || *losses != (0, 0));
    assert_eq!(lost, streams, "{id}");
    Ok(first)
}

/// How many public traces can be said in the RFC's dialect today; more is welcome.
const CONVERTED: usize = 60;

#[test]
fn public_traces() {
    let Some(corpus) = corpus() else { return };
    let list = fs::read_to_string(corpus.join("must.tsv")).unwrap();
    let (mut whole, mut refused) = (0, BTreeMap::<String, usize>::new());
    for line in list.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, _, "accept", _, path, ..] = columns[..] else {
            continue;
        };
        let trace = corpus.join(path);
        if !trace.join("metadata").is_file() || json(&trace).is_err() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        match there_and_back(id, &trace, folder.path(), Dialect::Rfc1_1) {
            Ok(_) => whole += 1,
            Err(kind) => {
                let text = kind.to_string();
                assert!(text.contains("RFC v1.1 cannot express"), "{id}: {text}");
                let reason = text.split(", in ").next().unwrap_or_default().to_owned();
                *refused.entry(reason).or_default() += 1;
            }
        }
    }
    for (reason, count) in &refused {
        println!("{count} times: {reason}");
    }
    println!("{whole} converted there and back");
    assert!(whole >= CONVERTED, "{whole}");
}

#[test]
fn the_rfcs_cases() {
    let Some(corpus) = corpus() else { return };
    let peers = [babeltrace2_2_0(), babeltrace2_2_1()];
    let mut whole = 0;
    for case in fs::read_dir(corpus.join("rfc/cases")).unwrap() {
        let case = case.unwrap().path();
        let trace = case.join("trace");
        let Ok(expected) = fs::read_to_string(case.join("expect.jsonl")) else {
            continue;
        };
        let id = case.file_name().unwrap().to_str().unwrap();
        for dialect in [Dialect::V1_8, Dialect::V2, Dialect::Rfc1_1] {
            let folder = tempfile::tempdir().unwrap();
            let there =
                there_and_back(id, &trace, folder.path(), dialect).unwrap_or_else(|error| panic!("{id}: {error}"));
            let peer = match dialect {
                Dialect::V1_8 => &peers[0],
                Dialect::V2 => &peers[1],
                _ => continue,
            };
            let Some(peer) = peer else { continue };
            let output = peer.command().arg("--clock-seconds").arg(&there).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{id}: {errors}");
            let shown = String::from_utf8_lossy(&support::text_of(&there).unwrap()).into_owned();
            assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "{id}");
            assert_eq!(shown.lines().count(), expected.lines().count());
        }
        whole += 1;
    }
    assert!(whole >= 9, "{whole}");
}

/// Every class of field that our writer has and the RFC too, and packets of all kinds.
#[test]
fn losses_of_a_tracer_are_told_on() {
    let Some(corpus) = corpus() else { return };
    let mut seen = 0;
    for case in ["01-basic-type1-le", "11-three-packets-le"] {
        let trace = corpus.join("rfc/cases").join(case).join("trace");
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        converted(&trace, &there, Dialect::V1_8).unwrap();
        let (before, after) = (losses(&trace), losses(&there));
        assert_eq!(before, after);
        seen += before.values().map(|(discarded, lost)| discarded + lost).sum::<u64>();
    }
    assert!(seen >= 9, "7 events and 2 packets");
}

#[test]
fn content_is_packed_anew() {
    let Some(corpus) = corpus() else { return };
    let trace = corpus.join("rfc/cases/11-three-packets-le/trace");
    let key = Key::try_from([7; 32].as_slice()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let expected = json(&trace).unwrap();
    let mut last = trace;
    let steps = [
        (Compression::Bzip2, Some(key), Checksum::Md5),
        (Compression::Gzip, None, Checksum::Sha1),
        (Compression::None, Some(key), Checksum::None),
        (Compression::None, None, Checksum::Crc32),
    ];
    for (number, (compression, encryption, checksum)) in steps.into_iter().enumerate() {
        let next = folder.path().join(number.to_string());
        let packing = Packing {
            compression,
            encryption,
            checksum,
        };
        let trace = open(&last, Some(key)).unwrap();
        let said = convert(&trace, &next, Dialect::Rfc1_1, packing).unwrap();
        assert!(said.is_empty());
        match encryption {
            None => assert_eq!(json(&next).unwrap(), expected),
            Some(_) => assert!(json(&next).is_err(), "encrypted"),
        }
        last = next;
    }
    // The packets' headers say what they said.
    assert_eq!(losses(&last).values().next(), Some(&(7, 2)));
}

#[test]
fn what_is_left_out_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, there) = (folder.path().join("trace"), folder.path().join("there"));
    let mut description = support::description(Endian::Big);
    for class in &mut description.streams {
        class.events.retain(|event| event.id == support::EMPTY);
    }
    TraceWriter::create(&trace, description, Dialect::V1_8).unwrap();
    let left_out = converted(&trace, &there, Dialect::Rfc1_1).unwrap();
    for what in [
        Unsaid::Environment,
        Unsaid::Uuid,
        Unsaid::Clock,
        Unsaid::LogLevels,
        Unsaid::UnusedStreams,
    ] {
        assert!(left_out.contains(&what), "{what:?}");
    }
    // And what events need is refused.
    let (trace, there) = (folder.path().join("full"), folder.path().join("none"));
    support::write_trace(&trace, Dialect::V1_8, Endian::Little);
    let error = converted(&trace, &there, Dialect::Rfc1_1).unwrap_err().to_string();
    assert_eq!(
        error,
        "RFC v1.1 cannot express a floating point number, in event.fields of event 0 of stream 0"
    );
}

/// LTTng records them. babeltrace2 2.1 refuses metadata of CTF 2 that has one.
#[test]
fn an_empty_label_is_left_out_where_labels_must_not_be_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, there) = (folder.path().join("trace"), folder.path().join("there"));
    fs::create_dir(&trace).unwrap();
    let metadata = "/* CTF 1.8 */\ntrace { major = 1; minor = 8; byte_order = le; };\nstream { };\nevent { name = e; \
                    fields := struct { enum : integer { size = 8; } { \"\" = 1, \"two\" = 2 } a; }; };\n";
    fs::write(trace.join("metadata"), metadata).unwrap();
    fs::write(trace.join("stream"), [1, 2]).unwrap();
    assert_eq!(converted(&trace, &there, Dialect::V2).unwrap(), [Unsaid::EmptyLabels]);
    let text = json(&there).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    if let Some(peer) = babeltrace2_2_1() {
        let output = peer.command().arg(&there).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        let values: Vec<&str> = shown.lines().filter_map(|line| line.split("{ a = ").nth(1)).collect();
        assert_eq!(
            values,
            ["( <unknown> : container = 1 ) }", "( \"two\" : container = 2 ) }"],
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Tracers declare more than they record.
#[test]
fn a_number_that_no_event_has_is_left_out() {
    let order = Endian::Little;
    let float = Float {
        size: 64,
        align: 8,
        byte_order: order,
        reversed: false,
    };
    let events = vec![
        EventClass::new(0, "app:plain", Struct::new().with("n", Integer::unsigned(32, order))),
        EventClass::new(1, "app:float", Struct::new().with("f", float)),
    ];
    for recorded in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let (trace, there) = (folder.path().join("trace"), folder.path().join("there"));
        let description = Description::of_events(Clock::nanoseconds("c", 0), events.clone());
        let writer = TraceWriter::create(&trace, description, Dialect::V1_8).unwrap();
        let mut stream = writer.stream("main_0", StreamOptions::for_cpu(0, 0)).unwrap();
        let mut event = stream.writer().event(recorded, 1_000);
        match recorded {
            0 => event.u32(7),
            _ => event.f64(0.5),
        };
        event.finish().unwrap();
        stream.flush(2_000).unwrap();
        match (recorded, converted(&trace, &there, Dialect::Rfc1_1)) {
            (0, Ok(left_out)) => {
                assert!(left_out.contains(&Unsaid::IdleEvents));
                assert!(json(&there).unwrap().contains("\"n\": 7"));
            }
            (1, Err(error)) => assert!(error.to_string().contains("floating point")),
            (_, result) => panic!("{result:?}"),
        }
    }
}
