//! Bad input is normal input: one clear line, a status, and a recording that stays readable.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::mounted::Mounted;
use backtrail_testkit::text::Random;
use backtrail_testkit::workload;
use backtrail_testkit::{available, elf_file, program, skip};
use common::{LIMIT, Setup, errors, one_line_about, setup, text, without_sampling};

/// The library for loading, as bytes to be spoilt.
fn plugin() -> Option<Vec<u8>> {
    available(program::PLUGIN.build()).map(|path| fs::read(path).expect("it was just built"))
}

fn backtrail(setup: &Setup, arguments: &[&str]) -> Finished {
    command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there")
}

/// Fails unless the command refused: status 2, one line about it, nothing left behind.
fn refused(finished: &Finished, about: &str) {
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert_eq!(errors(finished).len(), 1, "{}", finished.describe());
    one_line_about(finished, about);
}

#[test]
fn code_in_a_truncated_elf_file() {
    let Some(setup) = setup() else { return };
    let Some(mut file) = plugin() else { return };
    let entry = elf_file::dynamic_symbol(&file, "plugin_alone").expect("the library exports it");
    let code = elf_file::section(&file, ".text").expect("a library has code");
    // The code is whole; tables, symbols and section headers come after it and are gone.
    file.truncate(code.end);
    let cut = setup.file("cut.so", &file);
    let run = workload::built(
        "dlopen run",
        &program::DLOPEN,
        &["1", "run", text(&cut), &format!("{entry:#x}")],
    );
    let Some(run) = available(run) else { return };
    let recording = setup.record(&[], &run);
    recording
        .ended_with(0)
        .one_line_about("cut.so")
        .complete(200, 0.3)
        .readable();
    let in_it = |stack: &[String]| stack.last().is_some_and(|leaf| leaf.contains("cut.so"));
    assert!(
        recording.folded().iter().any(|(stack, _)| in_it(stack)),
        "no frame names the file"
    );
}

#[test]
fn elf_headers_that_end_too_early() {
    let Some(setup) = setup() else { return };
    let Some(file) = plugin() else { return };
    for length in [1, 17, 64, 100, 700] {
        // Mapped whole, then cut: a recorder that maps the file itself must not die of a page that
        // is gone.
        let cut = setup.file("headers.so", &file);
        let arguments = ["1", "truncate", text(&cut), &length.to_string()];
        let Some(workload) = available(workload::built("dlopen truncate", &program::DLOPEN, &arguments)) else {
            return;
        };
        let recording = setup.record(&[], &workload);
        recording.ended_with(0).complete(200, common::PROMISED).readable();
        assert!(
            errors(&recording.finished).len() <= 1,
            "{}",
            recording.finished.describe()
        );
        fs::remove_dir_all(&recording.trace).expect("the recording can be removed");
    }
}

#[test]
fn frame_tables_full_of_garbage() {
    let Some(setup) = setup() else { return };
    let Some(good) = plugin() else { return };
    let place = elf_file::section(&good, ".eh_frame").expect("a library has .eh_frame");
    for seed in 0..4 {
        let mut bad = good.clone();
        let mut random = Random::new(seed);
        // The first is spoilt from the first byte on, the others after the first entry, so that
        // something is parsed first.
        let start = if seed == 0 { place.start } else { place.start + 28 };
        bad[start..place.end].fill_with(|| random.number() as u8);
        let spoilt = setup.file("spoilt.so", &bad);
        let stay = workload::built("dlopen stay", &program::DLOPEN, &["1.5", "stay", text(&spoilt)]);
        let Some(stay) = available(stay) else { return };
        let recording = setup.record(&[], &stay);
        recording
            .ended_with(0)
            .one_line_about("spoilt.so")
            .complete(200, 0.0)
            .readable();
        fs::remove_dir_all(&recording.trace).expect("the recording can be removed");
    }
}

#[test]
fn an_output_directory_that_exists() {
    let Some(setup) = setup() else { return };
    let Some(spin) = available(workload::built("spin", &program::SPIN, &["0.2"])) else {
        return;
    };
    let taken = setup.path("trace");
    fs::create_dir(&taken).expect("the test's directory can be written");
    fs::write(taken.join("precious"), "kept").expect("the test's directory can be written");
    let recording = setup.record(&[], &spin);
    refused(&recording.finished, text(&taken));
    assert_eq!(
        recording.finished.stdout, "",
        "the program ran although its recording had no place"
    );
    let left: Vec<_> = fs::read_dir(&taken)
        .expect("it is still there")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, ["precious"]);
}

#[test]
fn an_output_directory_that_cannot_be_made() {
    let Some(setup) = setup() else { return };
    let file = setup.file("file", b"no directory");
    let inside = file.join("trace");
    refused(
        &backtrail(&setup, &["record", "-o", text(&inside), "--", "true"]),
        "trace",
    );
}

#[test]
fn a_command_that_is_not_there() {
    let Some(setup) = setup() else { return };
    let trace = setup.path("trace");
    let no_program = setup.file("no-program", b"just text");
    for command in ["backtrail-no-such-command", text(&no_program)] {
        refused(
            &backtrail(&setup, &["record", "-o", text(&trace), "--", command]),
            command,
        );
        assert!(!trace.exists(), "a recording of nothing was left behind");
    }
}

#[test]
fn a_process_that_is_not_there() {
    let Some(setup) = setup() else { return };
    let trace = setup.path("trace");
    // The kernel's largest number is 4194304.
    refused(
        &backtrail(
            &setup,
            &["record", "-o", text(&trace), "--duration", "1", "-p", "4194305"],
        ),
        "4194305",
    );
    assert!(!trace.exists(), "a recording of nothing was left behind");
}

#[test]
fn usage_that_makes_no_sense() {
    let setup = without_sampling();
    let trace = setup.path("trace");
    for arguments in [
        &["record", "-o", text(&trace), "-F", "0", "--", "true"][..],
        &["record", "-o", text(&trace), "-F", "many", "--", "true"],
        &["record", "-o", text(&trace), "--duration", "-1", "--", "true"],
        &["record", "-o", text(&trace), "--format", "3", "--", "true"],
        &["record", "-o", text(&trace)],
        &["no-such-verb"],
    ] {
        let finished = backtrail(&setup, arguments);
        assert_eq!(finished.code(), 2, "{arguments:?}: {}", finished.describe());
        assert!(
            !finished.stderr.is_empty() && !trace.exists(),
            "{arguments:?}: {}",
            finished.describe()
        );
    }
}

#[test]
fn traces_are_not_written_to_standard_output() {
    let setup = without_sampling();
    for arguments in [
        &["record", "-o", "-", "--", "true"][..],
        &["import", "perf.data", "-o", "-"],
        &["trace", "convert", "trace", "-o", "-"],
        &["trace", "record", "-o", "-", "true"],
        &["trace", "receive", "--listen", "tcp://localhost:0", "-o", "-"],
    ] {
        let finished = backtrail(&setup, arguments);
        assert_eq!(finished.code(), 2, "{arguments:?}: {}", finished.describe());
        assert!(finished.stderr.contains("standard output"), "{}", finished.describe());
    }
}

#[test]
fn what_to_record_can_be_said_in_several_ways() {
    let setup = without_sampling();
    for verb in ["record", "top"] {
        let finished = backtrail(&setup, &[verb]);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        let all = ["COMMAND", "-p PID", "--all", "--cgroup PATH"];
        let says_all = all.iter().all(|way| finished.stderr.contains(way));
        assert!(says_all, "{}", finished.describe());
    }
}

#[test]
fn reports_of_what_is_no_recording() {
    let setup = without_sampling();
    let absent = setup.path("absent");
    refused(&backtrail(&setup, &["report", text(&absent)]), "absent");
    let empty = setup.path("empty");
    fs::create_dir(&empty).expect("the test's directory can be written");
    refused(&backtrail(&setup, &["report", text(&empty)]), "empty");
    let garbage = setup.path("garbage");
    fs::create_dir(&garbage).expect("the test's directory can be written");
    fs::write(garbage.join("metadata"), "/* CTF 1.8 */\ntrace {").expect("the test's directory can be written");
    refused(&backtrail(&setup, &["report", text(&garbage)]), "metadata");
}

/// The kernel stops sampling when somebody runs a program that they may not read.
#[test]
fn a_program_that_the_user_may_not_read() {
    let setup = without_sampling();
    let (binary, program) = (setup.path("backtrail"), setup.path("program"));
    for (from, to, mode) in [
        (env!("CARGO_BIN_EXE_backtrail"), &binary, 0o755),
        ("/bin/sh", &program, 0o711),
    ] {
        fs::copy(from, to).expect("a binary can be copied");
        fs::set_permissions(to, fs::Permissions::from_mode(mode)).expect("the copy is ours");
    }
    fs::set_permissions(setup.folder.path(), fs::Permissions::from_mode(0o777)).expect("the test's directory is ours");
    let mut record = Command::new("setpriv");
    record
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary);
    record.args(["record", "-o", text(&setup.path("trace")), "--", text(&program)]);
    record.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
    setup.backtrail.surroundings(&mut record);
    let Some(finished) = available(command::run(&mut record, LIMIT)) else {
        return;
    };
    if finished.code() != 0 {
        return skip(format!("nobody may not record here: {}", finished.describe()));
    }
    assert!(
        finished.stderr.contains(", or you may not read it"),
        "{}",
        finished.describe()
    );
}

#[test]
fn without_permission_it_says_what_is_missing() {
    let setup = without_sampling();
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let level: i32 = paranoid.trim().parse().unwrap_or(-1);
    if level < 1 {
        return skip("perf_event_paranoid lets everybody sample everything here");
    }
    // Somebody who is nobody wants to look into a process of ours.
    let binary = setup.path("backtrail");
    fs::copy(env!("CARGO_BIN_EXE_backtrail"), &binary).expect("the binary can be copied");
    fs::set_permissions(setup.folder.path(), fs::Permissions::from_mode(0o777)).expect("the test's directory is ours");
    let mut attach = Command::new("setpriv");
    attach
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary);
    attach.args([
        "record",
        "-o",
        text(&setup.path("trace")),
        "--duration",
        "1",
        "-p",
        &std::process::id().to_string(),
    ]);
    setup.backtrail.surroundings(&mut attach);
    let Some(finished) = available(command::run(&mut attach, LIMIT)) else {
        return;
    };
    if finished.stderr.starts_with("setpriv:") {
        return skip(format!(
            "only root can become somebody else: {}",
            finished.stderr.trim()
        ));
    }
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert_eq!(errors(&finished).len(), 1, "{}", finished.describe());
    let names_it = ["perf_event_paranoid", "CAP_PERFMON", "CAP_SYS_PTRACE", "ptrace_scope"]
        .iter()
        .any(|name| finished.stderr.contains(name));
    assert!(
        names_it,
        "neither a setting nor a capability is named: {}",
        finished.describe()
    );
}

#[test]
fn a_full_disk() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::python(2)) else {
        return;
    };
    let Some(disk) = Mounted::tmpfs(&setup.path("disk"), "160k") else {
        return;
    };
    let trace = disk.path().join("trace");
    let running = setup.start(&trace, &["-F", "8000"], &workload);
    let recording = setup.recording(trace, running.finish());
    let code = recording.finished.code();
    assert!(code == 2 || code == 0, "{}", recording.finished.describe());
    recording
        .one_line_about("No space left on device")
        .complete(200, 0.5)
        .readable();
    assert_eq!(
        errors(&recording.finished).len(),
        1,
        "{}",
        recording.finished.describe()
    );
}

#[test]
fn a_limit_on_the_size_of_files() {
    let Some(setup) = setup() else { return };
    let trace = setup.path("trace");
    let mut limited = Command::new("sh");
    // 128 blocks of 512 bytes, on the first CPU that is allowed: a file has one CPU's samples. A
    // fixed number of steps makes three times as many bytes. The signal that would kill is ignored,
    // as many daemons have it.
    let script = r#"trap '' XFSZ; ulimit -f 128; out=$1
        cpu=$(taskset -pc $$ | sed 's/.* //; s/[-,].*//')
        exec "$0" record -o "$out" -F 8000 -- taskset -c "$cpu" \
            sh -c 'step=0; while [ $step -lt 1500000 ]; do step=$((step + 1)); done'"#;
    limited.args(["-c", script, env!("CARGO_BIN_EXE_backtrail"), text(&trace)]);
    setup.backtrail.surroundings(&mut limited);
    let recording = setup.recording(trace, command::run(&mut limited, LIMIT).expect("there is a shell"));
    let code = recording.finished.code();
    assert!(code == 2 || code == 0, "{}", recording.finished.describe());
    recording.one_line_about("File too large").complete(200, 0.5).readable();
}
