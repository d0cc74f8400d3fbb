//! Samples at events: their weights are what the kernel counts, and what is missing is said.

use crate::common;

use backtrail_testkit::{available, command, program, skip, workload};
use common::{LIMIT, Recording, Setup, setup, text};
use serde_json::Value;

fn report(setup: &Setup, recording: &Recording<'_>) -> Value {
    let arguments = ["report", text(&recording.trace), "--json", "-"];
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn switches_are_those_that_the_kernel_counts() {
    let Some(setup) = setup() else { return };
    let Some(waits) = available(workload::built("waits", &program::WAITS, &["3"])) else {
        return;
    };
    let recording = setup.record(&["--event", "context-switches"], &waits);
    if recording.finished.stderr.contains("is not permitted to this user") {
        return skip("only root may count switches");
    }
    recording.ended_with(0);
    let report = report(&setup, &recording);
    assert_eq!(report["unit"], "context-switches");
    assert_eq!(report["lost"], 0);
    // Each of the waits, and whatever else took the CPU.
    let measured: Value = serde_json::from_str(&recording.finished.stdout).expect("the program prints JSON");
    let blocked = |function: &str| measured[function][1].as_u64().expect("a number");
    for function in ["sleeps", "reads", "polls"] {
        let functions = report["functions"].as_array().expect("a list");
        let row = functions
            .iter()
            .find(|row| row["name"] == function)
            .expect("it is there");
        let total = row["total"].as_u64().expect("a number");
        assert!(
            total >= blocked(function),
            "{function}: {total} of {}",
            blocked(function)
        );
    }
}

#[test]
fn weights_of_samples_are_events() {
    let Some(setup) = setup() else { return };
    let Some(deep) = available(workload::built("waits", &program::WAITS, &["1"])) else {
        return;
    };
    let recording = setup.record(
        &["--event", "page-faults", "--count", "5", "--stack-copy", "4096"],
        &deep,
    );
    recording.ended_with(0);
    let report = report(&setup, &recording);
    assert_eq!(report["unit"], "page-faults");
    let samples = report["samples"].as_u64().expect("a number");
    // No program begins with less than some faults of its loader.
    assert!(samples >= 25 && samples.is_multiple_of(5), "{samples}");
    let arguments = ["export", text(&recording.trace), "--to", "folded", "-o", "-"];
    let folded = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    let counts = folded
        .stdout
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), samples);
}

#[test]
fn what_cannot_be_counted_is_said_in_one_line() {
    let Some(setup) = setup() else { return };
    for (event, expected) in [
        ("nothing", "no event nothing"),
        ("sched:nothing", "sched:nothing"),
        ("stalled-cycles-frontend", "stalled-cycles-frontend"),
    ] {
        let trace = setup.path(&event.replace(':', "-"));
        let arguments = ["record", "--event", event, "-o", text(&trace), "--", "true"];
        let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
        if finished.code() == 0 {
            skip(format!("this machine counts {event}"));
            continue;
        }
        let errors: Vec<&str> = finished
            .stderr
            .lines()
            .filter(|line| !line.starts_with("help: "))
            .collect();
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(
            errors.len() == 1 && errors[0].contains(expected),
            "{}",
            finished.describe()
        );
        assert!(!trace.exists());
    }
}

/// The rows of a table: name and samples.
fn rows(setup: &Setup, recording: &Recording<'_>, by: &str) -> Vec<(String, f64)> {
    let arguments = ["report", text(&recording.trace), "--by", by];
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    // Below the headings: shares, then names.
    let lines = finished.stdout.lines().filter_map(|line| {
        let (share, name) = line.trim_start().split_once("  ")?;
        let name = name.trim_start().split_once("  ").map_or(name, |(_, name)| name);
        Some((name.trim().to_owned(), share.parse().ok()?))
    });
    lines.collect()
}

#[test]
fn samples_have_the_surroundings_of_their_process() {
    let Some(setup) = setup() else { return };
    let Some(waits) = available(workload::built("deep", &program::DEEP, &["100", "0.3"])) else {
        return;
    };
    let recording = setup.record(&["--walk", "kernel"], &waits);
    recording.ended_with(0);
    let groups = rows(&setup, &recording, "cgroup");
    // The command runs where this test does.
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("a text");
    let is_own = |group: &str| own.lines().any(|line| line.ends_with(&format!(":{group}")));
    assert!(groups.len() == 1 && is_own(&groups[0].0), "{groups:?} of {own}");
    let namespaces = rows(&setup, &recording, "pid-namespace");
    let own = std::fs::read_link("/proc/self/ns/pid").expect("a link");
    assert!(
        namespaces.len() == 1 && namespaces[0].0 == own.to_string_lossy(),
        "{namespaces:?}"
    );
    let walks = rows(&setup, &recording, "walk");
    let share = |wanted: &str| walks.iter().find(|(name, _)| name == wanted).map_or(0.0, |row| row.1);
    if recording.finished.stderr.contains("does not let us walk them") {
        assert_eq!(share("in the kernel"), 0.0);
        return skip("only root may have stacks walked in the kernel");
    }
    assert!(
        share("in the kernel") > 0.0 && share("from a copy") < 100.0,
        "{walks:?}"
    );
}

#[test]
fn several_events_are_counted_separately() {
    let Some(setup) = setup() else { return };
    let Some(waits) = available(workload::built("waits", &program::WAITS, &["2"])) else {
        return;
    };
    let options = ["page-faults", "context-switches", "cpu-clock", "faults"];
    let mut options: Vec<&str> = options.iter().flat_map(|event| ["--event", event]).collect();
    options.extend(["--count", "1"]);
    let recording = setup.record(&options, &waits);
    if recording.finished.stderr.contains("is not permitted to this user") {
        return skip("only root may count switches");
    }
    recording.ended_with(0);
    let of = |options: &[&str]| {
        let arguments = ["report", text(&recording.trace), "--json", "-"];
        let mut command = setup.backtrail.command(arguments.iter().chain(options));
        let finished = command::run(&mut command, LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        serde_json::from_str::<Value>(&finished.stdout).expect("JSON")
    };
    let first = of(&[]);
    let events = first["events"].as_array().expect("a list");
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["page-faults", "context-switches", "cpu-clock"]);
    assert_eq!(first["unit"], "page-faults");
    // Each report is of one of them, and all agree on all.
    for (event, unit) in [
        ("page-faults", "page-faults"),
        ("context-switches", "context-switches"),
        ("cpu-clock", ""),
    ] {
        let report = of(&["--event", event]);
        assert_eq!(report["unit"].as_str().unwrap_or_default(), unit);
        for (row, first) in report["events"].as_array().expect("a list").iter().zip(events) {
            assert_eq!((&row["samples"], &row["count"]), (&first["samples"], &first["count"]));
            let is_shown = row["name"] == event;
            assert_eq!(row["shown"], is_shown);
            if is_shown {
                assert_eq!(report["samples"], row["samples"], "one sample for each");
            }
        }
    }
    // The program waits so often.
    let measured: Value = serde_json::from_str(&recording.finished.stdout).expect("the program prints JSON");
    let switches = of(&["--event", "context-switches"]);
    let functions = switches["functions"].as_array().expect("a list");
    let slept = functions
        .iter()
        .find(|row| row["name"] == "sleeps")
        .expect("it is there");
    assert!(slept["total"].as_u64() >= measured["sleeps"][1].as_u64(), "{slept}");
    assert!(first["samples"].as_u64() >= Some(25), "{first}");

    let unknown = ["report", text(&recording.trace), "--event", "cycles"];
    let finished = command::run(&mut setup.backtrail.command(unknown), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert!(
        finished.stderr.contains("no samples of the event cycles") && finished.stderr.contains("context-switches"),
        "{}",
        finished.stderr
    );
}
