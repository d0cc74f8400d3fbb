//! Recordings in a store, and questions that DuckDB answers.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{available, readers, workload};
use serde_json::Value;

use crate::common::{LIMIT, Setup, setup};

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
