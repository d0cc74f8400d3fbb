//! Recordings in a store, and questions that DuckDB answers.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{available, readers, workload};
use serde_json::Value;

use crate::common::collector::Collector;
use crate::common::{LIMIT, Setup, setup, without_sampling};

fn passed(command: &mut Command) -> Finished {
    let finished = command::run(command, LIMIT).unwrap_or_else(|missing| panic!("{missing}"));
    assert!(finished.status.success(), "{command:?}: {}", finished.describe());
    finished
}

/// A query whose engine is Python's package.
fn query(setup: &Setup, packages: &std::path::Path, arguments: &[&str]) -> Finished {
    let mut query = setup.backtrail.command(["store", "query", "fleet"]);
    passed(
        query
            .args(arguments)
            .env("PYTHONPATH", packages)
            .current_dir(setup.folder.path()),
    )
}

/// Functions with their own and all samples.
type Counts = BTreeMap<(String, String), i64>;

fn counts(text: &str) -> Counts {
    let rows: Vec<Value> = serde_json::from_str(text).expect("it is JSON");
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    let counts = rows.iter().map(|row| {
        (
            (text(row, "function"), text(row, "module")),
            row["samples"].as_i64().expect("a number"),
        )
    });
    counts.collect()
}

#[test]
fn a_store_exports_and_answers_as_the_recording_does() {
    let Some(setup) = setup() else { return };
    let Some(packages) = available(readers::python("duckdb")) else {
        return;
    };
    let Some(python) = available(workload::python(1)) else {
        return;
    };
    let recording = setup.record(&[], &python);
    recording.ended_with(0);
    let add = || {
        let mut add = setup.backtrail.command(["store", "add", "trace", "--to", "fleet"]);
        add.args(["--service", "web", "--label", "version=1"]);
        passed(add.current_dir(setup.folder.path())).stderr
    };
    assert!(add().contains(" files"));
    assert!(add().contains("in the store already"));

    for format in ["pprof", "perf-script", "folded"] {
        let mut export = setup
            .backtrail
            .command(["export", "trace", "--to", format, "-o", "recording"]);
        passed(export.current_dir(setup.folder.path()));
        query(&setup, &packages, &["flame", "--to", format, "-o", "store"]);
        let read = |name: &str| fs::read(setup.path(name)).expect("it was written");
        assert!(read("recording") == read("store"), "{format} differs");
    }

    let mut report = setup.backtrail.command(["report", "trace", "--json", "-"]);
    let report = passed(report.current_dir(setup.folder.path())).stdout;
    let report: Value = serde_json::from_str(&report).expect("it is JSON");
    let functions = report["functions"].as_array().expect("it has functions");
    for (question, key) in [("self", "self"), ("total", "total")] {
        let answer = query(&setup, &packages, &[question, "--limit", "100000", "--json"]);
        let names: Vec<(String, i64)> = counts(&answer.stdout)
            .into_iter()
            .map(|((name, _), n)| (name, n))
            .collect();
        let mut names = names;
        let mut wanted: Vec<(String, i64)> = functions
            .iter()
            .map(|function| {
                let name = function["name"].as_str().expect("a name").to_owned();
                (name, function[key].as_i64().expect("a number"))
            })
            .filter(|(_, samples)| *samples > 0)
            .collect();
        names.sort();
        wanted.sort();
        assert!(names.len() > 10, "{names:?}");
        assert_eq!(names, wanted, "{question}");
    }
    for question in ["load", "stacks", "rare", "threads", "modules", "complete", "recordings"] {
        let answer = query(&setup, &packages, &[question, "--where", "host=nobody", "--json"]);
        assert_eq!(answer.stdout.trim(), "[]", "{question}");
        let answer = query(&setup, &packages, &[question, "--service", "web", "--since", "2h"]);
        assert!(
            answer.stdout.lines().count() >= 2 || question == "rare",
            "{question}: {}",
            answer.stdout
        );
    }
    let changed = ["changed", "--old", "1", "--new", "2", "--where", "version=1", "--json"];
    assert!(query(&setup, &packages, &changed).stdout.contains("\"old_self\":"));
}

/// Sends recordings; the exit status and what it says.
fn push(setup: &Setup, arguments: &[&str]) -> Finished {
    let mut push = setup.backtrail.command(["store", "push"]);
    command::run(push.args(arguments).current_dir(setup.folder.path()), LIMIT).expect("the binary is there")
}

#[test]
fn a_collector_receives_what_export_writes() {
    let Some(setup) = setup() else { return };
    let Some(python) = available(workload::python(1)) else {
        return;
    };
    setup.record(&[], &python).ended_with(0);
    let mut export = setup
        .backtrail
        .command(["export", "trace", "--to", "otlp", "-o", "profile"]);
    passed(export.current_dir(setup.folder.path()));
    let profile = fs::read(setup.path("profile")).expect("it was written");
    assert!(profile.len() > 1000);

    let collector = Collector::start("127.0.0.1:0", "200 OK", "application/x-protobuf", b"");
    let url = format!("http://{}", collector.address);
    let finished = push(&setup, &["trace", "trace", "--otlp", &url]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert_eq!(finished.stderr.matches(" KiB sent").count(), 2, "{}", finished.stderr);
    for _ in 0..2 {
        let (head, body) = collector.received();
        assert!(head.starts_with("POST /v1development/profiles HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: application/x-protobuf\r\n"), "{head}");
        assert!(body == profile, "{} bytes, not {}", body.len(), profile.len());
    }

    let refusal = b"\x08\x03\x12\x0btoo old\nmore";
    let collector = Collector::start("127.0.0.1:0", "400 Bad Request", "application/x-protobuf", refusal);
    let url = format!("http://{}/elsewhere", collector.address);
    let finished = push(&setup, &["trace", "--otlp", &url]);
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    let line = format!("backtrail: {url}: trace: 400 Bad Request: too old");
    assert!(finished.stderr.lines().any(|said| said == line), "{}", finished.stderr);
    assert!(collector.received().0.starts_with("POST /elsewhere HTTP/1.1\r\n"));
    let finished = push(&setup, &["trace", "missing", "trace", "--otlp", &url]);
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert_eq!(finished.stderr.matches("too old").count(), 2, "{}", finished.stderr);

    // The system accepts the connection; nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("it is bound"));
    let finished = push(&setup, &["trace", "--otlp", &url, "--timeout", "1"]);
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert!(finished.wall.as_secs() < 60, "{}", finished.describe());
    let line = format!("backtrail: {url}: no answer within 1 s");
    assert!(finished.stderr.lines().any(|said| said == line), "{}", finished.stderr);
}

#[test]
fn a_collector_has_a_plain_url() {
    let setup = without_sampling();
    for (url, what) in [
        ("https://localhost:4318", "TLS is not supported"),
        ("http://localhost", "no port"),
        ("localhost:4318", "not a URL"),
    ] {
        let finished = push(&setup, &["trace", "--otlp", url]);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        let lines: Vec<&str> = finished.stderr.lines().collect();
        assert_eq!(lines[0], format!("backtrail: {url}: {what}"));
        assert!(lines.len() == 2 && lines[1].starts_with("help: "), "{lines:?}");
    }
}

#[test]
fn a_wrong_name_leaves_no_store() {
    let setup = without_sampling();
    setup.file("no-recording", b"");
    for (name, what) in [
        ("missing", "missing: no such file or directory"),
        ("no-recording", "no-recording: not a recording"),
    ] {
        let mut add = setup.backtrail.command(["store", "add", name, "--to", "fleet"]);
        let finished = command::run(add.current_dir(setup.folder.path()), LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        let line = format!("backtrail: {what}");
        assert!(finished.stderr.lines().any(|said| said == line), "{}", finished.stderr);
        assert!(!setup.path("fleet").exists(), "{name}");
    }
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_bucket_needs_a_feature() {
    let setup = without_sampling();
    for arguments in [["check", "s3://bucket/fleet"], ["compact", "s3://bucket/fleet/"]] {
        let mut command = setup.backtrail.command(["store"]);
        let command = command.args(arguments).current_dir(setup.folder.path());
        let finished = command::run(command, LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        let lines: Vec<&str> = finished.stderr.lines().collect();
        assert_eq!(
            lines[0],
            "backtrail: s3://bucket/fleet: this program is built without S3 storage"
        );
        assert!(lines.len() == 2 && lines[1].starts_with("help: "), "{lines:?}");
        assert!(!setup.path("s3:").exists());
    }
}

/// What Python prints that has `import duckdb` and the file `store.sql`, in another folder.
fn duckdb(setup: &Setup, packages: &std::path::Path, script: &str) -> String {
    let mut python = Command::new("python3");
    let script = format!("import sys, glob, duckdb\nfolder = sys.argv[1]\n{script}");
    python.args(["-c", &script]).arg(setup.folder.path());
    passed(python.env("PYTHONPATH", packages).current_dir("/")).stdout
}

/// A store with one recording, and the folder of DuckDB's Python package.
fn stored() -> Option<(Setup, PathBuf)> {
    let setup = setup()?;
    let packages = available(readers::python("duckdb"))?;
    let python = available(workload::python(1))?;
    setup.record(&[], &python).ended_with(0);
    let mut add = setup.backtrail.command(["store", "add", "trace", "--to", "fleet"]);
    passed(add.current_dir(setup.folder.path()));
    Some((setup, packages))
}

#[test]
fn printed_sql_runs_in_any_folder() {
    let Some((setup, packages)) = stored() else { return };
    let answer = query(&setup, &packages, &["self", "--limit", "5", "--json"]).stdout;
    let sql = query(&setup, &packages, &["self", "--limit", "5", "--sql"]).stdout;
    fs::write(setup.path("store.sql"), sql).expect("the test's folder can be written");
    let printed = duckdb(
        &setup,
        &packages,
        "for row in duckdb.execute(open(folder + '/store.sql').read()).fetchall(): print(row[2], row[4])",
    );
    let rows: Vec<Value> = serde_json::from_str(&answer).expect("it is JSON");
    let wanted: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row["samples"], row["function"].as_str().expect("a text")))
        .collect();
    let run: Vec<&str> = printed.lines().collect();
    assert!(!run.is_empty() && run == wanted, "{answer}\n{printed}");
}

/// Of three stacks on two hosts, one is in every minute, one seldom has many samples, and one never
/// does. The samples are invented, since they must be of many minutes; the stacks are real.
#[test]
fn stacks_are_rare_that_take_much_in_few_minutes() {
    let Some((setup, packages)) = stored() else { return };
    let sql = query(&setup, &packages, &["rare", "--sql"]).stdout;
    fs::write(setup.path("store.sql"), sql).expect("the test's folder can be written");
    let script = r#"
views, question = open(folder + '/store.sql').read().rsplit(';\n\n', 1)
duckdb.execute(views)
duckdb.execute("""CREATE TABLE chosen AS
    SELECT row_number() OVER () AS place, stack
    FROM (SELECT DISTINCT stack FROM stack_functions WHERE is_self ORDER BY stack LIMIT 3)""")
duckdb.execute("""CREATE TABLE invented AS
    SELECT host, 'web' AS service, stack, 30 AS count,
        make_timestamptz(2026, 11, 23, 9, CAST(minute AS BIGINT), 7.5) AS time
    FROM chosen, range(40) minutes(minute), (VALUES ('a'), ('b')) hosts(host), range(4) repeated(again)
    WHERE place = 1 OR again = 0 OR place = 2 AND host = 'b' AND minute IN (5, 17)""")
rare = duckdb.execute("SELECT stack FROM chosen WHERE place = 2").fetchone()[0]
for row in duckdb.execute(question.replace('FROM samples', 'FROM invented')).fetchall():
    print(*row[:5], row[6] == rare)
"#;
    // 120 of 270 samples, in 2 of 40 minutes of one host.
    assert_eq!(
        duckdb(&setup, &packages, script),
        format!("{} 2 5.0 1 240 True\n", 100.0 * 120.0 / 270.0)
    );
}

#[test]
fn files_that_another_tool_compressed_are_not_called_damaged() {
    let Some((setup, packages)) = stored() else { return };
    for (compression, status, what) in [
        (
            "zstd",
            1,
            "compressed with ZSTD; Backtrail reads files with gzip or no compression",
        ),
        ("snappy", 1, "compressed with SNAPPY; "),
        ("gzip", 0, " samples"),
        ("uncompressed", 0, " samples"),
    ] {
        let script = format!(
            "for file in glob.glob(folder + '/fleet/samples/**/*.parquet', recursive=True):\n  \
             c = duckdb.execute(f\"CREATE OR REPLACE TABLE t AS FROM read_parquet('{{file}}', hive_partitioning = false)\")\n  \
             c.execute(f\"COPY t TO '{{file}}' (FORMAT parquet, COMPRESSION {compression})\")"
        );
        duckdb(&setup, &packages, &script);
        let mut check = setup.backtrail.command(["store", "check", "fleet"]);
        let finished = command::run(check.current_dir(setup.folder.path()), LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), status, "{compression}: {}", finished.describe());
        let printed = format!("{}{}", finished.stdout, finished.stderr);
        assert!(printed.contains(what) && !printed.contains("damaged"), "{printed}");
        // A question is put to an engine, which reads all of them.
        query(&setup, &packages, &["self"]);
    }
}
