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
