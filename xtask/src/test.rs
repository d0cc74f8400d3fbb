//! `cargo xtask test`: everything that must hold before a change goes in.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use backtrail_testkit::{SKIPPED, place};

/// A tool that tests compare with or work on, and Debian's package of it.
const TOOLS: [(&str, &str); 13] = [
    ("cc", "gcc"),
    ("g++", "g++"),
    ("git", "git"),
    ("python3", "python3"),
    ("xz", "xz-utils"),
    ("babeltrace2", "babeltrace2"),
    ("perf", "linux-perf"),
    ("readelf", "binutils"),
    ("objdump", "binutils"),
    ("gdb", "gdb"),
    ("mount", "mount"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
];

/// Inputs per fuzz target, besides those that are kept: enough to see that the target works, not a search.
const FUZZ_RUNS: &str = "-runs=2000";

/// Runs all of it; every step, even where one before it failed.
pub(crate) fn run() -> Result<(), String> {
    let skipped = AtomicUsize::new(0);
    install(&skipped);
    let mut failed = Vec::new();
    let mut step = |name: &'static str, done: Result<(), String>| {
        if let Err(error) = done {
            eprintln!("xtask: {name}: {error}");
            failed.push(name);
        }
    };
    step("formatting", cargo(&["fmt", "--all", "--check"], &skipped));
    step(
        "lints",
        cargo(
            &[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
            &skipped,
        ),
    );
    step("fuzz targets", replay_fuzz_targets(&skipped));
    // Last, so that what one looks for stands at the end. What passing tests print is shown because some say there what they skipped.
    step(
        "tests",
        cargo(
            &["test", "--workspace", "--no-fail-fast", "--", "--show-output"],
            &skipped,
        ),
    );
    match skipped.into_inner() {
        0 => println!("nothing was skipped"),
        count => println!("{count} times {SKIPPED} see the lines above"),
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// Installs what is missing, where that is possible, and says what stays missing.
fn install(skipped: &AtomicUsize) {
    let missing = |(tool, _): &&(&str, &str)| !on_path(tool);
    let mut packages: Vec<&str> = TOOLS.iter().filter(missing).map(|(_, package)| *package).collect();
    packages.dedup();
    if packages.is_empty() {
        return;
    }
    println!("installing {}", packages.join(" "));
    for arguments in [
        &["update", "-qq"][..],
        &[&["install", "-y", "-qq", "--no-install-recommends"], &packages[..]].concat(),
    ] {
        let mut apt = Command::new("apt-get");
        apt.args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null());
        // Whatever goes wrong (no root, no network, no Debian) shows in what is still missing.
        if !apt.status().is_ok_and(|status| status.success()) {
            break;
        }
    }
    for (tool, package) in TOOLS.iter().filter(missing) {
        println!("{SKIPPED} {tool} is missing and can't be installed (as root: apt-get install {package})");
        skipped.fetch_add(1, Ordering::Relaxed);
    }
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Root's tools are not on everybody's path but are found by those who need them.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).is_file())
}

/// Runs each fuzz target as a plain program: on the inputs that are kept in `fuzz/seeds/TARGET`, and on some of its own.
fn replay_fuzz_targets(skipped: &AtomicUsize) -> Result<(), String> {
    let fuzz = place::workspace().join("fuzz");
    let mut targets: Vec<String> = fs::read_dir(fuzz.join("fuzz_targets"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    targets.sort();
    if targets.is_empty() {
        return Ok(());
    }
    let manifest = fuzz.join("Cargo.toml");
    let manifest = manifest.to_str().ok_or("the workspace's path is no text")?;
    cargo(&["build", "--quiet", "--release", "--manifest-path", manifest], skipped)?;
    for target in targets {
        let mut replay = Command::new(fuzz.join("target/release").join(&target));
        replay.args([
            FUZZ_RUNS,
            "-seed=1",
            "-max_len=4096",
            "-timeout=20",
            "-verbosity=0",
            "-print_final_stats=0",
        ]);
        // New inputs must go nowhere: the first directory would be written to.
        let nowhere = backtrail_testkit::scratch();
        replay
            .arg(nowhere.path())
            .arg(format!("-artifact_prefix={}/", nowhere.path().display()));
        let kept = fuzz.join("seeds").join(&target);
        if kept.is_dir() {
            replay.arg(kept);
        }
        let output = replay.output().map_err(|error| format!("{target}: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "{target}: {}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        println!("fuzz target {target}: ok");
    }
    Ok(())
}

/// Runs cargo in the workspace, shows what it says, and counts what was skipped.
fn cargo(arguments: &[&str], skipped: &AtomicUsize) -> Result<(), String> {
    println!("cargo {}", arguments.join(" "));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo
        .args(arguments)
        .current_dir(place::workspace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if Path::new("fuzz").exists() {
        cargo.env_remove("CARGO_BUILD_TARGET");
    }
    let mut child = cargo
        .spawn()
        .map_err(|error| format!("cargo can't be started: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| pass_on(stderr, io::stderr(), skipped));
        pass_on(stdout, io::stdout(), skipped);
    });
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {}: {status}", arguments[0]))
    }
}

fn pass_on(from: Option<impl Read>, mut to: impl Write, skipped: &AtomicUsize) {
    let Some(from) = from else { return };
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if line.windows(SKIPPED.len()).any(|part| part == SKIPPED.as_bytes()) {
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        // Where nobody listens any more, the tests still run to their end.
        let _ = to.write_all(&[&line[..], b"\n"].concat()).and_then(|()| to.flush());
    }
}
