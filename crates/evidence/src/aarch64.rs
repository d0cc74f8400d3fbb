//! `cargo evidence aarch64`: programs that are recorded and judged in an emulated AArch64 machine
//! with Debian's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command;
use backtrail_testkit::guest::{Cpu, Guest, Results};
use backtrail_testkit::{Missing, place, scratch, workload};

use crate::judge::{Judge, Verdict};
use crate::sources;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const SUITE: &str = "bookworm";
const PACKAGES: [&str; 9] = [
    "python3",
    "xz-utils",
    "git",
    "g++",
    "nodejs",
    "util-linux",
    "openssl",
    "ocaml-nox",
    "openjdk-17-jre-headless",
];
/// Where programs and their inputs are in the guest, and below the judge's folder.
const MADE: &str = "made";
/// Test programs in C, by their files' names, with more flags for the compiler.
const C_PROGRAMS: [(&str, &str, &[&str]); 7] = [
    ("shares", "shares.c", &[]),
    ("shares-signed", "shares.c", SIGNED),
    ("deep", "deep.c", &[]),
    ("deep-signed", "deep.c", SIGNED),
    ("signals", "signals.c", &[]),
    ("signals-signed", "signals.c", SIGNED),
    ("signals-static", "signals.c", &["-static"]),
];
const SIGNED: &[&str] = &["-mbranch-protection=standard"];
/// Ways to walk, as the recorder has them.
const COPY: &str = "copy";
const KERNEL: &str = "kernel";
type Recorded = (&'static str, &'static [&'static str], &'static str);
/// What is recorded, by its name on the page, the processes that count, and the command. `$S` is a
/// number of seconds.
const RECORDED: [Recorded; 17] = [
    ("python3", &["python3"], "python3 /made/bytecode.py $S"),
    (
        "xz",
        &["xz"],
        "sh -c 'for i in 1 2; do /usr/bin/xz -6 -c -T1 /made/prose.txt >/dev/null; done'",
    ),
    ("git", &["git"], "git -C /made/repository repack -adfq --window=50"),
    (
        "g++",
        &["cc1plus", "as"],
        "g++ -std=c++17 -O1 -c /made/templates.cpp -o templates.o",
    ),
    ("Rust threads", &["threads"], "/made/threads $S"),
    ("known shares", &["shares"], "/made/shares $S"),
    ("known shares, signed", &["shares-signed"], "/made/shares-signed $S"),
    ("recursion, 5,000 deep", &["deep"], "/made/deep 5000 $S one"),
    (
        "recursion through three functions, signed",
        &["deep-signed"],
        "/made/deep-signed 5000 $S three",
    ),
    ("signals", &["signals"], "/made/signals $S"),
    ("signals, signed", &["signals-signed"], "/made/signals-signed $S"),
    ("signals, static", &["signals-static"], "/made/signals-static $S"),
    ("Go", &["go-work"], "/made/go-work $S"),
    ("node", &["node"], "node /made/work.js $S"),
    (
        "OpenSSL",
        &["openssl"],
        "openssl speed -seconds 1 -bytes 1024 sha256 aes-128-cbc rsa2048",
    ),
    (
        "OCaml",
        &["ocamlopt", "work"],
        "sh -c \"cp /made/work.ml . && ocamlopt -o work unix.cmxa work.ml && ./work $S\"",
    ),
    (
        "Java",
        &["java"],
        "/usr/lib/jvm/java-17-openjdk-arm64/bin/java -cp /made Work $S",
    ),
];
/// Of these, what is also recorded with stacks that are walked in the kernel.
const IN_KERNEL: [&str; 11] = [
    "python3",
    "xz",
    "git",
    "g++",
    "Rust threads",
    "known shares, signed",
    "recursion, 5,000 deep",
    "recursion through three functions, signed",
    "signals",
    "signals, signed",
    "Go",
];
/// Copies the vDSO, which is in no file.
const COPY_VDSO: &str = r#"python3 -c '
for line in open("/proc/self/maps"):
    if line.rstrip().endswith("[vdso]"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        memory = open("/proc/self/mem", "rb")
        memory.seek(start)
        open("[vdso]", "wb").write(memory.read(end - start))
'"#;
/// qemu translates instructions: a guest takes minutes.
const LIMIT: Duration = Duration::from_secs(3600);
/// The heading up to which the page is made.
const KEPT: &str = "\n## What is precise\n";

const HEAD: &str = "\
# AArch64

Made by `cargo evidence aarch64`, up to the next heading: Backtrail records programs in an emulated
machine, Debian 12's cloud kernel (pages of 4 KiB, 48-bit addresses) in `qemu-system-aarch64 -cpu
max,pauth-impdef=on`, each once. Every stack is then judged: it is wrong if one of its return addresses
does not follow a call that can lead to the frame above. Processes with fewer than 20 stacks are left
out. *Signed* programs are compiled with `-mbranch-protection=standard`. Times in an emulated machine
mean nothing, and the recorder loses samples there. *In the kernel* is how many stacks were walked
there, with `--walk kernel`; others are copied until the program's tables are in the kernel.
";

const COLUMNS: &str = "\
| program | process | stacks | lost | in the kernel | complete | wrong | incomplete because |
|---|---|---|---|---|---|---|---|";

/// Options of `cargo evidence aarch64`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Use this recorder for AArch64 [default: built, as it is shipped].
    #[arg(long)]
    backtrail: Option<PathBuf>,
    /// Record each program for about this many seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Print this many examples of wrong and of cut stacks for each program.
    #[arg(long, default_value_t = 0)]
    examples: usize,
    /// Record only these programs, by their names on the page, and do not write the page.
    program: Vec<String>,
}

/// Records the programs. Returns whether no stack is wrong.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let recorder = match &options.backtrail {
        Some(recorder) => recorder.clone(),
        None => place::release_for(TARGET, "aarch64-linux-gnu-gcc", "backtrail", "backtrail")?,
    };
    let chosen = |name: &str| options.program.is_empty() || options.program.iter().any(|program| program == name);
    let folder = scratch();
    let made = folder.path().join(MADE);
    make(&made).map_err(text)?;
    let mut guest = Guest::new(Cpu::Aarch64, SUITE, "guest-aarch64-programs", &PACKAGES).map_err(text)?;
    guest.add(&recorder, "/usr/local/bin/backtrail");
    for file in fs::read_dir(&made).map_err(|error| error.to_string())?.flatten() {
        guest.add(&file.path(), &format!("/{MADE}/{}", file.file_name().to_string_lossy()));
    }
    guest.job("vdso", COPY_VDSO);
    guest.job("about", "uname -r");
    guest.job(
        "repository",
        "cd /made && git init -q repository && git -C repository fast-import --quiet <import",
    );
    let recorded = RECORDED.iter().enumerate().filter(|(_, (name, ..))| chosen(name));
    let recorded: Vec<(usize, &Recorded)> = recorded.collect();
    let of_kernel = recorded.iter().filter(|(_, (name, ..))| IN_KERNEL.contains(name));
    let jobs = recorded
        .iter()
        .map(|job| (job, COPY))
        .chain(of_kernel.map(|job| (job, KERNEL)));
    let jobs: Vec<(String, &Recorded, &str)> = jobs
        .map(|(&(number, recorded), walk)| (format!("{walk}-{number}"), recorded, walk))
        .collect();
    for (job, (_, _, command), walk) in &jobs {
        let record = format!("backtrail record --walk {walk} -F 199 -o trace -- {command}");
        guest.job(job, &format!("S={}\n{record}", options.seconds));
    }
    let root = guest.root().to_owned();
    let results = guest.run(LIMIT).map_err(text)?;
    let vdso = results.folder("vdso").ok_or("the guest ran nothing")?;
    let files = [folder.path().to_owned(), root, vdso];
    println!("{COLUMNS}");
    let (mut rows, mut good, mut failed) = (Vec::new(), true, 0);
    for (job, recorded, walk) in &jobs {
        match judged(&results, (job, walk), recorded, &files, options.examples) {
            Ok((of_program, is_right)) => {
                of_program.iter().for_each(|row| println!("{row}"));
                rows.extend(of_program);
                good &= is_right;
            }
            Err(error) => {
                eprintln!("evidence: {error}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        return Err(format!("{failed} recordings failed"));
    }
    if options.program.is_empty() {
        write(&results.text("about", "stdout"), &rows)?;
    }
    Ok(good)
}

fn text(missing: Missing) -> String {
    missing.to_string()
}

/// Compiles the programs and writes their inputs.
fn make(folder: &Path) -> Result<(), Missing> {
    fs::create_dir(folder).expect("a scratch folder can be written");
    let sources = place::programs();
    let own = place::workspace().join("crates/evidence/programs");
    for (name, source, flags) in C_PROGRAMS {
        let mut compile = Command::new("aarch64-linux-gnu-gcc");
        compile.args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o"]);
        must(compile.arg(folder.join(name)).arg(sources.join(source)).args(flags))?;
    }
    let mut compile = Command::new("rustc");
    compile.args([
        "--target",
        TARGET,
        "-Clinker=aarch64-linux-gnu-gcc",
        "--edition",
        "2024",
        "-O",
        "-o",
    ]);
    must(compile.arg(folder.join("threads")).arg(sources.join("threads.rs")))?;
    let mut compile = Command::new("go");
    compile
        .env("GOARCH", "arm64")
        .env("CGO_ENABLED", "0")
        .args(["build", "-o"]);
    must(compile.arg(folder.join("go-work")).arg(own.join("work.go")))?;
    let mut compile = Command::new("javac");
    compile.args(["--release", "17", "-d"]);
    must(compile.arg(folder).arg(own.join("Work.java")))?;
    // The inputs of the workloads that are recorded on x86-64.
    let inputs = scratch();
    workload::xz(1, inputs.path())?;
    workload::git(1, inputs.path())?;
    workload::compiler(1, inputs.path())?;
    let inputs = ["prose.txt", "import", "templates.cpp"].map(|name| inputs.path().join(name));
    let scripts = [sources.join("bytecode.py"), own.join("work.js"), own.join("work.ml")];
    for file in inputs.into_iter().chain(scripts) {
        let name = file.file_name().expect("it is a file");
        fs::copy(&file, folder.join(name)).expect("a scratch folder can be written");
    }
    Ok(())
}

fn must(command: &mut Command) -> Result<(), Missing> {
    let finished = command::run(command, Duration::from_secs(300))?;
    if finished.status.success() {
        return Ok(());
    }
    Err(Missing(format!("{command:?}: {}", finished.describe())))
}

/// The rows of a recording, and whether all of its stacks are right.
fn judged(
    results: &Results,
    (job, walk): (&str, &str),
    (name, processes, _): &Recorded,
    files: &[PathBuf],
    examples: usize,
) -> Result<(Vec<String>, bool), String> {
    if results.status(job) != Some(0) {
        return Err(format!("{name}: {}", results.describe(job)));
    }
    let trace = results.folder(job).unwrap_or_default().join("trace");
    let judged = sources::recording(&trace, &mut Judge::of_files_in(files), processes)?;
    let rows = judged.by_process.iter().filter(|(_, verdict)| verdict.stacks >= 20);
    let mut is_right = true;
    let rows = rows.map(|(process, verdict)| {
        is_right &= verdict.wrong == 0 && verdict.false_ends == 0;
        if examples > 0 {
            print!(
                "{process}: {}{}",
                verdict.describe(examples),
                results.text(job, "stderr")
            );
        }
        row(name, process, walk, judged.lost, verdict)
    });
    let rows: Vec<String> = rows.collect();
    if rows.is_empty() {
        return Err(format!("{name}: too few stacks\n{}", results.describe(job)));
    }
    Ok((rows, is_right))
}

fn row(name: &str, process: &str, walk: &str, lost: u64, verdict: &Verdict) -> String {
    let stops = verdict.stops.iter().map(|(stop, count)| format!("{stop} {count}"));
    let in_kernel = if walk == KERNEL {
        verdict.in_kernel.to_string()
    } else {
        String::new()
    };
    format!(
        "| {name} | {process} | {} | {lost} | {in_kernel} | {:.2} % | {} | {} |",
        verdict.stacks,
        verdict.completeness(),
        verdict.wrong + verdict.false_ends,
        stops.collect::<Vec<String>>().join(", ")
    )
}

/// Writes the page's beginning, and keeps the rest of it.
fn write(about: &str, rows: &[String]) -> Result<(), String> {
    let page = place::workspace().join("docs/aarch64.md");
    let old = fs::read_to_string(&page).map_err(|error| error.to_string())?;
    let kept = old.find(KEPT).map_or("", |at| &old[at..]);
    let kernel = about.lines().next().unwrap_or_default();
    let new = format!(
        "{HEAD}\n{}\nIn the machine: Linux {kernel}.\n\n{COLUMNS}\n{}\n{kept}",
        crate::machine(),
        rows.join("\n")
    );
    fs::write(page, new).map_err(|error| error.to_string())
}
