//! Stacks that are walked in the kernel.

use crate::common;

use std::fs;
use std::path::Path;

use backtrail_evidence::alternating;
use backtrail_testkit::{available, command, program, skip, workload};
use common::{LIMIT, PROMISED, Setup, setup, text};
use serde_json::Value;

/// Everything for a test that walks stacks in the kernel.
fn walking() -> Option<Setup> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may load programs");
        return None;
    }
    setup()
}

/// The recorder's summary.
fn summary(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("the recorder was to write it");
    serde_json::from_str(&text).expect("it is JSON")
}

/// As in programs of OCaml 5, a stack in the heap is deeper than what is copied, and call frame
/// information leads from there to the thread's stack and back: the kernel goes all the way, by
/// default once enough stacks were cut.
#[test]
#[cfg(target_arch = "x86_64")]
fn deep_frames_on_two_stacks() {
    for walk in ["kernel", "auto"] {
        let Some(setup) = walking() else { return };
        let Some(workload) = available(workload::built("fibre", &program::FIBRE, &["3"])) else {
            return;
        };
        let json = setup.path("summary.json");
        let recording = setup.record(&["--walk", walk, "--json", text(&json)], &workload);
        recording.ended_with(0).readable();
        let (mut all, mut whole) = (0, 0);
        for (stack, count) in recording.folded_with(&["--time", "1.5..", "--function", "work"]) {
            let deep = stack.iter().filter(|frame| *frame == "deep").count();
            let after = |names: &[&str]| stack.windows(names.len()).any(|part| part == names);
            let is_whole =
                deep == 3001 && after(&["main", "on_stack", "deep"]) && after(&["deep", "call_back", "work"]);
            all += count;
            whole += if is_whole { count } else { 0 };
        }
        assert!(whole > all / 2, "{walk}: {whole} of {all} samples lead from C to main");
        // By default it does so only if watches do not show the outer frames of enough stacks.
        let summary = summary(&json);
        assert!(
            walk == "auto" || summary["walked_in_kernel"].as_u64() > Some(0),
            "{summary}"
        );
    }
}

#[test]
fn stacks_of_any_depth_are_walked() {
    let Some(setup) = walking() else { return };
    for (depth, functions) in [("30", "one"), ("1000", "three"), ("5000", "one")] {
        let Some(deep) = available(workload::built("deep", &program::DEEP, &[depth, "1", functions])) else {
            return;
        };
        let json = setup.path("summary.json");
        let recording = setup.record(&["--walk", "kernel", "--json", text(&json)], &deep);
        recording.ended_with(0).complete(400, PROMISED).readable();
        let summary = summary(&json);
        let count = |name: &str| summary[name].as_u64().expect("it is a number");
        assert!(count("walked_in_kernel") > 0, "{summary}");
        // Nothing was read later.
        assert!(
            count("live") + count("walked_in_kernel") <= count("samples"),
            "{summary}"
        );
        assert!(count("kernel_table_bytes") >= 8 * count("kernel_rows"), "{summary}");
        let chain: &[&str] = match functions {
            "one" => &["descend", "descend", "descend"],
            _ => &["first", "second", "third", "first"],
        };
        assert!(recording.share_through(chain) > 0.7, "{depth} {functions}");
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
}

/// There the kernel reads what is left of the stack, and the recorder walks it by instructions.
#[test]
#[cfg(target_arch = "x86_64")]
fn programs_that_start_without_rows() {
    let Some(setup) = walking() else { return };
    let Some(bare) = available(workload::built("bare", &program::BARE, &[])) else {
        return;
    };
    let json = setup.path("summary.json");
    let recording = setup.record(&["--walk", "kernel", "--json", text(&json)], &bare);
    recording.ended_with(0).complete_in_kernel(200, PROMISED).readable();
    assert!(recording.share_through(&["run", "descend", "descend"]) > 0.9);
    let summary = summary(&json);
    assert!(summary["walked_in_kernel"].as_u64() > Some(0), "{summary}");
}

/// Of thousands of frames, ten thousand times a second.
#[test]
fn walks_longer_than_the_time_between_samples_are_counted() {
    let Some(setup) = walking() else { return };
    let Some(deep) = available(workload::built("deep", &program::DEEP, &["8000", "1"])) else {
        return;
    };
    let (json, trace) = (setup.path("summary.json"), setup.path("trace"));
    let options = ["--walk", "kernel", "-F", "10000", "--json", text(&json)];
    let mut record = setup.backtrail.record(&trace, &options, &deep.arguments);
    let finished = command::run(&mut record, LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let summary = summary(&json);
    assert!(summary["missed"].as_u64() > Some(0), "{summary}");
}

#[test]
fn signals_and_programs_that_load_others() {
    let Some(setup) = walking() else { return };
    for run in [workload::signals(1), workload::kernel(1), workload::rust_threads(1)] {
        let Some(run) = available(run) else { continue };
        let recording = setup.record(&["--walk", "kernel"], &run);
        recording.ended_with(0).complete_in_kernel(200, PROMISED).readable();
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
}

/// Copies end at the stack pointer: the first stacks are cut, until the recorder knows.
#[test]
fn frame_pointers_below_the_stack_pointer() {
    let Some(setup) = walking() else { return };
    let Some(below) = available(workload::built("below", &program::ODD_STACKS, &["below"])) else {
        return;
    };
    for walk in ["kernel", "copy"] {
        let recording = setup.record(&["--walk", walk], &below);
        recording.ended_with(0).complete(200, PROMISED).readable();
        assert!(
            recording.share_through(&["main", "call_below", "below"]) > 0.95,
            "{walk}"
        );
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
}

#[test]
fn alternating_stacks_are_not_mixed() {
    let Some(_setup) = walking() else { return };
    let backtrail = Path::new(env!("CARGO_BIN_EXE_backtrail"));
    for shape in alternating::SHAPES {
        for phase in [100, 5_000] {
            let counts = alternating::record_by(backtrail, Some("kernel"), shape, phase, 997, 0.25);
            let counts = counts.expect("it can be recorded");
            assert_eq!((counts.impossible, counts.wrong), (0, 0), "{shape} {phase}: {counts:?}");
        }
    }
}

/// Without the right to load programs, stacks are copied, and one line says so.
#[test]
fn an_ordinary_user_gets_copies() {
    let Some(setup) = walking() else { return };
    let trace = setup.path("trace");
    let command = format!(
        "chmod 777 {folder} && setpriv --reuid 65534 --clear-groups {backtrail} record --walk kernel -o {trace} -- true",
        folder = text(setup.folder.path()),
        backtrail = env!("CARGO_BIN_EXE_backtrail"),
        trace = text(&trace),
    );
    let mut shell = std::process::Command::new("sh");
    setup.backtrail.surroundings(shell.args(["-c", &command]));
    let Some(finished) = available(backtrail_testkit::command::run(&mut shell, common::LIMIT)) else {
        return;
    };
    if finished.code() != 0 {
        return skip("other users cannot run the recorder here");
    }
    common::one_line_about(&finished, "stacks were copied");
}
