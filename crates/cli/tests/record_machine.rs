//! Recordings of processes that somebody else has started: of the whole machine, of control groups.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_testkit::command::{self, Running};
use backtrail_testkit::recorder::Summary;
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, program, skip};
use common::{LIMIT, PROMISED, Recording, Setup, setup, text};

/// Everything for a test that records processes of others.
fn machine() -> Option<Setup> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may sample processes of others");
        return None;
    }
    setup()
}

fn spinning() -> Option<Workload> {
    available(workload::built("spin", &program::SPIN, &["1.5"]))
}

/// A process with a deep stack, which has been running for a while.
fn running(workload: &Workload) -> Running {
    let running = command::start(&mut workload.command(), LIMIT).expect("it was just built");
    std::thread::sleep(std::time::Duration::from_millis(200));
    running
}

fn stop(running: Running) {
    running.signal(rustix::process::Signal::KILL);
    running.finish();
}

/// The report of one process.
fn of(setup: &Setup, recording: &Recording<'_>, process: &str) -> Summary {
    let arguments = ["report", text(&recording.trace), "--process", process, "--json", "-"];
    let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    Summary::from_json(&finished.stdout).expect("a report is JSON")
}

fn is_complete(summary: &Summary) {
    let incomplete = summary.samples - summary.stops.get("end_of_stack").copied().unwrap_or(0);
    let most = ((1.0 - PROMISED) * summary.samples as f64) as u64;
    assert!(summary.samples >= 25, "{} samples", summary.samples);
    assert!(incomplete <= most.max(5), "{}", summary.incomplete());
}

#[test]
fn processes_that_run_already_and_those_that_start() {
    let Some(setup) = machine() else { return };
    let Some(deep) = available(workload::built("deep", &program::DEEP, &["50", "300", "one"])) else {
        return;
    };
    let Some(spin) = spinning() else { return };
    let earlier = running(&deep);
    let recording = setup.record(&["-a", "-F", "499"], &spin);
    recording.ended_with(0).readable();
    let summary = of(&setup, &recording, &earlier.pid().to_string());
    is_complete(&summary);
    let descended = summary.functions.iter().find(|function| function.name == "descend");
    assert!(descended.is_some_and(|function| function.total * 10 > summary.samples * 9));
    is_complete(&of(&setup, &recording, "spin"));
    // The CPU's idle time belongs to no process.
    let stacks = recording.folded();
    stop(earlier);
    let idle = |stack: &[String]| stack.iter().any(|frame| frame.contains("default_idle_call"));
    assert!(!stacks.iter().any(|(stack, _)| idle(stack)));
}

/// A control group of a test's own.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let hierarchies = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let version_2 = hierarchies
            .iter()
            .find(|path| path.join("cgroup.controllers").exists())?;
        let group = version_2.join(format!("backtrail-test-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        Some(Group(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have just been killed.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_control_group_without_its_surroundings() {
    let Some(setup) = machine() else { return };
    let Some(deep) = available(workload::built("deep", &program::DEEP, &["50", "300", "one"])) else {
        return;
    };
    let Some(spin) = spinning() else { return };
    let Some(group) = Group::new() else {
        return skip("no cgroup can be made here");
    };
    let inside = running(&deep);
    fs::write(group.0.join("cgroup.procs"), inside.pid().to_string()).expect("root may move processes");
    let name = group
        .0
        .file_name()
        .and_then(|name| name.to_str())
        .expect("it is text")
        .to_owned();
    for given in [text(&group.0).to_owned(), format!("/{name}")] {
        let recording = setup.record(&["--cgroup", &given, "-F", "499"], &spin);
        recording.ended_with(0).readable();
        let all = recording.summary();
        is_complete(&of(&setup, &recording, &inside.pid().to_string()));
        assert_eq!(of(&setup, &recording, &inside.pid().to_string()).samples, all.samples);
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
    stop(inside);
}

#[test]
fn a_control_group_that_is_none() {
    let Some(setup) = machine() else { return };
    for (given, reason) in [
        ("no/such/group", "no/such/group"),
        (text(setup.folder.path()), "not a cgroup"),
    ] {
        let trace = setup.path("refused");
        let arguments = ["record", "-o", text(&trace), "--cgroup", given, "--", "true"];
        let finished = command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        common::one_line_about(&finished, reason);
        assert!(!trace.exists());
    }
}
