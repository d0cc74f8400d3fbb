//! Traces in the other dialect say the same, to us and to babeltrace2, and come back as they were.

use crate::support;
use backtrail_testkit::peers::babeltrace2_2_1;
use backtrail_trace::{CreateErrorKind, Dialect, Trace, convert};
use backtrail_wire::Endian;
use std::fs;
use std::path::{Path, PathBuf};

fn converted(from: &Path, to: &Path, dialect: Dialect) -> Result<(), CreateErrorKind> {
    let converted = convert(&Trace::open(from).unwrap(), to, dialect);
    converted.map_err(|error| error.kind)
}

/// There and back: the same text, the same streams; what we converted to, and back.
fn there_and_back(trace: &Path, folder: &Path) -> Result<PathBuf, CreateErrorKind> {
    let (there, other) = match Trace::open(trace).unwrap().dialect() {
        Dialect::V1_8 => (Dialect::V2, Dialect::V1_8),
        _ => (Dialect::V1_8, Dialect::V2),
    };
    let (first, second) = (folder.join("there"), folder.join("back"));
    converted(trace, &first, there)?;
    converted(&first, &second, other)?;
    let original = String::from_utf8_lossy(&support::text_of(trace).unwrap()).into_owned();
    for directory in [&first, &second] {
        assert_eq!(String::from_utf8_lossy(&support::text_of(directory).unwrap()), original);
        for stream in Trace::open(trace).unwrap().streams() {
            let copy = directory.join(stream.file_name().unwrap());
            assert!(fs::read(stream).unwrap() == fs::read(copy).unwrap());
        }
    }
    Ok(first)
}

#[test]
fn our_own_traces() {
    for dialect in [Dialect::V1_8, Dialect::V2] {
        for order in [Endian::Little, Endian::Big] {
            let folder = tempfile::tempdir().unwrap();
            let trace = folder.path().join("trace");
            support::write_trace(&trace, dialect, order);
            let there = there_and_back(&trace, folder.path()).unwrap();
            let Some(peer) = babeltrace2_2_1() else { continue };
            let text = |directory: &Path| {
                let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
                assert!(output.status.success() && output.stderr.is_empty());
                output.stdout
            };
            assert!(text(&trace) == text(&there));
        }
    }
}

/// How many public traces can be said in the other dialect today; more is welcome.
const CONVERTED: usize = 130;

#[test]
fn public_traces() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/trace");
    let Ok(list) = fs::read_to_string(corpus.join("must.tsv")) else {
        backtrail_testkit::skip("no corpus of traces next to the workspace");
        return;
    };
    let peer = babeltrace2_2_1();
    let (mut whole, mut named) = (0, 0);
    for line in list.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, _, "accept", _, path, ..] = columns[..] else {
            continue;
        };
        let trace = corpus.join(path);
        if !trace.join("metadata").is_file() || support::text_of(&trace).is_err() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let there = match there_and_back(&trace, folder.path()) {
            Ok(there) => there,
            Err(kind) => {
                println!("{id}: {kind:?}");
                named += 1;
                continue;
            }
        };
        whole += 1;
        // Every tenth: starting babeltrace2 takes a while.
        let Some(peer) = peer.as_ref().filter(|_| whole % 10 == 0) else {
            continue;
        };
        let text = |directory: &Path| {
            let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
            output.status.success().then_some(output.stdout)
        };
        if let Some(original) = text(&trace) {
            assert_eq!(
                String::from_utf8_lossy(&text(&there).unwrap_or_default()),
                String::from_utf8_lossy(&original),
                "{id}"
            );
        }
    }
    println!("{whole} converted there and back, {named} refused");
    assert!(whole >= CONVERTED, "{whole}");
}

/// The dialect of 2010 is another crate's.
#[test]
fn other_dialects_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, there) = (folder.path().join("trace"), folder.path().join("there"));
    support::write_trace(&trace, Dialect::V2, Endian::Little);
    let error = converted(&trace, &there, Dialect::Rfc1_1).unwrap_err();
    assert!(
        matches!(error, CreateErrorKind::OtherDialect(Dialect::Rfc1_1)),
        "{error}"
    );
    assert!(!there.exists());
}

/// In 1.8 a field has its role by its name; references follow it.
#[test]
fn fields_with_roles_get_the_reserved_names() {
    let unsigned = |bits: u32, role: &str| {
        format!(
            r#"{{"type":"fixed-length-unsigned-integer","length":{bits},"alignment":8,"byte-order":"little-endian","roles":["{role}"]}}"#
        )
    };
    let structure = |members: &[(&str, String)]| {
        let members: Vec<String> = members
            .iter()
            .map(|(name, class)| format!(r#"{{"name":"{name}","field-class":{class}}}"#))
            .collect();
        format!(r#"{{"type":"structure","member-classes":[{}]}}"#, members.join(","))
    };
    let header = structure(&[("m", unsigned(32, "packet-magic-number"))]);
    let context = structure(&[
        ("b", unsigned(64, "default-clock-timestamp")),
        ("e", unsigned(64, "packet-end-default-clock-timestamp")),
        ("c", unsigned(32, "packet-content-length")),
        ("p", unsigned(32, "packet-total-length")),
    ]);
    let event = structure(&[
        ("k", unsigned(8, "event-record-class-id")),
        ("t", unsigned(64, "default-clock-timestamp")),
    ]);
    let text =
        r#"{"type":"dynamic-length-string","length-field-location":{"origin":"event-record-header","path":["k"]}}"#;
    let fragments = [
        r#"{"type":"preamble","version":2}"#.to_owned(),
        format!(r#"{{"type":"trace-class","packet-header-field-class":{header}}}"#),
        r#"{"type":"clock-class","id":"clock","frequency":1000000000}"#.to_owned(),
        format!(
            r#"{{"type":"data-stream-class","default-clock-class-id":"clock","packet-context-field-class":{context},"event-record-header-field-class":{event}}}"#
        ),
        format!(
            r#"{{"type":"event-record-class","id":2,"name":"named","payload-field-class":{}}}"#,
            structure(&[("text", text.to_owned())])
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (trace, there) = (folder.path().join("trace"), folder.path().join("there"));
    fs::create_dir(&trace).unwrap();
    let metadata: String = fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect();
    fs::write(trace.join("metadata"), metadata).unwrap();
    let mut packet = vec![0xc1, 0x1f, 0xfc, 0xc1];
    packet.extend([5u64.to_le_bytes(), 9u64.to_le_bytes()].concat());
    packet.extend([312u32.to_le_bytes(), 312u32.to_le_bytes()].concat());
    packet.push(2);
    packet.extend(7u64.to_le_bytes());
    packet.extend(b"hi");
    fs::write(trace.join("stream"), packet).unwrap();
    converted(&trace, &there, Dialect::V1_8).unwrap();
    let text = support::text_of(&there).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&text),
        "[0.000000007] (+?.?????????) named: { text = \"hi\" }\n"
    );
    assert_eq!(text, support::text_of(&trace).unwrap());
    if let Some(peer) = babeltrace2_2_1() {
        let output = peer.command().arg("--clock-seconds").arg(&there).output().unwrap();
        assert!(output.stdout == text, "{}", String::from_utf8_lossy(&output.stderr));
    }
}
