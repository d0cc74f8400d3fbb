//! No recorded stack is one that never was: judged by the code that its return addresses stand in,
//! which the judge reads by its own means.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_evidence::{alternating, corruption};
use backtrail_testkit::{available, command, perf, scratch, skip};

const BACKTRAIL: &str = env!("CARGO_BIN_EXE_backtrail");

/// Programs that do the same on two sides in turn: a stack with functions of both never was.
#[test]
fn alternating_stacks_are_not_mixed() {
    let _alone = backtrail_testkit::alone("recording");
    if available(perf::sampling_permitted()).is_none() {
        return;
    }
    for shape in alternating::SHAPES {
        for phase in [200, 2_000, 20_000] {
            let counts =
                alternating::record(Path::new(BACKTRAIL), shape, phase, 997, 0.25).expect("it can be recorded");
            let example = counts.example.unwrap_or_default();
            assert_eq!(
                (counts.impossible, counts.wrong),
                (0, 0),
                "{shape}, phases of {phase} µs:\n{example}"
            );
            assert!(counts.samples > 0, "{shape}, phases of {phase} µs: no samples");
        }
    }
}

/// Recursions of 3,000 frames, some 450 KiB, and frames around a buffer of 640 KiB are whole if a
/// program may copy them at the moment of the sample.
#[test]
fn deep_stacks_are_whole_for_root() {
    let _alone = backtrail_testkit::alone("recording");
    if !may_copy_more() {
        return;
    }
    for shape in ["deep", "seam", "large"] {
        let counts = alternating::record(Path::new(BACKTRAIL), shape, 2_000, 499, 1.0).expect("it can be recorded");
        println!("{shape}: {counts:?}");
        assert_eq!((counts.impossible, counts.wrong), (0, 0), "{shape}");
        // The first ones are cut: until they are seen, nobody knows how deep the stack is.
        assert!(counts.complete > counts.samples / 2, "{shape}: {counts:?}");
        assert!(counts.read_apart * 2 < counts.complete, "{shape}: {counts:?}");
    }
}

/// A page that is not present does not cut even the first stacks.
#[test]
fn first_stacks_are_whole_for_root() {
    let _alone = backtrail_testkit::alone("recording");
    if !may_copy_more() {
        return;
    }
    let (mut samples, mut cut) = (0, 0);
    for round in 1..=16 {
        let counts = alternating::record(Path::new(BACKTRAIL), "six", 2_000, 997, 0.4).expect("it can be recorded");
        assert_eq!((counts.impossible, counts.wrong), (0, 0));
        (samples, cut) = (samples + counts.samples, cut + counts.cut);
        // On a busy machine a recording has few samples.
        if round >= 4 && cut * 20 <= samples {
            return;
        }
    }
    panic!("{cut} of {samples} are cut");
}

fn may_copy_more() -> bool {
    let is_possible = available(perf::sampling_permitted()).is_some();
    if is_possible && !may_load_programs() {
        skip("no BPF programs may be loaded here");
        return false;
    }
    is_possible
}

pub(crate) fn may_load_programs() -> bool {
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let is_permitted = rights.is_some_and(|rights| rights & PERFMON_AND_BPF == PERFMON_AND_BPF);
    let outermost = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]");
    let knows_types = Path::new("/sys/kernel/btf/vmlinux").exists();
    is_permitted && outermost && knows_types && cfg!(target_arch = "x86_64")
}

/// The judge itself: real stacks of a compiler, damaged, are found to be wrong, and whole ones are
/// not.
#[test]
fn the_judge_finds_damaged_stacks() {
    let _alone = backtrail_testkit::alone("recording");
    if available(perf::sampling_permitted()).is_none() {
        return;
    }
    let folder = scratch();
    let (source, trace) = (folder.path().join("large.c"), folder.path().join("trace"));
    std::fs::write(&source, large_source()).expect("a scratch folder can be written");
    let Some(compiler) = available(compiler_proper()) else {
        return;
    };
    let mut record = Command::new(BACKTRAIL);
    record.args(["record", "-q", "-F", "4999", "-o"]).arg(&trace).arg("--");
    record
        .arg(compiler)
        .args(["-quiet", "-O2", "-o", "/dev/null"])
        .arg(&source);
    let finished = command::run(&mut record, Duration::from_secs(120)).expect("the binary is there");
    assert!(finished.status.success(), "{}", finished.describe());
    let outcome = corruption::of(&trace, 300).expect("it is a recording");
    println!("{outcome}");
    if outcome.by_damage.is_empty() {
        skip("too few distinct stacks to damage");
        return;
    }
    assert_eq!(
        outcome.wrong_before,
        Vec::<String>::new(),
        "stacks as they were recorded"
    );
    for (damage, found) in &outcome.by_damage {
        // What remains is calls whose target only the program knows: they are the fewest in a C
        // compiler.
        assert!(found.found * 2 > found.all, "{damage:?}: {outcome}");
    }
}

/// The program that `cc` has the work done by, so that nothing is recorded but that.
fn compiler_proper() -> Result<String, backtrail_testkit::Missing> {
    let mut ask = Command::new("gcc");
    let finished = command::run(ask.arg("-print-prog-name=cc1"), Duration::from_secs(20))?;
    let path = finished.stdout.trim().to_owned();
    if Path::new(&path).is_absolute() {
        Ok(path)
    } else {
        Err(backtrail_testkit::Missing("gcc has no cc1".to_owned()))
    }
}

/// Enough for a compiler to do: functions that differ.
fn large_source() -> String {
    let function = |i: u32| {
        format!(
            "static int f{i}(int *p, int n) {{ int s = {i}; for (int k = 0; k < n; k++) {{ \
             switch ((p[k] + {i}) % 11) {{ case 0: s += p[k]; break; case 3: s ^= k * {i}; break; \
             case 5: if (s > {i}) s -= p[n - k - 1]; break; case 7: p[k] = s; break; default: s += k; }} }} return s; }}\n\
             int g{i}(int *p, int n) {{ return f{i}(p, n) + f{i}(p + n / 2, n / 2); }}\n"
        )
    };
    (0..60).map(function).collect()
}
