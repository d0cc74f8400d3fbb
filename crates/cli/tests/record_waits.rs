//! Time off the CPU: compared with what a program measures itself, and who ended it.

use crate::common;

use std::collections::HashMap;

use backtrail_testkit::command;
use backtrail_testkit::recorder::babeltrace2;
use backtrail_testkit::{available, program, skip, workload};
use common::{LIMIT, Recording, Setup, setup, text};

/// The waits of the program, by its own clock, and the recording.
fn record<'s>(setup: &'s Setup, option: &str) -> Option<(HashMap<String, u64>, Recording<'s>)> {
    let waits = available(workload::built("waits", &program::WAITS, &["15"]))?;
    let recording = setup.record(&[option], &waits);
    if recording
        .finished
        .stderr
        .contains("time off the CPU is not shown to this user")
    {
        skip("the kernel shows switches only with kernel.perf_event_paranoid of 1 or less");
        return None;
    }
    recording.ended_with(0);
    if let Some(other) = available(babeltrace2(&recording.trace)) {
        let waits = other.by_name.iter().filter(|(name, _)| name.ends_with(":wait"));
        assert!(
            other.success && waits.map(|(_, count)| count).sum::<u64>() >= 100,
            "{:?}",
            other.by_name
        );
    }
    let measured = serde_json::from_str(&recording.finished.stdout).expect("the program prints JSON");
    Some((measured, recording))
}

/// Folded stacks with these options.
fn folded(setup: &Setup, recording: &Recording<'_>, options: &[&str]) -> Vec<(String, u64)> {
    let arguments = ["report", text(&recording.trace), "--folded", "-"];
    let arguments = arguments.iter().chain(options);
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let lines = finished.stdout.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .map(|(stack, count)| (stack.to_owned(), count.parse().expect("a number")))
        .collect()
}

fn sum(stacks: &[(String, u64)], is_it: impl Fn(&str) -> bool) -> u64 {
    let of = stacks.iter().filter(|(stack, _)| is_it(stack));
    of.map(|(_, count)| count).sum()
}

#[test]
fn waits_are_as_long_as_the_program_measures_and_woken_by_the_right_threads() {
    let Some(setup) = setup() else { return };
    let Some((measured, recording)) = record(&setup, "--off-cpu") else {
        return;
    };
    // With preemption: on a busy machine, the program's clock measures that too.
    let stacks = folded(&setup, &recording, &["--wall"]);
    for function in ["sleeps", "reads", "locks", "second_link", "third_link"] {
        let through = |stack: &str| {
            let frames: Vec<&str> = stack.split(';').collect();
            let at = frames.iter().position(|frame| *frame == function);
            at.is_some_and(|at| function != "locks" || !frames[at..].contains(&"down"))
        };
        let recorded = sum(&stacks, through) * 1000;
        let expected = measured[function];
        let difference = recorded.abs_diff(expected);
        assert!(
            difference * 100 <= expected,
            "{function}: {recorded} ns recorded, {expected} measured"
        );
    }
    if recording.finished.stderr.contains("what woke the threads") {
        return skip("only root may know what wakes a thread");
    }
    let stacks = folded(&setup, &recording, &["--wakers"]);
    for (function, waker) in [
        ("reads", "writes_later"),
        ("locks", "holds"),
        ("second_link", "first_link"),
        ("third_link", "second_link"),
    ] {
        let waits = |stack: &str| {
            let (waiting, _) = stack.split_once(";[woken by ").unwrap_or((stack, ""));
            let frames: Vec<&str> = waiting.split(';').collect();
            frames.contains(&function)
        };
        let all = sum(&stacks, waits);
        let right = sum(&stacks, |stack| {
            let woken = stack
                .split_once(";[woken by ")
                .is_some_and(|(_, by)| by.split(';').any(|frame| frame == waker));
            waits(stack) && woken
        });
        assert!(
            all > 0 && right * 100 >= all * 99,
            "{function} is woken by {waker}: {right} of {all}"
        );
    }
    // The kernel does not report every waking by a timer, but no thread may be named instead.
    let slept = sum(&stacks, |stack| stack.contains(";sleeps;"));
    let named = sum(&stacks, |stack| {
        stack.contains(";sleeps;") && stack.contains(";[woken by ") && !stack.contains(";[woken by an interrupt]")
    });
    assert!(named * 100 <= slept, "{named} of {slept}");
}

#[test]
fn wall_time_has_both() {
    let Some(setup) = setup() else { return };
    let Some((measured, recording)) = record(&setup, "--wall") else {
        return;
    };
    let off = sum(&folded(&setup, &recording, &["--off-cpu"]), |stack| {
        stack.contains(";sleeps;")
    });
    let wall = sum(&folded(&setup, &recording, &[]), |stack| stack.contains(";sleeps;"));
    assert!(
        wall >= off && off * 1000 * 100 >= measured["sleeps"] * 99,
        "{off} of {wall} us"
    );
}
