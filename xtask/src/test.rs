//! `cargo xtask test`: everything that must hold before a change goes in.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use backtrail_testkit::{SKIPPED, place};

/// A tool (or a file or folder, by its whole path) that tests compare with or work on, and Debian's package of it.
const TOOLS: [(&str, &str); 45] = [
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
    ("gdb-multiarch", "gdb-multiarch"),
    ("pkg-config", "pkg-config"),
    ("mount", "mount"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("clang", "clang"),
    ("llvm-dwp", "llvm"),
    ("ld.lld", "lld"),
    ("mold", "mold"),
    ("eu-elflint", "elfutils"),
    ("eu-stack", "elfutils"),
    ("perl", "perl"),
    ("sqlite3", "sqlite3"),
    ("redis-server", "redis-server"),
    ("nginx", "nginx"),
    ("node", "nodejs"),
    ("/usr/lib/postgresql", "postgresql"),
    ("psql", "postgresql-client"),
    ("javac", "default-jdk-headless"),
    ("go", "golang-go"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("patchelf", "patchelf"),
    ("dwz", "dwz"),
    ("bpftool", "bpftool"),
    ("pahole", "dwarves"),
    ("abidiff", "abigail-tools"),
    ("poke", "poke"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/include/stdio.h", "libc6-dev-arm64-cross"),
    ("s390x-linux-gnu-gcc", "gcc-s390x-linux-gnu"),
    ("/usr/s390x-linux-gnu/include/stdio.h", "libc6-dev-s390x-cross"),
    ("powerpc-linux-gnu-gcc", "gcc-powerpc-linux-gnu"),
    ("/usr/powerpc-linux-gnu/include/stdio.h", "libc6-dev-powerpc-cross"),
    ("qemu-aarch64-static", "qemu-user-static"),
];

/// Inputs per fuzz target, besides those that are kept: enough to see that the target works and to find what is shallow.
const FUZZ_LIMITS: [&str; 2] = ["-runs=20000", "-max_total_time=5"];

/// What `cargo fuzz` gives the compiler, without the sanitizers, for which stable Rust has no flags: libFuzzer sees which branches an
/// input takes, so that even a short search is guided.
const FUZZ_RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs all of it; every step, even where one before it failed.
pub(crate) fn run() -> Result<(), String> {
    let skipped = AtomicUsize::new(0);
    for package in install(&TOOLS) {
        println!("{SKIPPED} {package} is missing and can't be installed (as root: apt-get install {package})");
        skipped.fetch_add(1, Ordering::Relaxed);
    }
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

/// Installs what is missing of `tools`, where that is possible; the packages that stay missing.
pub(crate) fn install(tools: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let missing = || {
        let missing = tools.iter().filter(|(tool, _)| !on_path(tool));
        let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
        packages.dedup();
        packages
    };
    let packages = missing();
    if packages.is_empty() {
        return packages;
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
    missing()
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Root's tools are not on everybody's path but are found by those who need them.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).exists())
}

/// Runs each fuzz target: on the inputs that are kept in `fuzz/seeds/TARGET`, and on some of its own.
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
    pass_on_both(build.env("RUSTFLAGS", FUZZ_RUSTFLAGS), skipped)?;
    let binaries = fuzz.join("target").join(host).join("release");
    let broken: Vec<String> = targets
        .iter()
        .filter_map(|target| replay(&binaries, &fuzz, target).err())
        .collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("\n"))
    }
}

fn replay(binaries: &Path, fuzz: &Path, target: &str) -> Result<(), String> {
    // New inputs go to the first directory, and nobody wants them; one that breaks the target is kept.
    let new_inputs = backtrail_testkit::scratch();
    let artifacts = fuzz.join("artifacts").join(target);
    fs::create_dir_all(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
    let mut replay = Command::new(binaries.join(target));
    replay.args(FUZZ_LIMITS).args([
        "-seed=1",
        "-max_len=4096",
        "-timeout=20",
        "-verbosity=0",
        "-print_final_stats=0",
    ]);
    replay
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(new_inputs.path());
    let kept = fuzz.join("seeds").join(target);
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
    Ok(())
}

/// The compiler's name for this machine.
fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc does not tell its host".to_owned())
}

/// Runs cargo in the workspace.
fn cargo(arguments: &[&str], skipped: &AtomicUsize) -> Result<(), String> {
    pass_on_both(&mut cargo_in(&place::workspace(), arguments), skipped)
}

fn cargo_in(folder: &Path, arguments: &[&str]) -> Command {
    println!("cargo {}", arguments.join(" "));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(folder);
    cargo
}

/// Runs a command, shows what it says, and counts what was skipped.
fn pass_on_both(command: &mut Command, skipped: &AtomicUsize) -> Result<(), String> {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("it can't be started: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| pass_on(stderr, io::stderr(), skipped));
        pass_on(stdout, io::stdout(), skipped);
    });
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(status.to_string())
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
