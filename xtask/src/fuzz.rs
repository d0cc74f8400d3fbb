//! `cargo xtask fuzz`: searches with every fuzz target. The tests replay the kept seeds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicUsize;

use backtrail_testkit::place;

use crate::cargo::{cargo_in, pass_on_both};

/// What `cargo fuzz` gives the compiler, without the sanitizers, for which stable Rust has no
/// flags: libFuzzer sees which branches an input takes, so that even a short search is guided.
const FUZZ_RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Lets all fuzz targets, or only the named ones, search for `seconds`.
pub(crate) fn run(seconds: u32, only: &[String]) -> Result<(), String> {
    let fuzz = place::workspace().join("fuzz");
    let mut targets: Vec<String> = fs::read_dir(fuzz.join("fuzz_targets"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    targets.sort();
    targets.retain(|target| only.is_empty() || only.contains(target));
    if targets.is_empty() {
        return Err(format!("no such fuzz target: {}", only.join(", ")));
    }
    let host = host()?;
    // With a target named, the flags are not for build scripts, which can't be linked with them.
    let mut build = cargo_in(
        &fuzz,
        &[
            "build",
            "--quiet",
            "--release",
            "--target",
            &host,
            "--target-dir",
            "target",
        ],
    );
    pass_on_both(build.env("RUSTFLAGS", FUZZ_RUSTFLAGS), &AtomicUsize::new(0))?;
    let binaries = fuzz.join("target").join(host).join("release");
    let broken: Vec<String> = targets
        .iter()
        .filter_map(|target| search(&binaries, &fuzz, target, seconds).err())
        .collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("\n"))
    }
}

fn search(binaries: &Path, fuzz: &Path, target: &str, seconds: u32) -> Result<(), String> {
    // New inputs go to the first directory, and are not needed; one that breaks the target is kept.
    let new_inputs = backtrail_testkit::scratch();
    let artifacts = fuzz.join("artifacts").join(target);
    fs::create_dir_all(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
    let mut search = Command::new(binaries.join(target));
    search.arg(format!("-max_total_time={seconds}")).args([
        "-seed=1",
        "-max_len=4096",
        "-timeout=20",
        "-verbosity=0",
        "-print_final_stats=0",
    ]);
    search
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(new_inputs.path());
    let kept = fuzz.join("seeds").join(target);
    if kept.is_dir() {
        search.arg(kept);
    }
    let output = search.output().map_err(|error| format!("{target}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{target}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    println!("fuzz target {target}: ok");
    Ok(())
}

/// The compiler's name for this machine.
fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let version = String::from_utf8_lossy(&output.stdout);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc does not report its host".to_owned())
}
