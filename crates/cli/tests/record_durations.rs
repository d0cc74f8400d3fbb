//! `backtrail record --entry --min-duration`: calls are recorded once they have returned, with
//! their durations, which the program measures itself.

use crate::common;
use crate::record_entry::{calls, record, report, stripped};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::recorder::babeltrace2;
use backtrail_testkit::{available, program};
use common::{LIMIT, Setup, setup, text};
use serde_json::Value;

/// Records until nothing is lost; a busy machine may need more than one attempt.
fn whole(setup: &Setup, options: &[&str], words: &[&Path]) -> Option<(PathBuf, Finished, Value)> {
    for _ in 0..10 {
        let (trace, finished) = record(setup, options, words)?;
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        let report = report(setup, &trace);
        if report["lost"] == 0 {
            return Some((trace, finished, report));
        }
        std::fs::remove_dir_all(&trace).expect("the incomplete recording can be removed");
    }
    panic!("ten recordings lost records")
}

/// The durations in a report, by function.
fn durations(report: &Value) -> BTreeMap<String, Value> {
    let all = report["durations"].as_array().expect("a list").iter();
    all.map(|row| (row["function"].as_str().expect("a name").to_owned(), row.clone()))
        .collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What the command says about the other calls.
fn others(setup: &Setup, name: &str) -> Value {
    let text = std::fs::read_to_string(setup.path(name)).expect("the summary is there");
    serde_json::from_str::<Value>(&text).expect("JSON")["calls"].clone()
}

#[test]
fn durations_are_what_the_program_measures() {
    let Some(setup) = setup() else { return };
    let Some(timed) = available(program::TIMED.build()) else {
        return;
    };
    let functions = ["naps", "nests", "leaves", "ends", "forks", "jumps", "picks", "shares"];
    let summary = setup.path("summary");
    let mut options = vec!["--min-duration", "0s", "--json", text(&summary)];
    options.extend(functions.iter().flat_map(|function| ["--entry", function]));
    let Some((trace, finished, report)) = whole(&setup, &options, &[&timed]) else {
        return;
    };
    let measured: Value = serde_json::from_str(&finished.stdout).expect("the program prints JSON");
    let durations = durations(&report);
    let mut all = 0;
    for function in functions {
        let [made, returned, least, most] = [0, 1, 2, 3].map(|at| number(&measured[function][at]));
        all += returned;
        let Some(row) = durations.get(function) else {
            assert_eq!((function, returned), ("ends", 0), "{made} calls");
            continue;
        };
        assert_eq!(number(&row["count"]), returned, "{function}");
        let total = number(&row["total_ns"]);
        assert!(
            (least..=most).contains(&total),
            "{function}: {total} is not in {least}..{most}"
        );
        let sorted = ["min_ns", "median_ns", "p99_ns", "max_ns"].map(|name| number(&row[name]));
        assert!(sorted.is_sorted() && sorted[3] <= total, "{function}: {row}");
    }
    assert_eq!(
        (number(&report["samples"]), &report["unit"]),
        (all, &Value::from("calls"))
    );
    // A recursion of more calls than the kernel's return probes could follow: each takes 1 ms
    // longer than the one that it makes.
    let nests = &durations["nests"];
    let (min, max) = (number(&nests["min_ns"]), number(&nests["max_ns"]));
    assert!(min >= 1_000_000 && max >= 80_000_000, "{nests}");
    // longjmp, and the end of a thread.
    let others = others(&setup, "summary");
    assert_eq!(
        (&others["left"], &others["short"]),
        (&Value::from(11), &Value::from(0)),
        "{others}"
    );
    assert_eq!(others["unknown"], 0, "{others}");

    // Stacks are those of the beginning, and whole.
    assert_eq!(number(&report["stops"]["end_of_stack"]), all, "{}", report["stops"]);
    let folded = setup.backtrail.folded(&trace);
    let depths = folded.iter().filter_map(|(stack, count)| {
        let depth = stack.iter().filter(|frame| *frame == "nests").count();
        (depth > 0).then_some((depth, *count))
    });
    let mut depths: Vec<(usize, u64)> = depths.collect();
    depths.sort_unstable();
    assert_eq!(depths, (1..=80).map(|depth| (depth, 1)).collect::<Vec<_>>());
    if let Some(read) = available(babeltrace2(&trace)) {
        let count = read.by_name.get("backtrail:finished_call").copied();
        assert_eq!(count, Some(all), "{}", read.complaints);
    }
}

#[test]
fn short_calls_are_only_counted() {
    let Some(setup) = setup() else { return };
    let Some(timed) = stripped(&setup, &program::TIMED) else {
        return;
    };
    let summary = setup.path("summary");
    let options = ["--entry", "naps", "--min-duration", "15ms", "--json", text(&summary)];
    let Some((trace, _, report)) = whole(&setup, &options, &[&timed]) else {
        return;
    };
    let row = &durations(&report)["naps"];
    let count = number(&row["count"]);
    // Calls that don't sleep may take longer, too.
    assert!(count >= 20 && number(&row["min_ns"]) >= 15_000_000, "{row}");
    assert_eq!(count + number(&others(&setup, "summary")["short"]), 220);
    // Each with what it was called with.
    let slept = calls(&report, "naps")
        .into_iter()
        .find(|(_, arguments)| arguments[0].1.as_deref() == Some("20"));
    assert!(
        slept.is_some_and(|(count, arguments)| count == 20 && arguments[0].0 == "ms"),
        "{}",
        report["calls"]
    );

    // By duration, the same stacks have microseconds.
    let mut by_duration = setup.backtrail.command([
        "report",
        text(&trace),
        "--durations",
        "--json",
        "-",
        "--folded",
        text(&setup.path("folded")),
    ]);
    let finished = command::run(&mut by_duration, LIMIT).expect("the binary is there");
    let by_duration: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(by_duration["unit"], "microseconds");
    let total = number(&row["total_ns"]) / 1000;
    let counted = number(&by_duration["samples"]);
    assert!(counted.abs_diff(total) <= count, "{counted} of {total}");
    let folded = std::fs::read_to_string(setup.path("folded")).expect("it is written");
    let sum = folded
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    assert_eq!(sum.sum::<u64>(), counted);

    // The events themselves have nanoseconds.
    let mut show = setup.backtrail.command(["trace", "show", "--json", text(&trace)]);
    let shown = command::run(&mut show, LIMIT).expect("the binary is there");
    let events = shown
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let taken = events.filter(|event| event["name"] == "backtrail:finished_call");
    let taken: Vec<u64> = taken.map(|event| number(&event["fields"]["duration"])).collect();
    assert_eq!(taken.len() as u64, count);
    assert_eq!(taken.iter().sum::<u64>(), number(&row["total_ns"]));
}

#[test]
fn exceptions_pass_as_without_a_recorder() {
    let Some(setup) = setup() else { return };
    let Some(timed) = available(program::TIMED_CPP.build()) else {
        return;
    };
    let summary = setup.path("summary");
    let options = ["--entry", "passes", "--min-duration", "0s", "--json", text(&summary)];
    let Some((_, finished, report)) = whole(&setup, &options, &[&timed]) else {
        return;
    };
    assert_eq!(finished.stdout, "5\n");
    assert_eq!(number(&durations(&report)["passes(int)"]["count"]), 5, "{report}");
    assert_eq!(others(&setup, "summary")["left"], 5);
}

#[test]
fn a_jump_to_another_library_ends_a_call() {
    let Some(setup) = setup() else { return };
    let Some(timed) = available(program::TIMED.build()) else {
        return;
    };
    let summary = setup.path("summary");
    let options = ["--entry", "gives_way", "--min-duration", "0s", "--json", text(&summary)];
    let Some((_, finished, report)) = whole(&setup, &options, &[&timed]) else {
        return;
    };
    let others = others(&setup, "summary");
    assert!(!report["durations"].is_null(), "{others} {}", finished.describe());
    assert_eq!(number(&durations(&report)["gives_way"]["count"]), 5, "{others}");
}

#[test]
fn stacks_of_another_recorder_stay_whole() {
    let Some(setup) = setup() else { return };
    let Some(timed) = available(program::TIMED.build()) else {
        return;
    };
    let (entry, waits) = (format!("{}:nests", text(&timed)), setup.path("waits"));
    let options = ["--entry", &entry, "--min-duration", "0s"];
    let backtrail = PathBuf::from(env!("CARGO_BIN_EXE_backtrail"));
    let words = ["record", "-q", "--off-cpu", "-o", text(&waits), "--"].map(Path::new);
    let words: Vec<&Path> = [&*backtrail].into_iter().chain(words).chain([&*timed]).collect();
    let Some((_, _, calls)) = whole(&setup, &options, &words) else {
        return;
    };
    assert_eq!(number(&durations(&calls)["nests"]["count"]), 80);
    // While up to 80 calls were open, each slept once.
    let folded = setup.backtrail.folded(&waits);
    let nested = folded
        .iter()
        .filter(|(stack, _)| stack.iter().any(|frame| frame == "nests"));
    let mut depths: Vec<usize> = Vec::new();
    for (stack, _) in nested {
        assert!(stack.iter().any(|frame| frame == "main"), "{stack:?}");
        depths.push(stack.iter().filter(|frame| *frame == "nests").count());
    }
    depths.sort_unstable();
    depths.dedup();
    assert_eq!(depths, (1..=80).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_measured_is_said_and_nothing_is_run() {
    let Some(setup) = setup() else { return };
    let missing = setup.path("missing");
    let missing_text = text(&missing).to_owned();
    for (options, expected, help) in [
        (&["--min-duration", "1ms"][..], "--entry", ""),
        (
            &["--entry", "main", "--min-duration", "1xs"][..],
            "not a time, as 0s, 500ns",
            "",
        ),
        (
            &["--entry", "no_such_function", "--min-duration", "1ms"][..],
            "has no function no_such_function",
            "LIBRARY:no_such_function",
        ),
        (
            &["--entry", "libc.so.6:abort", "--min-duration", "1ms"][..],
            "abort never returns",
            "without --min-duration",
        ),
    ] {
        let Some((trace, finished)) = record(&setup, options, &[Path::new("touch"), Path::new(&missing_text)]) else {
            return;
        };
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(
            finished.stderr.contains(expected) && finished.stderr.contains(help),
            "{}",
            finished.stderr
        );
        assert!(!trace.exists() && !missing.exists());
    }
}
