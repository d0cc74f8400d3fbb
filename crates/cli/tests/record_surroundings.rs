//! What is around the programs: the kernel under them, and file systems that only they see.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use backtrail_testkit::{available, command, program, skip, workload};
use common::{LIMIT, PROMISED, setup, text};

/// The recorder cannot open the file by its path, only through the process.
#[test]
fn a_program_in_a_file_system_of_its_own() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::hidden(&program::DEEP, &["50", "1", "one"])) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete(200, PROMISED).readable();
}

/// Another boot puts the kernel elsewhere, so a report must be able to tell.
#[test]
fn where_the_kernel_is() {
    let Some(setup) = setup() else { return };
    let kallsyms = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let known = |line: &str| line.ends_with(" T _text") && !line.starts_with("0000000000000000");
    if !kallsyms.lines().any(known) {
        return skip("/proc/kallsyms does not say where the kernel is");
    }
    let Some(workload) = available(workload::kernel(2)) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).readable();
    let [kernel, all] = [true, false].map(|only_kernel| {
        let stacks = recording.folded().into_iter();
        let in_kernel = |stack: &[String]| {
            stack
                .last()
                .is_some_and(|leaf| kallsyms.contains(&format!(" {leaf}\n")))
        };
        stacks
            .filter(|(stack, _)| !only_kernel || in_kernel(stack))
            .map(|(_, count)| count)
            .sum::<u64>()
    });
    if kernel == 0 {
        return skip("the kernel may not be sampled");
    }
    assert!(
        kernel * 2 > all,
        "{kernel} of {all} samples are in functions of the kernel"
    );
    let common = fs::read(recording.trace.join("all_cpus")).expect("the stream is there");
    let name = b"[kernel.kallsyms]\0";
    let told = common.windows(name.len()).filter(|part| part == name).count();
    assert_eq!(told, 1);
}

/// A user may lock a certain amount of memory. It is for all CPUs alike: the first one would take
/// nearly all, and samples on the others were lost.
#[test]
fn an_ordinary_user_has_a_ring_of_the_same_size_for_each_cpu() {
    let Some(setup) = setup() else { return };
    let binary = setup.path("backtrail");
    fs::copy(env!("CARGO_BIN_EXE_backtrail"), &binary).expect("the binary can be copied");
    fs::set_permissions(setup.folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let trace = setup.path("trace");
    let mut record = Command::new("setpriv");
    record
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args([
            "record",
            "-o",
            text(&trace),
            "--",
            "sh",
            "-c",
            "grep -F perf_event /proc/$PPID/maps",
        ]);
    setup.backtrail.surroundings(&mut record);
    let Some(finished) = available(command::run(&mut record, LIMIT)) else {
        return;
    };
    if finished.code() != 0 {
        return skip("other users cannot run the recorder here");
    }
    let size = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
        Some(end? - start?)
    };
    let sizes: Vec<Option<u64>> = finished.stdout.lines().map(size).collect();
    assert!(
        sizes.len() >= backtrail_process::proc::online_cpus().map_or(1, |cpus| cpus.len())
            && sizes.iter().all(|size| size.is_some() && *size == sizes[0]),
        "{}",
        finished.describe()
    );
}
