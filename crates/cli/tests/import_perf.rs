//! Files that perf has written, as recordings: compared with perf's own stacks, frame by frame.

use crate::common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_recording::{Detail, Item, Reader, Stop, is_kernel_address};
use backtrail_testkit::{available, command, perf, program, workload};
use common::{LIMIT, Setup, setup, text};

fn backtrail(arguments: &[&str]) -> command::Finished {
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(run.args(arguments), LIMIT).expect("the command is there")
}

/// A sample of perf's: thread, microseconds, and the addresses from the innermost frame on.
type Stacks = HashMap<(u32, u64), Vec<u64>>;

/// The samples of `perf script`, those only whose stack reaches the program's start.
fn of_perf(data: &Path) -> Option<Stacks> {
    let mut script = Command::new("perf");
    script
        .args(["script", "--no-inline", "-F", "tid,time,ip,sym", "-i"])
        .arg(data);
    let finished = available(command::run(&mut script, LIMIT))?;
    if has_aborted(&finished) {
        return None;
    }
    let mut stacks = Stacks::new();
    for stack in finished.stdout.split("\n\n") {
        let mut lines = stack.lines().filter(|line| !line.trim().is_empty());
        let Some((tid, time)) = lines.next().and_then(|head| {
            let mut words = head.split_whitespace();
            let tid = words.next()?.parse().ok()?;
            let (seconds, micros) = words.next()?.trim_end_matches(':').split_once('.')?;
            Some((
                tid,
                seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?,
            ))
        }) else {
            continue;
        };
        let frames: Vec<(u64, &str)> = lines
            .filter_map(|line| {
                let (address, symbol) = line.trim().split_once(' ')?;
                Some((u64::from_str_radix(address, 16).ok()?, symbol))
            })
            .collect();
        if frames.last().is_some_and(|(_, symbol)| *symbol == "_start") {
            stacks.insert((tid, time), frames.iter().map(|(address, _)| *address).collect());
        }
    }
    Some(stacks)
}

/// The samples of a recording, those only whose stacks are complete.
fn ours(trace: &Path) -> Stacks {
    let mut reader = Reader::open(trace).expect("it was written");
    let mut stacks = Stacks::new();
    while let Some(item) = reader.next().expect("it was written") {
        if let Item::Sample(sample) = item
            && sample.stop == Some(Stop::EndOfStack)
        {
            let frames = sample.frames.iter().map(|frame| frame.address).collect();
            stacks.insert((sample.tid, sample.time / 1_000), frames);
        }
    }
    stacks
}

/// Whether two stacks are the same. perf shows callers one byte before where they go on, and
/// addresses as their files have them, which differ by whole pages.
fn are_same(ours: &[u64], theirs: &[u64]) -> bool {
    let is_same = |(ours, theirs): (&u64, &u64)| {
        let in_page = |address: u64| address % 4_096;
        [*ours, ours.wrapping_sub(1)].map(in_page).contains(&in_page(*theirs))
    };
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_same)
}

fn check_same(ours: &Stacks, theirs: &Stacks) {
    for (sample, stack) in theirs {
        let own = ours.get(sample).map(Vec::as_slice).unwrap_or_default();
        assert!(are_same(own, stack), "{sample:?}: {own:x?}, of perf {stack:x?}");
    }
}

fn recorded(setup: &Setup, call_graph: &str) -> Option<std::path::PathBuf> {
    let workload = available(workload::built("shares", &program::SHARES, &["2"]))?;
    let data = setup.path("perf.data");
    let mut record = perf::record(&data, 499, Some(call_graph), &workload.arguments);
    let finished = available(command::run(&mut record, LIMIT))?;
    if has_aborted(&finished) {
        return None;
    }
    assert!(finished.status.success(), "{}", finished.describe());
    Some(data)
}

/// perf aborts on mappings that the kernel marks wrongly while another recorder asks for build ids.
fn has_aborted(finished: &command::Finished) -> bool {
    let has = finished.stderr.contains("assertion failed at util/build-id.c");
    if has {
        backtrail_testkit::skip("perf aborts while others record");
    }
    has
}

#[test]
fn stacks_of_copies_are_those_that_perf_finds() {
    let Some(setup) = setup() else { return };
    let Some(data) = recorded(&setup, "dwarf,16384") else {
        return;
    };
    let trace = setup.path("trace");
    let finished = backtrail(&["import", text(&data), "-o", text(&trace)]);
    assert!(finished.status.success(), "{}", finished.describe());
    let Some(theirs) = of_perf(&data) else { return };
    let ours = ours(&trace);
    assert!(
        ours.len() >= theirs.len(),
        "{} of {} are complete",
        ours.len(),
        theirs.len()
    );
    assert!(theirs.len() > 50, "perf has {} complete stacks", theirs.len());
    check_same(&ours, &theirs);
    // Every view works, and names are in it.
    assert!(trace.join("symbols").is_file());
    let report = backtrail(&["report", text(&trace), "--callees", "main"]);
    assert!(report.status.success(), "{}", report.describe());
}

/// Compressed, to a file and to a pipe, with two events: the stacks of the first one are perf's.
#[test]
fn compressed_and_piped_files_have_the_stacks_that_perf_finds() {
    for is_piped in [false, true] {
        let Some(setup) = setup() else { return };
        let Some(workload) = available(workload::built("shares", &program::SHARES, &["1"])) else {
            return;
        };
        let data = setup.path("perf.data");
        let output = if is_piped { "-" } else { text(&data) };
        let options = "record -q -z -e cpu-clock -e context-switches -F 499 --call-graph dwarf,16384 -o";
        let mut record = Command::new("perf");
        record
            .args(options.split(' '))
            .args([output, "--"])
            .args(&workload.arguments);
        if is_piped {
            // The program prints nothing.
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "\"$@\" > \"$0\"", text(&data)])
                .arg("perf")
                .args(record.get_args());
            record = shell;
        }
        let Some(finished) = available(command::run(&mut record, LIMIT)) else {
            return;
        };
        if finished.stderr.contains("not compiled in") || finished.stderr.contains("not supported") {
            return backtrail_testkit::skip("this perf does not compress");
        }
        if has_aborted(&finished) {
            return;
        }
        assert!(finished.status.success(), "{}", finished.describe());
        let trace = setup.path("trace");
        let imported = backtrail(&["import", text(&data), "-o", text(&trace)]);
        assert!(imported.status.success(), "{}", imported.describe());
        let Some(theirs) = of_perf(&data) else { return };
        let ours = ours(&trace);
        let mut compared = 0;
        for (sample, own) in &ours {
            if let Some(stack) = theirs.get(sample) {
                assert!(are_same(own, stack), "{sample:?}: {own:x?}, of perf {stack:x?}");
                compared += 1;
            }
        }
        assert!(
            compared > 50 && compared * 10 > ours.len() * 9,
            "{compared} of {}",
            ours.len()
        );
        // An event without samples is one error that names those with samples.
        let other = backtrail(&["import", text(&data), "-o", text(&trace), "--event", "no-event"]);
        assert_eq!(other.code(), 2, "{}", other.describe());
        assert!(other.stderr.contains("cpu-clock"), "{}", other.describe());
    }
}

#[test]
fn call_chains_are_kept_as_they_are() {
    let Some(setup) = setup() else { return };
    let Some(data) = recorded(&setup, "fp") else { return };
    let trace = setup.path("trace");
    let finished = backtrail(&["import", text(&data), "-o", text(&trace), "--no-symbols"]);
    assert!(finished.status.success(), "{}", finished.describe());
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "ip", "-i"]).arg(&data);
    let Some(theirs) = available(command::run(&mut script, LIMIT)) else {
        return;
    };
    if has_aborted(&theirs) {
        return;
    }
    let user = |address: &u64| !is_kernel_address(*address);
    let theirs: u64 = theirs
        .stdout
        .lines()
        .filter_map(|line| u64::from_str_radix(line.trim(), 16).ok())
        .filter(user)
        .count() as u64;
    let mut reader = Reader::open(&trace).expect("it was written");
    let (mut ours, mut samples) = (0, 0);
    while let Some(item) = reader.next().expect("it was written") {
        if let Item::Sample(sample) = item {
            samples += 1;
            ours += sample.frames.iter().map(|frame| frame.address).filter(user).count() as u64;
        }
    }
    assert!(samples > 50);
    assert_eq!(ours, theirs);
}

/// The samples with a frame in the mappings of a file, and those of them that are not complete for
/// another reason than the length of what perf has copied.
fn samples_in(trace: &Path, name: &str) -> (usize, usize) {
    let mut reader = Reader::open(trace).expect("it was written");
    let (mut mappings, mut samples) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next().expect("it was written") {
        match item {
            Item::Module(module) if module.path.contains(name) => mappings.extend(module.mapped),
            Item::Sample(sample) => {
                let frames: Vec<u64> = sample.frames.iter().map(|frame| frame.address).collect();
                samples.push((sample.stop, frames));
            }
            _ => {}
        }
    }
    let is_inside = |address: &u64| mappings.iter().any(|mapping| mapping.contains(address));
    samples.retain(|(_, frames)| frames.iter().any(is_inside));
    let whole_or_short = [
        Stop::EndOfStack,
        Stop::BeyondCopy,
        Stop::NoStart,
        Stop::NoUserStack,
        Stop::Limit,
    ];
    let cut = samples
        .iter()
        .filter(|(stop, _)| !stop.is_some_and(|stop| whole_or_short.contains(&stop)));
    (samples.len(), cut.count())
}

/// A program that is gone, or replaced, is named with what that costs, whether perf noted its build
/// ID or not; and its addresses are not given names of the file that replaced it.
#[test]
fn missing_files_are_named_with_their_samples() {
    let Some(setup) = setup() else { return };
    let Some(original) = available(program::SHARES.build()) else {
        return;
    };
    let program = setup.path("program");
    for (has_build_ids, call_graph) in [(true, "dwarf,8192"), (false, "fp")] {
        fs::copy(&original, &program).expect("there is room");
        let data = setup.path("perf.data");
        let mut record = Command::new("perf");
        record.args([
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            "499",
            "--call-graph",
            call_graph,
            "-o",
        ]);
        record.arg(&data);
        if !has_build_ids {
            // Else it keeps the program in its cache too.
            record.args(["-B", "-N"]);
        }
        let Some(recorded) = available(command::run(record.arg("--").arg(&program).arg("1"), LIMIT)) else {
            return;
        };
        if has_aborted(&recorded) {
            return;
        }
        let import = |more: &[&str]| {
            let trace = setup.path("trace");
            let _ = fs::remove_dir_all(&trace);
            let arguments = [&["import", "-q", text(&data), "-o", text(&trace)], more].concat();
            let finished = backtrail(&arguments);
            assert_eq!(finished.code(), 0, "{}", finished.describe());
            (trace, finished.stderr)
        };
        let cost = |trace: &Path| match samples_in(trace, "/program") {
            (samples, 0) => format!("it is on the stacks of {samples} samples\n"),
            (samples, cut) => format!("it is on the stacks of {samples} samples, {cut} of them incomplete\n"),
        };
        let (_, warnings) = import(&[]);
        assert_eq!(warnings, "");

        fs::remove_file(&program).expect("it was there");
        let (trace, warnings) = import(&[]);
        let line = format!("{}: not found; {}", text(&program), cost(&trace));
        assert!(samples_in(&trace, "/program").0 > 50);
        assert!(warnings.contains(&line), "{line}in {warnings}");
        assert!(warnings.contains("--sysroot DIR"), "{warnings}");

        // The inode may be that of the file before, if nothing else has taken it.
        let taken = setup.file("taken", b"");
        fs::copy("/bin/true", &program).expect("there is room");
        let (trace, warnings) = import(&[]);
        let why = match has_build_ids {
            true => "build ID mismatch: ",
            false => "another file has replaced it since",
        };
        let line = format!("{}: {why}", text(&program));
        assert!(warnings.contains(&line), "{line} in {warnings}");
        assert!(warnings.contains(&cost(&trace)), "{warnings}");
        let report = backtrail(&["report", "--wide", text(&trace)]);
        assert!(report.stdout.contains("  program+0x"), "{}", report.describe());
        assert!(report.stdout.contains("note: "), "{}", report.describe());
        fs::remove_file(&taken).expect("it was there");

        let root = setup.path("root");
        fs::create_dir_all(&root).expect("there is room");
        let (trace, warnings) = import(&["--sysroot", text(&root)]);
        let line = format!("{}: not found below {}; {}", text(&program), text(&root), cost(&trace));
        assert!(warnings.contains(&line), "{line}in {warnings}");
        // Nor are names of this machine's files given to another machine's.
        let below = root.join(program.strip_prefix("/").expect("it is absolute"));
        fs::create_dir_all(below.parent().expect("it is below")).expect("there is room");
        fs::copy(&original, &below).expect("there is room");
        let (trace, warnings) = import(&["--sysroot", text(&root)]);
        assert!(!warnings.contains(&format!("{}: ", text(&program))), "{warnings}");
        assert_eq!(warnings.contains("has no build ID of"), !has_build_ids, "{warnings}");
        let report = backtrail(&["report", text(&trace)]);
        assert!(report.stdout.contains("  program\n"), "{}", report.describe());
        assert!(!report.stdout.contains("  program+0x"), "{}", report.describe());
        fs::remove_dir_all(&root).expect("it was there");
    }
}

/// A program that touches thousands of pages.
fn sorting() -> [String; 3] {
    ["sh", "-c", "seq 300000 | sort > /dev/null"].map(str::to_owned)
}

/// A file that perf has recorded with these options, and the recording made of it.
fn imported(setup: &Setup, options: &str, program: &[String]) -> Option<(PathBuf, PathBuf)> {
    let (data, trace) = (setup.path("perf.data"), setup.path("trace"));
    let mut record = Command::new("perf");
    record
        .args(["record", "-q", "-o", text(&data)])
        .args(options.split(' '))
        .arg("--")
        .args(program);
    let recorded = available(command::run(&mut record, LIMIT))?;
    if has_aborted(&recorded) {
        return None;
    }
    let finished = backtrail(&["import", text(&data), "-o", text(&trace)]);
    assert!(finished.status.success(), "{}", finished.describe());
    Some((data, trace))
}

/// The periods of the samples of `perf script`, by event, thread and nanosecond.
fn periods(data: &Path) -> Option<HashMap<(String, u32, u64), u64>> {
    let mut script = Command::new("perf");
    script
        .args(["script", "--ns", "-F", "tid,time,event,period", "-i"])
        .arg(data);
    let finished = available(command::run(&mut script, LIMIT))?;
    let lines = finished
        .stdout
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [tid, time, period, event] = words[..] else {
                panic!("{line}")
            };
            let number = |word: &str| word.parse::<u64>().expect("perf writes numbers");
            let (seconds, rest) = time.trim_end_matches(':').split_once('.').expect("perf writes seconds");
            let key = (
                event.trim_end_matches(':').to_owned(),
                number(tid) as u32,
                number(seconds) * 1_000_000_000 + number(rest),
            );
            (key, number(period))
        });
    Some(lines.collect())
}

/// perf adapts the period of events to a frequency: what a sample stands for differs by orders of
/// magnitude.
#[test]
fn samples_count_the_occurrences_that_perf_says_they_stand_for() {
    let all = [
        ("page-faults", "page-faults"),
        (
            "cpu-clock -e page-faults -e minor-faults",
            "cpu-clock page-faults minor-faults",
        ),
        // The second one has no samples of its own: those of the first one count it.
        ("{cpu-clock,page-faults}:S", "cpu-clock page-faults"),
    ];
    for (events, names) in all {
        let Some(setup) = setup() else { return };
        let numbers: String = (0..300_000).rev().map(|number| format!("{number}\n")).collect();
        let file = setup.file("numbers", numbers.as_bytes());
        let program = match events.ends_with(":S") {
            // perf does not follow children here.
            true => ["sort", "-o", "/dev/null", text(&file)].map(str::to_owned).to_vec(),
            false => sorting().to_vec(),
        };
        let Some((data, _)) = imported(&setup, &format!("-g -e {events}"), &program) else {
            return;
        };
        let Some(theirs) = periods(&data) else { return };
        let trace = setup.path("chosen");
        let mut arguments = vec!["import", "-q", text(&data), "-o", text(&trace)];
        let names: Vec<&str> = names.split(' ').collect();
        arguments.extend(names.iter().flat_map(|name| ["--event", name]));
        let finished = backtrail(&arguments);
        assert!(finished.status.success(), "{}", finished.describe());
        let mut reader = Reader::open(&trace).expect("it was written");
        let mut ours = 0;
        while let Some(item) = reader.next().expect("it was written") {
            let Item::Sample(sample) = item else { continue };
            ours += 1;
            if let Detail::Counted { event, count } = sample.detail {
                let key = (names[usize::from(event)].to_owned(), sample.tid, sample.time);
                assert_eq!(theirs.get(&key), Some(&count), "{key:?}");
            }
        }
        assert_eq!(ours, theirs.len());
        let faults = theirs.iter().filter(|((event, ..), _)| event == "page-faults");
        let all: Vec<u64> = faults.map(|(_, period)| *period).collect();
        assert!(all.iter().max() > all.iter().min(), "all stand for the same: {all:?}");
        let report = backtrail(&["report", text(&trace), "--event", "page-faults"]);
        let head = format!("{} page-faults in {} samples", all.iter().sum::<u64>(), all.len());
        assert!(report.stdout.starts_with(&head), "{head}: {}", report.describe());
    }
}

/// Each thread of perf writes a file of its own, compressed or not.
#[test]
fn directories_of_perfs_threads_have_all_samples() {
    for options in ["", "-z "] {
        let Some(setup) = setup() else { return };
        let Some(workload) = available(workload::built("shares", &program::SHARES, &["1"])) else {
            return;
        };
        let recorded = imported(
            &setup,
            &format!("{options}--threads -e cpu-clock -F 2999 --call-graph dwarf,16384"),
            &workload.arguments,
        );
        let Some((data, trace)) = recorded else { return };
        assert!(data.join("data.1").is_file(), "perf has written one file only");
        let Some(theirs) = of_perf(&data) else { return };
        let ours = ours(&trace);
        assert!(theirs.len() > 50, "perf has {} complete stacks", theirs.len());
        check_same(&ours, &theirs);
    }
}

/// The kernel says how many records it could not deliver, and perf how many samples of each event
/// these were.
#[test]
fn lost_samples_are_counted_once() {
    let Some(setup) = setup() else { return };
    let options = "-m 32 -F 20000 -e cpu-clock --call-graph dwarf,32768";
    let Some((data, trace)) = imported(&setup, options, &sorting()) else {
        return;
    };
    let mut stats = Command::new("perf");
    stats.args(["report", "--stats", "-i"]).arg(&data);
    let Some(stats) = available(command::run(&mut stats, LIMIT)) else {
        return;
    };
    let of_event = stats.stdout.split_once("cpu-clock stats:").map_or("", |(_, rest)| rest);
    let Some((_, lost)) = of_event.split_once("LOST_SAMPLES events:") else {
        backtrail_testkit::skip("this kernel does not count what an event loses");
        return;
    };
    let lost = lost.split_whitespace().next().unwrap_or_default();
    assert_ne!(lost, "0", "nothing was lost");
    let report = backtrail(&["report", text(&trace)]);
    let says = format!(", {lost} lost, ");
    assert!(report.stdout.contains(&says), "{says}: {}", report.describe());
}

#[test]
fn files_without_samples_are_reported() {
    let Some(setup) = setup() else { return };
    let (data, trace) = (setup.path("perf.data"), setup.path("trace"));
    let mut stat = Command::new("perf");
    stat.args(["stat", "record", "-e", "task-clock", "-o"])
        .arg(&data)
        .arg("true");
    let counted = available(command::run(&mut stat, LIMIT));
    if counted.is_none_or(|counted| counted.code() != 0) {
        return backtrail_testkit::skip("perf cannot count here");
    }
    let imported = backtrail(&["import", text(&data), "-o", text(&trace)]);
    assert_eq!(imported.code(), 0, "{}", imported.describe());
    let warning = format!("backtrail: warning: {}: has no samples\n", data.display());
    assert!(imported.stderr.contains(&warning), "{}", imported.describe());
}

#[test]
fn what_is_no_perf_data_is_one_error() {
    let Some(setup) = setup() else { return };
    let file = setup.file("perf.data", b"PERFILE1 and what follows");
    let trace = setup.path("trace");
    for input in [text(&file), "/no/such/file"] {
        let finished = backtrail(&["import", input, "-o", text(&trace)]);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(finished.stderr.contains(input), "{}", finished.describe());
        assert!(!trace.exists());
    }
    let finished = backtrail(&["import", text(&file), "-o", text(&trace)]);
    assert!(
        finished.stderr.contains(": not a perf.data file\nhelp: "),
        "{}",
        finished.describe()
    );
    let file = setup.file("perf.data", b"2ELIFREP and what follows");
    let finished = backtrail(&["import", text(&file), "-o", text(&trace)]);
    assert!(finished.stderr.contains("other byte order"), "{}", finished.describe());
}
