//! How recordings begin and end: statuses passed on, interrupts, the recorder's sudden death,
//! attaching and detaching.

use crate::common;

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, program};
use common::{LIMIT, PROMISED, Setup, setup, text};

fn ready(arguments: &[&str]) -> Option<(Setup, Workload)> {
    let setup = setup()?;
    let workload = available(workload::built("spin", &program::SPIN, arguments))?;
    Some((setup, workload))
}

#[test]
fn the_exit_status_is_passed_on() {
    for status in [0, 1, 7] {
        let Some((setup, workload)) = ready(&["0.5", "exit", &status.to_string()]) else {
            return;
        };
        setup.record(&[], &workload).ended_with(status).readable();
    }
}

#[test]
fn death_by_signal_is_passed_on() {
    for signal in [6, 9, 11, 15] {
        let Some((setup, workload)) = ready(&["0.5", "signal", &signal.to_string()]) else {
            return;
        };
        setup.record(&[], &workload).ended_with(128 + signal).readable();
    }
}

#[test]
fn the_programs_own_output_is_left_alone() {
    let Some((setup, workload)) = ready(&["0.3"]) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    assert_eq!(recording.finished.stdout, "started\n");
    assert_eq!(
        recording.finished.stderr, "",
        "a quiet recording without trouble has nothing to say"
    );
}

#[test]
fn an_interrupt_ends_the_recording_properly() {
    let Some((setup, workload)) = ready(&["60"]) else {
        return;
    };
    let trace = setup.path("trace");
    let running = setup.start(&trace, &[], &workload);
    assert!(running.wait_for_output("started"), "{}", running.finish().describe());
    sleep(Duration::from_secs(1));
    // Ctrl-C reaches the program too, which ends with a status of its own.
    running.signal_group(Signal::INT);
    let recording = setup.recording(trace, running.finish());
    assert!(!recording.finished.timed_out, "{}", recording.finished.describe());
    recording.ended_with(42).complete(200, PROMISED).readable();
}

#[test]
fn a_request_to_end_is_obeyed() {
    for signal in [Signal::INT, Signal::TERM] {
        let Some((setup, workload)) = ready(&["60"]) else {
            return;
        };
        let trace = setup.path("trace");
        let running = setup.start(&trace, &[], &workload);
        assert!(running.wait_for_output("started"), "{}", running.finish().describe());
        sleep(Duration::from_secs(1));
        running.signal(signal);
        let recording = setup.recording(trace, running.finish());
        assert!(
            !recording.finished.timed_out,
            "it goes on after {signal:?}: {}",
            recording.finished.describe()
        );
        recording.complete(200, PROMISED).readable();
    }
}

#[test]
fn what_was_flushed_outlives_the_recorder() {
    for format in ["1.8", "2"] {
        let Some((setup, workload)) = ready(&["60"]) else {
            return;
        };
        let trace = setup.path("trace");
        let running = setup.start(&trace, &["-F", "2000", "--format", format], &workload);
        assert!(running.wait_for_output("started"), "{}", running.finish().describe());
        sleep(Duration::from_millis(2500));
        running.signal(Signal::KILL);
        sleep(Duration::from_millis(200));
        running.signal_group(Signal::KILL);
        let recording = setup.recording(trace, running.finish());
        recording.ended_with(128 + 9).complete(200, PROMISED);
        if format == "1.8" {
            recording.readable();
        }
    }
}

#[test]
fn both_formats_hold_the_same_kind_of_recording() {
    for format in ["1.8", "2"] {
        let Some((setup, workload)) = ready(&["2"]) else { return };
        let recording = setup.record(&["--format", format], &workload);
        recording.ended_with(0).complete(200, PROMISED);
        let share = recording.share_through(&["main", "outer_work", "inner_work", "spin"]);
        assert!(
            share > 0.95,
            "format {format}: {share} of the samples in the chain of calls"
        );
    }
}

#[test]
fn attaches_to_a_running_process_and_lets_it_go() {
    let Some((setup, workload)) = ready(&["4"]) else { return };
    let spin = command::start(&mut workload.command(), LIMIT).expect("it was just built");
    assert!(spin.wait_for_output("started"));
    let trace = setup.path("trace");
    let mut attach = setup.backtrail.command([
        "record",
        "-o",
        text(&trace),
        "--duration",
        "1",
        "-p",
        &spin.pid().to_string(),
    ]);
    let recording = setup.recording(trace, command::run(&mut attach, LIMIT).expect("the binary is there"));
    let spin = spin.finish();
    assert_eq!(spin.code(), 0, "the process was disturbed: {}", spin.describe());
    recording.ended_with(0).complete(200, PROMISED).readable();
    let summary = recording.summary();
    assert!(
        summary.samples < 2000,
        "{} samples in one second at 997 Hz",
        summary.samples
    );
}

#[test]
fn attaches_to_all_threads_of_several_processes() {
    let Some((setup, spin)) = ready(&["60"]) else { return };
    let Some(threads) = available(workload::rust_threads(60)) else {
        return;
    };
    let running: Vec<_> = [&spin, &threads]
        .map(|workload| command::start(&mut workload.command(), LIMIT).expect("it was just built"))
        .into();
    sleep(Duration::from_millis(500));
    let trace = setup.path("trace");
    let mut attach = setup
        .backtrail
        .command(["record", "-q", "-o", text(&trace), "--duration", "1"]);
    for process in &running {
        attach.args(["-p", &process.pid().to_string()]);
    }
    let recording = setup.recording(trace, command::run(&mut attach, LIMIT).expect("the binary is there"));
    assert!(running.iter().all(|process| !process.has_ended()));
    recording.ended_with(0).complete(200, PROMISED).readable();
    let sees = |function: &str| {
        recording
            .folded()
            .iter()
            .any(|(stack, _)| stack.iter().any(|frame| frame.contains(function)))
    };
    assert!(
        sees("outer_work") && sees("threads"),
        "one of the processes is not in the recording"
    );
}

#[test]
fn attached_recordings_end_with_the_process() {
    let Some((setup, workload)) = ready(&["2"]) else { return };
    let spin = command::start(&mut workload.command(), LIMIT).expect("it was just built");
    assert!(spin.wait_for_output("started"));
    let trace = setup.path("trace");
    let mut attach = setup
        .backtrail
        .command(["record", "-q", "-o", text(&trace), "-p", &spin.pid().to_string()]);
    let attached = command::start(&mut attach, LIMIT).expect("the binary is there");
    assert_eq!(spin.finish().code(), 0);
    let recording = setup.recording(trace, attached.finish());
    assert!(!recording.finished.timed_out, "{}", recording.finished.describe());
    recording.ended_with(0).complete(200, PROMISED).readable();
}

#[test]
fn a_duration_bounds_the_recording_of_a_command() {
    let Some((setup, workload)) = ready(&["3"]) else { return };
    let recording = setup.record(&["--duration", "1"], &workload);
    assert!(!recording.finished.timed_out, "{}", recording.finished.describe());
    recording.complete(200, PROMISED).readable();
    let samples = recording.summary().samples;
    assert!(samples < 1500, "{samples} samples in one second at 997 Hz");
}

/// The command ends when the recorder has said that it waits for it.
#[test]
fn a_command_that_outlives_its_recording_is_not_waited_for_in_silence() {
    let Some(setup) = setup() else { return };
    let (trace, said) = (setup.path("trace"), setup.path("said"));
    let mut record = Command::new("sh");
    record.args([
        "-c",
        r#""$0" record -o "$1" --duration 0.2 -- sh -c 'until grep -q "still runs" "$0"; do sleep 0.1; done; exit 9' "$2" 2> "$2""#,
        env!("CARGO_BIN_EXE_backtrail"),
        text(&trace),
        text(&said),
    ]);
    setup.backtrail.surroundings(&mut record);
    setup
        .recording(trace, command::run(&mut record, LIMIT).expect("there is a shell"))
        .ended_with(9)
        .readable();
}

#[test]
fn programs_that_become_others() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::built("exec_mid", &program::EXEC_MID, &["60", "30", "5"])) else {
        return;
    };
    setup
        .record(&[], &workload)
        .ended_with(5)
        .complete(200, PROMISED)
        .readable();
}

#[test]
fn a_program_that_is_over_at_once() {
    let Some(setup) = setup() else { return };
    let trace = setup.path("trace");
    let mut record = setup.backtrail.record(&trace, &[], &["true"]);
    let recording = setup.recording(trace, command::run(&mut record, LIMIT).expect("the binary is there"));
    recording.ended_with(0).readable();
}

#[test]
fn the_command_is_looked_up_as_a_shell_would() {
    let Some(setup) = setup() else { return };
    let trace = setup.path("trace");
    let mut record = Command::new("sh");
    record.args([
        "-c",
        r#""$0" record -o "$1" -- sh -c 'exit 9'"#,
        env!("CARGO_BIN_EXE_backtrail"),
        text(&trace),
    ]);
    setup.backtrail.surroundings(&mut record);
    setup
        .recording(trace, command::run(&mut record, LIMIT).expect("there is a shell"))
        .ended_with(9);
}
