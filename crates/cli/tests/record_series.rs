//! Several recordings in a folder: one after the other, and snapshots of what is in memory.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::recorder::{Summary, bytes_in};
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, program, skip};
use common::{LIMIT, Setup, setup, text};

fn spinning(seconds: &str) -> Option<(Setup, Workload)> {
    let setup = setup()?;
    let workload = available(workload::built("spin", &program::SPIN, &[seconds]))?;
    Some((setup, workload))
}

/// The recordings in a folder, oldest first; there is nothing else.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the recorder has made it");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it is read").path()).collect();
    paths.retain(|path| {
        !path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'))
    });
    paths.sort();
    let is_ours = |path: &PathBuf| text(path).ends_with("Z.trace");
    assert!(paths.iter().all(is_ours), "{paths:?}");
    paths
}

/// What the report says about each; every one must be whole.
fn summaries(setup: &Setup, recordings: &[PathBuf]) -> Vec<Summary> {
    recordings.iter().map(|path| setup.backtrail.summary(path)).collect()
}

/// The time of the first sample, in nanoseconds.
fn first_sample(setup: &Setup, recording: &Path) -> u64 {
    let arguments = ["trace", "show", "--json", text(recording)];
    let shown = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(shown.code(), 0, "{}", shown.describe());
    let events = shown
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let sample = events
        .filter(|event: &serde_json::Value| event["name"] == "backtrail:sample")
        .find_map(|event| event["ts"].as_u64());
    sample.expect("a snapshot has samples")
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        sleep(Duration::from_millis(50));
    }
}

fn kill(running: Running) {
    running.signal(Signal::KILL);
    running.finish();
}

/// Every call is in exactly one recording, or counted as lost.
#[test]
fn nothing_is_lost_between_two_recordings() {
    let Some(setup) = setup() else { return };
    let workload = workload::built("ticks", &program::TICKS, &["2000", "500"]);
    let Some(ticks) = available(workload) else { return };
    let folder = setup.path("parts");
    let total = setup.path("total.json");
    let options = ["--entry", "tick", "--rotate", "150ms", "--json", text(&total)];
    let finished = setup.start(&folder, &options, &ticks).finish();
    let refused = ["tracefs, which is root's", "CONFIG_UPROBE_EVENTS"];
    if let Some(reason) = refused.iter().find(|reason| finished.stderr.contains(**reason)) {
        return skip(format!("calls of functions can't be sampled: {reason}"));
    }
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let parts = recordings(&folder);
    assert!(parts.len() >= 4, "{parts:?}");
    let all = summaries(&setup, &parts);
    let total = fs::read_to_string(&total).expect("the recorder has written it");
    let total = Summary::from_json(&total).expect("it is JSON");
    let sums = |all: &[Summary]| {
        all.iter()
            .fold((0, 0), |sum, part| (sum.0 + part.samples, sum.1 + part.lost))
    };
    assert_eq!(
        sums(&all),
        (total.samples, total.lost),
        "{:?}",
        all.iter().map(|part| part.samples).collect::<Vec<_>>()
    );
    // One sample for each call: nothing is in two recordings, and nothing in none.
    assert!(total.samples <= 2000);
    // Each has its names: the report needs no other file.
    let middle = &parts[parts.len() / 2];
    assert!(middle.join("symbols").exists(), "{}", finished.describe());
    // The folder itself is no recording; one in it is named.
    let mut report = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let refused = command::run(report.args(["report", text(&folder)]), LIMIT).expect("the command is there");
    assert_eq!(refused.code(), 2, "{}", refused.describe());
    let last = parts.last().expect("there are several");
    for part in [format!("it has {}", parts.len()), last.display().to_string()] {
        assert!(refused.stderr.contains(&part), "{}", refused.describe());
    }
}

#[test]
fn recordings_are_whole_when_the_recorder_is_killed() {
    let Some((setup, spin)) = spinning("60") else { return };
    let folder = setup.path("parts");
    let mut before = 0;
    for wait in [700, 410, 1030] {
        let running = setup.start(&folder, &["--rotate", "100ms", "--no-symbols"], &spin);
        wait_for("recordings", || {
            folder.exists() && recordings(&folder).len() > before + 2
        });
        sleep(Duration::from_millis(wait));
        let spinning = children(running.pid());
        kill(running);
        for pid in spinning {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let parts = recordings(&folder);
        assert!(parts.len() > before + 2, "the earlier ones are still there");
        before = parts.len();
        let all = summaries(&setup, &parts);
        assert!(all.iter().map(|part| part.samples).sum::<u64>() > 0);
    }
    // The next recorder deletes what is too much, also of the earlier ones.
    let finished = setup
        .start(
            &folder,
            &["--rotate", "100ms", "--keep", "300ms", "--duration", "1", "-F", "49"],
            &available(workload::built("spin", &program::SPIN, &["0.5"])).expect("it was just built"),
        )
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert!(recordings(&folder).len() < before);
}

fn children(pid: u32) -> Vec<rustix::process::Pid> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let numbers = list.split_whitespace().filter_map(|number| number.parse().ok());
    numbers.filter_map(rustix::process::Pid::from_raw).collect()
}

#[test]
fn a_size_is_not_exceeded() {
    let Some((setup, spin)) = spinning("60") else { return };
    let folder = setup.path("parts");
    let options = ["--rotate", "1h", "--keep", "200KB", "-F", "4999", "--no-symbols"];
    let running = setup.start(&folder, &options, &spin);
    wait_for("a first recording", || {
        folder.exists() && !recordings(&folder).is_empty()
    });
    let first = recordings(&folder).swap_remove(0);
    // Full when the first one has had to go: how long that takes depends on the machine's load.
    wait_for("an end of the first recording", || !first.exists());
    running.signal(Signal::TERM);
    let finished = running.finish();
    let parts = recordings(&folder);
    let bytes: u64 = parts.iter().map(|part| bytes_in(part)).sum();
    assert!(
        parts.len() > 1 && (50_000..=200_000).contains(&bytes),
        "{bytes} bytes in {parts:?}: {}",
        finished.describe()
    );
    summaries(&setup, &parts);
}

#[test]
fn snapshots_have_the_last_seconds() {
    let Some((setup, spin)) = spinning("60") else { return };
    let folder = setup.path("snapshots");
    let options = ["--snapshot-on", "SIGUSR2", "--snapshot-on", "exit", "--keep", "1s"];
    let running = setup.start(&folder, &options, &spin);
    assert!(running.wait_for_output("started"), "{}", running.finish().describe());
    sleep(Duration::from_millis(800));
    assert_eq!(recordings(&folder).len(), 0, "nothing is written until it is asked for");
    running.signal(Signal::USR2);
    wait_for("a snapshot", || recordings(&folder).len() == 1);
    sleep(Duration::from_millis(3500));
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert!(!finished.timed_out, "{}", finished.describe());
    let parts = recordings(&folder);
    assert_eq!(parts.len(), 2, "{}", finished.describe());
    let all = summaries(&setup, &parts);
    assert!(all.iter().all(|part| part.samples >= 20), "{}", finished.describe());
    let (first, second) = (first_sample(&setup, &parts[0]), first_sample(&setup, &parts[1]));
    assert!(second > first + 1_000_000_000, "the first second was forgotten");
    setup.recording(parts[1].clone(), finished).readable();
}

#[test]
fn a_command_asks_for_snapshots() {
    let Some((setup, spin)) = spinning("60") else { return };
    let (folder, flag) = (setup.path("snapshots"), setup.path("flag"));
    let trigger = format!("test -e '{}'", text(&flag));
    let running = setup.start(&folder, &["--trigger", &trigger], &spin);
    assert!(running.wait_for_output("started"), "{}", running.finish().describe());
    sleep(Duration::from_millis(1500));
    assert_eq!(recordings(&folder).len(), 0);
    fs::write(&flag, "").expect("the folder can be written");
    wait_for("a snapshot", || recordings(&folder).len() == 1);
    fs::remove_file(&flag).expect("it was just written");
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert!(!finished.timed_out, "{}", finished.describe());
    let parts = recordings(&folder);
    assert_eq!(
        parts.len(),
        1,
        "nobody asked for one at the end: {}",
        finished.describe()
    );
    assert!(summaries(&setup, &parts)[0].samples > 0);
}

/// The command gets each recording once, with its names, and one that fails loses nothing.
#[test]
fn a_command_runs_after_each_recording() {
    let Some((setup, spin)) = spinning("1") else { return };
    let folder = setup.path("parts");
    let then = "test -s \"$1/symbols\" && echo named; echo \"$1\"; exit 3";
    let options = ["--rotate", "200ms", "--then", then];
    let finished = {
        let mut record = setup.backtrail.command(["record", "-o"]);
        record.arg(&folder).args(options).arg("--").args(&spin.arguments);
        command::run(&mut record, LIMIT).expect("it was built")
    };
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let parts = recordings(&folder);
    let parts: Vec<&str> = parts.iter().map(|part| text(part)).collect();
    assert!(parts.len() > 2, "{parts:?}");
    // The program says that it has started.
    let lines: Vec<&str> = finished.stdout.lines().filter(|line| *line != "started").collect();
    let (names, passed): (Vec<&str>, Vec<&str>) = lines.iter().partition(|line| **line == "named");
    assert_eq!(passed, parts);
    // The program runs for a second, which is at least five parts; it may have to wait in others.
    assert!(names.len() >= 3, "{}", finished.describe());
    let warnings = finished.stderr.matches("the command of --then failed: exit status: 3");
    assert_eq!(warnings.count(), parts.len(), "{}", finished.describe());
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let Some((setup, spin)) = spinning("1") else { return };
    for (options, reason) in [
        (&["--keep", "1h"][..], "--keep is for several recordings"),
        (&["--then", "true"], "--then is for several recordings"),
        (&["--rotate", "1fortnight"], "not a time"),
        (&["--rotate", "1h", "--keep", "1B"], "less than 4 KiB"),
        (&["--rotate", "1h", "--snapshot-on", "exit"], "cannot be used with"),
        (&["--snapshot-on", "SIGKILL"], "not exit, SIGUSR1 or SIGUSR2"),
        (&["--snapshot-on", "USR1", "--snapshot-on", "USR2"], "takes one signal"),
    ] {
        let folder = setup.path("parts");
        let finished = setup.start(&folder, options, &spin).finish();
        assert_eq!(finished.code(), 2, "{options:?}: {}", finished.describe());
        assert!(finished.stderr.contains(reason), "{}", finished.describe());
        assert!(!folder.exists());
    }
    // Two recorders would delete each other's recordings.
    let folder = setup.path("parts");
    let options = ["--rotate", "1h"];
    let first = setup.start(&folder, &options, &spin);
    assert!(first.wait_for_output("started"), "{}", first.finish().describe());
    let second = setup.start(&folder, &options, &spin).finish();
    assert_eq!(second.code(), 2, "{}", second.describe());
    common::one_line_about(&second, "another recorder writes to this folder");
    assert_eq!(first.finish().code(), 0);
}

#[test]
fn the_unit_is_sound() {
    let folder = backtrail_testkit::scratch();
    let unit = include_str!("../dist/backtrail-recorder.service");
    let installed = unit.replace("/usr/bin/backtrail", env!("CARGO_BIN_EXE_backtrail"));
    let path = folder.path().join("backtrail-recorder.service");
    fs::write(&path, installed).expect("the folder can be written");
    let mut verify = std::process::Command::new("systemd-analyze");
    let verified = command::run(verify.args(["verify", "--man=no"]).arg(&path), LIMIT);
    let Some(verified) = available(verified) else { return };
    // Other units of the machine may not be sound.
    let ours = |line: &&str| line.contains("backtrail");
    let complaints: Vec<&str> = verified.stderr.lines().filter(ours).collect();
    assert_eq!((verified.code(), complaints), (0, vec![]));
    // The options of its command line are ours.
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/backtrail "));
    let values = [
        ("${BACKTRAIL_RATE}", "97"),
        ("${BACKTRAIL_ROTATE}", "1min"),
        ("${BACKTRAIL_KEEP}", "2GiB"),
        ("${BACKTRAIL_THEN}", "true"),
    ];
    let line = values
        .iter()
        .fold(line.expect("it runs us").to_owned(), |line, (name, value)| {
            line.replace(name, value)
        });
    assert!(!line.contains('$'), "{line}");
    let parts = folder.path().join("parts");
    let line = line.replace("/var/lib/backtrail/recordings", text(&parts));
    let Some(setup) = setup().filter(|_| rustix::process::geteuid().is_root()) else {
        return skip("only root may sample processes of others");
    };
    let words = line.split(' ').chain(["--duration", "1"]);
    let finished = command::run(&mut setup.backtrail.command(words), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert_eq!(recordings(&parts).len(), 1);
}
