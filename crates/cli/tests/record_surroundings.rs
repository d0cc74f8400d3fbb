//! What is around the programs: the kernel under them, and file systems that only they see.

use crate::common;

use std::fs;

use backtrail_testkit::{available, program, skip, workload};
use common::{PROMISED, setup};

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
