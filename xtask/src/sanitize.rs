//! `cargo xtask sanitize`: runs the unwinder under Miri, which detects undefined behaviour, and
//! under ThreadSanitizer, which detects data races. Both need nightly Rust, and its source.

use std::process::Command;

use backtrail_testkit::{place, skip};

/// What Miri can run: all that reads memory through a trait. Walking in place makes system calls of
/// its own.
const ENGINE: [&str; 13] = [
    "miri",
    "test",
    "--package=backtrail-unwind",
    "--lib",
    "--test=all",
    "--target-dir",
    "target/miri",
    "--",
    "--skip=promises::",
    "--skip=hostile::",
    "--skip=fuzz_walk::",
    "--skip=local::",
    "--quiet",
];

/// Threads that walk in place, begin and end, while modules are published; with a standard library
/// that is watched, too.
const THREADS: [&str; 8] = [
    "test",
    "-Zbuild-std",
    "--package=backtrail-local",
    "--test=capture",
    "--target-dir",
    "target/tsan",
    "--target",
    TARGET,
];
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// The tracer's ring in plain memory, with a writer and a collector at the same time; without the
/// inline assembly that neither sees through.
const RING: [&str; 4] = [
    "--package=backtrail-tracer",
    "--lib",
    "--features=portable",
    "--target-dir",
];
const RING_TESTS: [&str; 4] = ["--", "model::ring_in_plain_memory", "model::an_interruption", "--quiet"];

/// Runs all; a machine without nightly Rust skips them aloud.
pub(crate) fn run() -> Result<(), String> {
    let mut version = nightly(&["miri", "--version"]);
    if !version.output().is_ok_and(|output| output.status.success()) {
        skip("nightly Rust with its components miri and rust-src is not installed");
        return Ok(());
    }
    let mut engine = nightly(&ENGINE);
    // proptest asks where it is.
    engine.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    let mut threads = nightly(&THREADS);
    threads.args(["--", "threads_walk_while_modules_are_published"]);
    threads.env("RUSTFLAGS", "-Zsanitizer=thread");
    let mut ring = nightly(&["miri", "test"]);
    ring.args(RING).arg("target/miri").args(RING_TESTS);
    ring.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance");
    let mut ring_threads = nightly(&["test", "-Zbuild-std", "--target", TARGET]);
    ring_threads.args(RING).arg("target/tsan").args(RING_TESTS);
    ring_threads.env("RUSTFLAGS", "-Zsanitizer=thread");
    let all = [
        ("Miri", &mut engine),
        ("ThreadSanitizer", &mut threads),
        ("Miri (ring)", &mut ring),
        ("ThreadSanitizer (ring)", &mut ring_threads),
    ];
    let failed: Vec<&str> = all
        .into_iter()
        .filter_map(|(name, command)| {
            let is_done = command.status().is_ok_and(|status| status.success());
            (!is_done).then_some(name)
        })
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed under {}", failed.join(" and "))),
    }
}

fn nightly(arguments: &[&str]) -> Command {
    // The cargo that runs this is of another release: its name, by which rustup chooses.
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").args(arguments).current_dir(place::workspace());
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}
