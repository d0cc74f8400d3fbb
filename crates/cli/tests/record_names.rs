//! What frames are called: in files that are mapped twice or stripped, and in code made at run
//! time.

use crate::common;

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use backtrail_testkit::{available, command, program, workload};
use common::{LIMIT, PROMISED, Recording, setup};

/// How many samples ended in this function of this module.
fn own(recording: &Recording<'_>, name: &str) -> u64 {
    let functions = recording.summary().functions;
    functions
        .iter()
        .filter(|function| function.name == name)
        .map(|function| function.own)
        .sum()
}

/// V8, for one, maps its functions again near the code that it makes.
#[test]
fn a_part_of_a_file_that_is_mapped_again() {
    let Some(setup) = setup() else { return };
    for (name, program) in [
        ("remapped", &program::REMAPPED),
        ("remapped_fixed", &program::REMAPPED_FIXED),
    ] {
        let Some(workload) = available(workload::built(name, program, &["1"])) else {
            return;
        };
        let recording = setup.record(&[], &workload);
        recording.ended_with(0).complete(100, PROMISED).readable();
        let share = recording.share_through(&["main", "caller", "mapped_twice"]);
        // Half of the time is spent in each mapping; starting takes some of it on a busy machine.
        assert!(
            share > 0.9,
            "{name}: only {share} of the samples have the names of the chain"
        );
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
}

/// The addresses of a function are one row, whether it has a name or not.
#[test]
fn a_stripped_program_has_as_many_rows_as_functions() {
    let Some(setup) = setup() else { return };
    let rows = [&program::SHARES, &program::SHARES_STRIPPED].map(|program| {
        let workload = available(workload::built("shares", program, &["1"]))?;
        let recording = setup.record(&[], &workload);
        recording.ended_with(0).complete(100, PROMISED);
        let folded = recording.folded();
        let all: u64 = folded.iter().map(|(_, count)| count).sum();
        fs::remove_dir_all(&recording.trace).expect("it was written");
        // What most samples go through: a chain from main to the leaf is one row in both.
        let most = folded.into_iter().map(|(_, count)| count).max().unwrap_or(0);
        Some(most as f64 / all.max(1) as f64)
    });
    if let [Some(named), Some(stripped)] = rows {
        assert!(
            stripped > named * 0.8,
            "the most frequent stack has {stripped} of the samples, and {named} with names"
        );
    }
}

/// A dump says what was where at which time.
#[test]
fn code_made_at_run_time_has_the_name_of_its_time() {
    let Some(setup) = setup() else { return };
    let folder = setup.folder.path().to_str().expect("a path").to_owned();
    let Some(workload) = available(workload::built("jit_dump", &program::JIT_DUMP, &[&folder, "1.5"])) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).readable();
    let (first, again) = (own(&recording, "compiled_first"), own(&recording, "compiled_again"));
    let all = recording.summary().samples;
    assert!(
        (first + again) * 10 > all * 9,
        "{first} and {again} of {all} samples are in made code"
    );
    // A third of the time each: first at its place, then what came after it, then moved.
    assert!(
        first > again && again * 5 > all,
        "{first} first, {again} again, of {all} samples"
    );
    let mut report = setup.backtrail.command(["report", "--json", "-"]);
    let told = command::run(report.arg(&recording.trace), LIMIT).expect("it runs");
    let json: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
    let functions = json["functions"].as_array().expect("a list");
    let line = |name: &str| {
        let function = functions.iter().find(|function| function["name"] == name);
        let function = function.expect("it is there");
        (
            function["module"].clone(),
            function["file"].clone(),
            function["line"].clone(),
        )
    };
    let expected = |line: u32| ("[jit]".into(), "jit.src".into(), line.into());
    assert_eq!(
        (line("compiled_first"), line("compiled_again")),
        (expected(10), expected(20))
    );
}

/// The same holds for a look at a process, and of its core.
#[test]
fn live_stacks_and_cores_have_these_names_too() {
    let Some(setup) = setup() else { return };
    let folder = setup.folder.path().to_str().expect("a path").to_owned();
    let programs: [(&str, &program::Program, [&str; 2], &[&str]); 3] = [
        (
            "remapped",
            &program::REMAPPED,
            ["30", "again"],
            &["mapped_twice", "caller"],
        ),
        (
            "remapped_fixed",
            &program::REMAPPED_FIXED,
            ["30", "again"],
            &["mapped_twice", "caller"],
        ),
        (
            "jit_dump",
            &program::JIT_DUMP,
            [&folder, "90"],
            &["compiled_first", "run_for"],
        ),
    ];
    for (name, program, arguments, chain) in programs {
        let Some(workload) = available(workload::built(name, program, &arguments)) else {
            return;
        };
        let running = command::start(&mut workload.command(), LIMIT).expect("it was just built");
        let has_chain = |target: &str| {
            let mut stack = setup.backtrail.command(["stack", "--json", target]);
            let told = command::run(&mut stack, LIMIT).expect("it runs").stdout;
            let json: serde_json::Value = serde_json::from_str(&told).unwrap_or_default();
            let frames = json["threads"][0]["frames"].as_array().cloned().unwrap_or_default();
            let names: Vec<&str> = frames.iter().filter_map(|frame| frame["function"].as_str()).collect();
            names.windows(chain.len()).any(|part| part == chain)
        };
        // It measures how fast it is before.
        let pid = running.pid().to_string();
        let shown = (0..100).any(|_| {
            sleep(Duration::from_millis(100));
            has_chain(&pid)
        });
        assert!(shown, "{name}: {chain:?} is not in its stack");
        let core = setup.path(&format!("core.{pid}"));
        // It looks at the time now and then.
        let mut made = String::new();
        let shown = (0..20).any(|_| {
            let mut gcore = std::process::Command::new("gcore");
            gcore.arg("-o").arg(setup.path("core")).arg(&pid);
            let Some(finished) = available(command::run(&mut gcore, LIMIT)) else {
                return true;
            };
            made = finished.describe();
            has_chain(core.to_str().expect("a path"))
        });
        assert!(shown, "{name}: {made}");
        running.signal(rustix::process::Signal::KILL);
        running.finish();
    }
}

/// The first thread of a program of threads may never run while it is recorded.
#[test]
fn a_process_that_ran_already_has_its_name() {
    let Some(setup) = setup() else { return };
    let Some(threads) = available(workload::rust_threads(6)) else {
        return;
    };
    let running = command::start(&mut threads.command(), LIMIT).expect("it was just built");
    sleep(Duration::from_millis(500));
    let trace = setup.path("trace");
    let mut attach = setup.backtrail.command(["record", "-q", "--duration", "1", "-o"]);
    attach.arg(&trace).args(["-p", &running.pid().to_string()]);
    let finished = command::run(&mut attach, LIMIT).expect("it runs");
    let recording = setup.recording(trace, finished);
    recording.ended_with(0);
    let names: Vec<String> = recording
        .folded()
        .into_iter()
        .map(|(stack, _)| stack[0].clone())
        .collect();
    assert!(
        !names.is_empty() && names.iter().all(|name| name == "threads"),
        "{names:?}"
    );
}
