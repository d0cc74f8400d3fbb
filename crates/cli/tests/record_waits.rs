//! Time off the CPU: compared with what a program measures itself, and who ended it.

use crate::common;

use std::collections::HashMap;

use backtrail_testkit::command;
use backtrail_testkit::recorder::babeltrace2;
use backtrail_testkit::{available, program, skip, workload};
use common::{LIMIT, Recording, Setup, setup, text};

/// The waits of the program's functions: nanoseconds by its own clock, and times by the kernel's
/// count.
type Measured = HashMap<String, (u64, u64)>;

/// What the program measures, and the recording.
fn record<'s>(setup: &'s Setup, option: &str) -> Option<(Measured, Recording<'s>)> {
    let waits = available(workload::built("waits", &program::WAITS, &["15"]))?;
    let recording = setup.record(&[option], &waits);
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
    if recording.finished.stderr.contains("this user may not see where") {
        return skip("the kernel shows where threads wait only with kernel.perf_event_paranoid of 1 or less");
    }
    // On a busy machine the program's clock also measures how long a woken thread has no CPU, and
    // threads lose it outside of what is measured. So the measurement is between the waits and all
    // that was off the CPU.
    let (waits, stacks) = (
        folded(&setup, &recording, &["--off-cpu"]),
        folded(&setup, &recording, &["--wall"]),
    );
    differences_are_seconds(&setup, &recording, &waits);
    for function in [
        "sleeps",
        "reads",
        "locks",
        "second_link",
        "third_link",
        "conditions",
        "polls",
        "reaps",
    ] {
        let through = |stack: &str| {
            let frames: Vec<&str> = stack.split(';').collect();
            let at = frames.iter().position(|frame| *frame == function);
            let is_other = |frame: &&str| match function {
                "locks" => *frame == "down",
                "reaps" => *frame == "forks",
                _ => false,
            };
            at.is_some_and(|at| !frames[at..].iter().any(is_other))
        };
        // A page that had to be read from the disk may be outside of what the program measures.
        let blocked = |stack: &str| through(stack) && !stack.contains("page_fault");
        let (least, most) = (sum(&waits, blocked) * 1000, sum(&stacks, through) * 1000);
        let (expected, _) = measured[function];
        assert!(
            least * 100 <= expected * 101 && expected * 99 <= most * 100,
            "{function}: {least} to {most} ns recorded, {expected} measured"
        );
    }
    // Waits alone, each of them once.
    for function in ["sleeps", "reads", "conditions", "polls", "third_link"] {
        let (_, blocked) = measured[function];
        let recorded = waits_through(&setup, &recording, function);
        assert!(
            // Some are for pages, as above.
            (blocked..=blocked + blocked / 5).contains(&recorded),
            "{function}: {recorded} waits, {blocked} by the kernel's count"
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
        ("conditions", "signals"),
        ("polls", "notifies"),
    ] {
        let waits = |stack: &str| {
            let (waiting, _) = stack.split_once(";[woken by ").unwrap_or((stack, ""));
            waiting.split(';').any(|frame| frame == function)
        };
        let all = sum(&stacks, waits);
        // Of some wakings a busy kernel has no sample: then nobody is named.
        let named = sum(&stacks, |stack| waits(stack) && stack.contains(";[woken by "));
        let right = sum(&stacks, |stack| {
            let woken = stack
                .split_once(";[woken by ")
                .is_some_and(|(_, by)| by.split(';').any(|frame| frame == waker));
            waits(stack) && woken
        });
        assert!(
            right * 2 > all && right * 100 >= named * 99,
            "{function} is woken by {waker}: {right} of {named} of {all}: {stacks:?}"
        );
    }
    for (function, source) in [
        (";sleeps;", "[woken by a timer]"),
        (";wait4;", "[woken by the exit of waits]"),
    ] {
        // A page may have been read from the disk meanwhile.
        let waits = |stack: &str| stack.contains(function) && !stack.contains("page_fault");
        let named = sum(&stacks, |stack| waits(stack) && stack.contains(";[woken by "));
        let right = sum(&stacks, |stack| waits(stack) && stack.contains(source));
        assert!(
            named > 0 && right * 100 >= named * 99,
            "{function}{source}: {right} of {named}: {stacks:?}"
        );
    }
    exports_have_times(&setup, &recording, &stacks);
}

/// All own time is the scheduler's, so a difference shows for how long functions were waiting.
fn differences_are_seconds(setup: &Setup, recording: &Recording<'_>, waits: &[(String, u64)]) {
    let trace = text(&recording.trace);
    let arguments = [
        "report",
        trace,
        "--diff",
        trace,
        "--off-cpu",
        "--wide",
        "--limit",
        "100000",
    ];
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    let mut rows = finished
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.get(3) == Some(&"sleeps"));
    let microseconds = sum(waits, |stack| stack.split(';').any(|frame| frame == "sleeps"));
    let seconds = format!("{:.2}", microseconds as f64 / 1e6);
    assert_eq!(
        row.as_deref().and_then(|row| row.get(..3)),
        Some(&[&*seconds, &*seconds, "+0.00"][..]),
        "{}",
        finished.describe()
    );
}

/// The number of waits through a function.
fn waits_through(setup: &Setup, recording: &Recording<'_>, function: &str) -> u64 {
    let arguments = [
        "report",
        text(&recording.trace),
        "--off-cpu",
        "--function",
        function,
        "--json",
        "-",
    ];
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(report["unit"], "microseconds");
    report["waits"].as_u64().expect("a number")
}

/// Exports carry the same times as the report, in a unit that each format knows.
fn exports_have_times(setup: &Setup, recording: &Recording<'_>, stacks: &[(String, u64)]) {
    let whole = sum(stacks, |_| true);
    let export = |format: &str| {
        let arguments = ["export", text(&recording.trace), "--to", format, "-o", "-"];
        let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        finished.stdout
    };
    let folded = export("folded");
    let counts = folded
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), whole);
    let speedscope: serde_json::Value = serde_json::from_str(&export("speedscope")).expect("JSON");
    let profiles = speedscope["profiles"].as_array().expect("a list");
    let ends = profiles
        .iter()
        .map(|profile| profile["endValue"].as_u64().expect("a number"));
    assert_eq!(ends.sum::<u64>(), whole);
    assert!(profiles.iter().all(|profile| profile["unit"] == "microseconds"));
    let script = export("perf-script");
    let periods = script
        .lines()
        .filter_map(|line| line.strip_suffix(" off-cpu: ")?.rsplit(' ').next()?.parse::<u64>().ok());
    assert_eq!(periods.sum::<u64>(), whole * 1000);
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
        wall >= off && off * 1000 * 100 >= measured["sleeps"].0 * 99,
        "{off} of {wall} us"
    );
}

/// Without any rights, the kernel still reports when threads of one's own processes have the CPU.
#[test]
fn an_ordinary_user_sees_how_long_threads_wait() {
    use std::os::unix::fs::PermissionsExt;
    let Some(setup) = setup() else { return };
    let Some(waits) = available(workload::built("waits", &program::WAITS, &["15"])) else {
        return;
    };
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim() != "2" {
        return skip(format!("kernel.perf_event_paranoid is {}, not 2", paranoid.trim()));
    }
    let binary = setup.path("backtrail");
    let copied = setup.path("waits");
    std::fs::copy(env!("CARGO_BIN_EXE_backtrail"), &binary).expect("the binary can be copied");
    std::fs::copy(&waits.arguments[0], &copied).expect("the program can be copied");
    std::fs::set_permissions(setup.folder.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let trace = setup.path("ordinary");
    let mut record = std::process::Command::new("setpriv");
    record
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary);
    record.args(["record", "--off-cpu", "-o", text(&trace), "--", text(&copied), "15"]);
    setup.backtrail.surroundings(&mut record);
    let Some(finished) = available(command::run(&mut record, LIMIT)) else {
        return;
    };
    if finished.stderr.starts_with("setpriv:") {
        return skip(format!(
            "only root can become somebody else: {}",
            finished.stderr.trim()
        ));
    }
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert!(
        finished.stderr.contains("this user may not see where"),
        "{}",
        finished.describe()
    );
    let measured: HashMap<String, (u64, u64)> = serde_json::from_str(&finished.stdout).expect("JSON");
    let arguments = ["export", text(&trace), "--to", "perf-script", "--wall", "-o", "-"];
    let script = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    // Threads have no stacks, but are created in order: the first one sleeps, the third one
    // writes, and pauses in between.
    let mut by_thread: std::collections::BTreeMap<u32, u64> = std::collections::BTreeMap::new();
    for line in script.stdout.lines().filter(|line| line.ends_with(" wall: ")) {
        let mut words = line.split_whitespace();
        let thread = words.nth(1).and_then(|ids| ids.split_once('/')?.1.parse().ok());
        let period = line.rsplit(' ').nth(2).and_then(|period| period.parse::<u64>().ok());
        *by_thread.entry(thread.expect("a thread")).or_default() += period.expect("a period");
    }
    let times: Vec<u64> = by_thread.into_values().collect();
    // On a busy machine, a thread also waits for a CPU outside of what is measured.
    for (thread, function) in [(1, "sleeps"), (2, "reads")] {
        let (recorded, (least, _), (most, _)) = (
            times[thread],
            measured[function],
            measured[&format!("{function} lives")],
        );
        assert!(
            recorded * 100 >= least * 97 && recorded <= most,
            "{function}: {recorded} ns recorded, {least} to {most} measured"
        );
    }
}
