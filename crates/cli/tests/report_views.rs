//! Questions to a recording.

use crate::common;

use std::process::Command;

use backtrail_testkit::command::Finished;
use backtrail_testkit::{available, command, program, workload};
use common::{LIMIT, Setup, setup, text};

fn report(arguments: &[&str]) -> Finished {
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(run.arg("report").args(arguments), LIMIT).expect("the command is there")
}

fn table(arguments: &[&str]) -> String {
    let finished = report(arguments);
    assert!(finished.status.success(), "{}", finished.describe());
    finished.stdout
}

fn samples(trace: &str, filter: &[&str]) -> u64 {
    let arguments: Vec<&str> = [trace, "--json", "-"].iter().chain(filter).copied().collect();
    let json: serde_json::Value = serde_json::from_str(&table(&arguments)).expect("JSON");
    json["samples"].as_u64().expect("a number")
}

fn recorded(setup: &Setup) -> Option<String> {
    let workload = available(workload::built("shares", &program::SHARES, &["2"]))?;
    let recording = setup.record(&[], &workload);
    recording.ended_with(0);
    Some(text(&recording.trace).to_owned())
}

#[test]
fn questions_are_answered_in_parts_that_add_up() {
    let Some(setup) = setup() else { return };
    let Some(trace) = recorded(&setup) else { return };
    let all = samples(&trace, &[]);
    assert!(all > 100);
    let (early, late) = (
        samples(&trace, &["--time", "..0.7"]),
        samples(&trace, &["--time", "0.7.."]),
    );
    assert_eq!(early + late, all);
    assert!(early > 0 && late > 0);
    let main = samples(&trace, &["--function", "main"]);
    assert!(main <= all && main > all / 2);
    assert_eq!(samples(&trace, &["--process", "no such process"]), 0);
    for by in ["thread", "process", "module", "line", "address"] {
        let rows = table(&[&trace, "--by", by, "--limit", "100000", "--wide"]);
        let own: f64 = rows
            .lines()
            .skip(1)
            .filter_map(|row| row.split_whitespace().next()?.parse::<f64>().ok())
            .sum();
        assert!((own - 100.0).abs() < 3.0, "{by}: {own} % in\n{rows}");
    }
    let callees = table(&[&trace, "--callees", "main"]);
    assert!(callees.lines().count() > 1, "{callees}");
    let annotated = table(&[&trace, "--annotate", "main", "--wide"]);
    assert!(annotated.contains("address") && annotated.contains('+'), "{annotated}");
    let unchanged = table(&[&trace, "--diff", &trace]);
    assert!(unchanged.contains("+0.00") && !unchanged.contains("+1"), "{unchanged}");
}

#[test]
fn what_cannot_be_answered_is_one_error() {
    let Some(setup) = setup() else { return };
    let Some(trace) = recorded(&setup) else { return };
    for (arguments, what) in [
        (&["--callers", "no_such_function"][..], "no_such_function"),
        (&["--annotate", "no_such_function"], "no_such_function"),
        (&["--time", "5"], ".."),
        (&["--time", "5..2"], "ends before it begins"),
        (&["--by", "colour"], "colour"),
        (&["--by", "line", "--callers", "main"], "--callers"),
    ] {
        let arguments: Vec<&str> = [trace.as_str()].iter().chain(arguments).copied().collect();
        let finished = report(&arguments);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(finished.stderr.contains(what), "{}", finished.describe());
    }
}
