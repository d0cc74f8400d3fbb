//! `backtrail record --entry`: each call of a function is a sample, with what it was called with.

use crate::common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::program::{self, Program};
use backtrail_testkit::recorder::babeltrace2;
use backtrail_testkit::{available, skip};
use common::{LIMIT, Setup, setup};
use serde_json::Value;

/// The program with a table of arguments, and without debug information.
pub(crate) fn stripped(setup: &Setup, program: &Program) -> Option<PathBuf> {
    let built = available(program.build())?;
    let (whole, out) = (setup.path("whole"), setup.path(program.name));
    let add = setup.backtrail.command(
        ["sframe", "add", "--args", "-o"]
            .map(Path::new)
            .into_iter()
            .chain([&*whole, &*built]),
    );
    run(add);
    let mut strip = Command::new("strip");
    strip.args(["-g", "-o"]).args([&out, &whole]);
    run(strip);
    Some(out)
}

fn run(mut command: Command) {
    let finished = command::run(&mut command, Duration::from_secs(60)).expect("it is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
}

/// Records these calls; `None` where nobody may stop at functions here.
pub(crate) fn record(setup: &Setup, options: &[&str], words: &[&Path]) -> Option<(PathBuf, Finished)> {
    let trace = setup.path("trace");
    let finished = run_unless_refused(setup.backtrail.record(&trace, options, words))?;
    Some((trace, finished))
}

fn run_unless_refused(mut record: Command) -> Option<Finished> {
    let finished = command::run(&mut record, LIMIT).expect("the binary is there");
    let refused = ["tracefs, which is root's", "CONFIG_UPROBE_EVENTS"];
    if let Some(reason) = refused.iter().find(|reason| finished.stderr.contains(**reason)) {
        skip(format!("calls of functions can't be sampled: {reason}"));
        return None;
    }
    Some(finished)
}

pub(crate) fn report(setup: &Setup, trace: &Path) -> Value {
    let mut report = setup
        .backtrail
        .command([Path::new("report"), trace, Path::new("--json"), Path::new("-")]);
    let finished = command::run(&mut report, LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// An argument's name, and its value where it is known.
pub(crate) type Told = (String, Option<String>);

/// Calls of a function: how often, and the arguments.
pub(crate) fn calls(report: &Value, function: &str) -> Vec<(u64, Vec<Told>)> {
    let calls = report["calls"].as_array().expect("a list");
    let of_function = calls.iter().filter(|call| call["function"] == function);
    let told = of_function.map(|call| {
        let arguments = call["args"].as_array().expect("a list").iter().map(|argument| {
            let name = argument["name"].as_str().expect("a name");
            (name.to_owned(), argument["value"].as_str().map(str::to_owned))
        });
        (call["count"].as_u64().expect("a number"), arguments.collect())
    });
    told.collect()
}

#[test]
fn every_call_is_counted_with_its_arguments() {
    let Some(setup) = setup() else { return };
    let Some(program) = stripped(&setup, &program::CALLS) else {
        return;
    };
    let options = ["--entry", "paint", "--entry", "count"];
    // A busy machine may lose some.
    let mut attempts = 0..10;
    let (trace, report) = loop {
        let Some((trace, finished)) = record(&setup, &options, &[&program]) else {
            return;
        };
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        let report = report(&setup, &trace);
        let [samples, lost] = ["samples", "lost"].map(|count| report[count].as_u64().expect("a count"));
        if lost == 0 {
            assert_eq!(samples, 1400);
            break (trace, report);
        }
        assert!(attempts.next().is_some(), "{samples} of 1400 calls, {lost} lost");
        std::fs::remove_dir_all(&trace).expect("the incomplete recording can be removed");
    };
    assert_eq!(
        report["stops"]["end_of_stack"].as_u64(),
        Some(1400),
        "{}",
        report["stops"]
    );

    let painted = calls(&report, "paint");
    for (shade, amount, what, at) in [
        ("RED", "3", Some("\"wall\""), "{x = 1, y = -2}"),
        ("BLUE", "-1", Some("\"door\""), "{x = 0, y = 0}"),
        // What the address had is not known afterwards.
        ("GREEN", "99", None, "{x = 5, y = 6}"),
    ] {
        let is_it = |arguments: &[Told]| arguments[0].1.as_deref() == Some(shade);
        let found: Vec<_> = painted.iter().filter(|(_, arguments)| is_it(arguments)).collect();
        let [(300, arguments)] = found[..] else {
            panic!("{shade}: {painted:?}")
        };
        let names: Vec<&str> = arguments.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["shade", "amount", "what", "at", "gloss"]);
        let value = |index: usize| arguments[index].1.as_deref();
        assert!(
            value(1).is_some_and(|value| value.split(' ').next() == Some(amount)),
            "{arguments:?}"
        );
        match what {
            Some(text) => assert_eq!(value(2), Some(text), "{arguments:?}"),
            None => assert!(value(2).is_some_and(|value| value.starts_with("0x")), "{arguments:?}"),
        }
        // Vector registers are not sampled.
        assert_eq!((value(3), value(4)), (Some(at), None));
    }
    assert_eq!(painted.len(), 3);
    let counted = calls(&report, "count")
        .into_iter()
        .map(|(count, arguments)| (count, arguments[0].1.clone()));
    let mut counted: Vec<_> = counted.collect();
    counted.sort();
    let numbers = ["0", "1", "2", "3", "4"];
    assert_eq!(counted, numbers.map(|number| (100, Some(number.to_owned()))));

    // The callers are as in any recording.
    let through = |caller: &str| {
        let folded = setup.backtrail.folded(&trace);
        let with = folded
            .iter()
            .filter(|(stack, _)| stack.ends_with(&[caller.to_owned(), "paint".to_owned()]));
        with.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(["wall", "door", "of_child"].map(through), [300; 3]);
    if let Some(read) = available(babeltrace2(&trace)) {
        assert_eq!(read.by_name.get("backtrail:call"), Some(&1400), "{}", read.complaints);
    }
}

#[test]
fn functions_of_libraries_and_of_processes() {
    let Some(setup) = setup() else { return };
    let Some((trace, finished)) = record(
        &setup,
        &["--entry", "libc.so.6:getdents64"],
        &[Path::new("ls"), Path::new("/")],
    ) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let report = report(&setup, &trace);
    // Nothing describes its arguments.
    assert_eq!(
        calls(&report, "getdents64"),
        [(report["samples"].as_u64().expect("a number"), vec![])]
    );
    assert!(report["samples"].as_u64() >= Some(2), "{report}");
}

/// A path with characters that separate words, and bytes that are no text.
#[test]
fn a_program_at_any_path() {
    let Some(setup) = setup() else { return };
    let Some(program) = stripped(&setup, &program::CALLS) else {
        return;
    };
    let copy = setup.path("").join(OsStr::from_bytes(b"a b:c \xff\n"));
    std::fs::copy(&program, &copy).expect("the test's directory can be written");
    let Some((trace, finished)) = record(&setup, &["--entry", "paint"], &[&copy]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let report = report(&setup, &trace);
    let [samples, lost] = ["samples", "lost"].map(|count| report[count].as_u64().expect("a count"));
    assert_eq!(samples + lost, 900);
}

#[test]
fn what_is_no_function_is_told_and_nothing_is_run() {
    let Some(setup) = setup() else { return };
    let missing = setup.path("missing");
    for (entry, told, help) in [
        (
            "no_such_function",
            "has no function no_such_function",
            "LIBRARY:no_such_function",
        ),
        (
            "libc.so.6:strlen",
            "strlen stands for several implementations",
            "the implementation's name",
        ),
        (missing.to_str().expect("a name"), "has no function", "LIBRARY:"),
        (
            "nowhere.so:f",
            "nowhere.so: there is no such file, nor a library or a recorded program of this name",
            "",
        ),
        ("/proc/version:f", "/proc/version:", ""),
    ] {
        let touch = [Path::new("touch"), &missing];
        let Some((trace, finished)) = record(&setup, &["--entry", entry], &touch) else {
            return;
        };
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(
            finished.stderr.contains(told) && finished.stderr.contains(help),
            "{entry}: {}",
            finished.stderr
        );
        assert!(!trace.exists() && !missing.exists(), "{entry}");
    }
}

#[test]
fn why_there_are_no_calls() {
    let Some(setup) = setup() else { return };
    let Some(built) = available(program::CALLS.build()) else {
        return;
    };
    let [program, copy] = ["program", "copy"].map(|name| setup.path(name));
    std::fs::copy(&built, &program).expect("room for it");
    let replace = format!(
        "cp {p} {c} && mv {c} {p} && {p}",
        p = program.display(),
        c = copy.display()
    );
    let entry = format!("{}:main", program.display());
    let warnings = |trace: &str, words: &[&str]| {
        let options = ["record", "--entry", &entry, "-o", trace, "--"].map(Path::new);
        let words = options.into_iter().chain(words.iter().map(Path::new));
        run_unless_refused(setup.backtrail.command(words)).map(|finished| finished.stderr)
    };
    let traces = ["replaced", "uncalled"].map(|name| setup.path(name).display().to_string());
    let Some(replaced) = warnings(&traces[0], &["sh", "-c", &replace]) else {
        return;
    };
    assert!(replaced.contains("was replaced meanwhile"), "{replaced}");
    let Some(uncalled) = warnings(&traces[1], &["true"]) else {
        return;
    };
    assert!(
        uncalled.contains("warning: no calls\n") && uncalled.contains("was not called"),
        "{uncalled}"
    );
}
