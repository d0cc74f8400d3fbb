//! Measures the cost of a backtrace of the own stack: Backtrail's beside libunwind's two,
//! framehop's, glibc's, libgcc's and the chain of frame pointers, in one process and run.
//!
//! `cargo run --release --bin backtrace [ROUNDS]`; writes `docs/backtrace-speed.md` if there are at
//! least nine rounds. Needs a C compiler, libunwind (`libunwind-dev`), and an otherwise idle
//! machine.
//!
//! `cargo run --release --bin backtrace aarch64` counts the instructions of the same walks on
//! AArch64, and writes that part of the page. Needs `aarch64-linux-gnu-gcc`, Rust's target
//! `aarch64-unknown-linux-gnu`, and `qemu-aarch64` with plugins (Debian: `qemu-user`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use backtrail_testkit::{TempDir, command, peers, place, scratch};

const LIMIT: Duration = Duration::from_secs(1800);
/// The floor, ours, and the others, by their names in the program.
const WALKERS: [(&str, &str); 7] = [
    ("frame-pointers", "frame pointers"),
    ("backtrail", "backtrail"),
    ("unw_backtrace", "`unw_backtrace`"),
    ("framehop", "framehop"),
    ("glibc", "glibc"),
    ("libgcc", "libgcc"),
    ("unw_step", "`unw_step`"),
];
const MODULES: [usize; 2] = [10, 1000];
const THREADS: [usize; 2] = [1, 64];
const FUNCTIONS: [usize; 3] = [100, 10_000, 100_000];

/// The part of the page about AArch64 begins with this line.
const EMULATED: &str = "\n## AArch64, in instructions\n";
/// The system call that the plugin answers.
const ASKS: u32 = 0x7fff_0001;
const AARCH64: &str = "aarch64-unknown-linux-gnu";
const AARCH64_LINKER: &str = "aarch64-linux-gnu-gcc";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let path = place::workspace().join("docs/backtrace-speed.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let (timed, emulated) = before.split_once(EMULATED).unwrap_or((&before, ""));
    let measured = if argument.as_deref() == Some("aarch64") {
        count().map(|report| (timed.to_owned(), report, true))
    } else {
        let Ok(rounds) = argument.map_or(Ok(15), |text| text.parse()) else {
            eprintln!("usage: backtrace [ROUNDS | aarch64]");
            return ExitCode::FAILURE;
        };
        measure(rounds).map(|report| (report, emulated.to_owned(), rounds >= 9))
    };
    match measured {
        Ok((timed, emulated, is_complete)) => {
            let report = format!("{timed}{EMULATED}{emulated}");
            print!("{report}");
            if is_complete {
                std::fs::write(path, report).expect("the workspace can be written");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn done(mut command: Command) -> Result<String, String> {
    let finished = command::run(&mut command, LIMIT).map_err(|missing| missing.to_string())?;
    match finished.status.success() {
        true => Ok(finished.stdout),
        false => Err(format!("{command:?}: {}", finished.describe())),
    }
}

/// framehop as a C library, of this workspace; for AArch64, or for this machine.
fn framehop(is_for_aarch64: bool) -> Result<PathBuf, String> {
    let target = place::workspace().join("bench/target");
    let mut build = Command::new("cargo");
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "backtrail-bench-framehop",
        "--target-dir",
    ]);
    build.arg(&target).current_dir(place::workspace().join("bench"));
    if is_for_aarch64 {
        build.args(["--target", AARCH64]);
        build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", AARCH64_LINKER);
    }
    done(build)?;
    let target = if is_for_aarch64 { target.join(AARCH64) } else { target };
    Ok(target.join("release/libbench_framehop.so"))
}

/// Counts the instructions of walks on AArch64, with a plugin of the emulator.
fn count() -> Result<String, String> {
    let library = place::release_for(AARCH64, AARCH64_LINKER, "backtrail-capi", "libbacktrail.so")?;
    let root = peers::aarch64_libunwind().map_err(|missing| missing.to_string())?;
    let folder = scratch();
    let io = |error: std::io::Error| error.to_string();
    std::fs::copy(library, folder.path().join("libbacktrail.so.0")).map_err(io)?;
    std::fs::copy(framehop(true)?, folder.path().join("libbench_framehop.so")).map_err(io)?;
    let program = folder.path().join("backtrace");
    let libraries = root.join("usr/lib/aarch64-linux-gnu");
    let mut compile = Bench::compile(AARCH64_LINKER, folder.path(), &program);
    compile.arg(format!("-DCOUNTED={ASKS}"));
    compile.arg("-isystem").arg(root.join("usr/include/aarch64-linux-gnu"));
    compile.arg("-isystem").arg(root.join("usr/include"));
    compile.arg(libraries.join("libunwind.so.8")).arg("-ldl");
    compile.arg(format!("-Wl,-rpath-link,{}", libraries.display()));
    compile.arg(format!(
        "-Wl,-rpath-link,{}",
        root.join("lib/aarch64-linux-gnu").display()
    ));
    done(compile)?;
    let plugin = folder.path().join("count.so");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&plugin);
    compile.arg(place::workspace().join("bench/programs/count_instructions.c"));
    compile.arg("-I").arg(place::programs());
    done(compile)?;
    let mut run = Command::new("qemu-aarch64");
    run.arg("-L").arg(&root).arg("-plugin");
    run.arg(format!("file={},number={ASKS}", plugin.display()));
    // Counts hardly differ between rounds.
    run.arg(&program).args(["walk", "3"]);
    let lines: Vec<Line> = done(run)?.lines().map(Line::parse).collect::<Result<_, _>>()?;
    let mut date = Command::new("date");
    date.arg("-uI");
    let mut text = format!("\n{}\n\n", COUNTED.trim().replace("DATE", done(date)?.trim()));
    text.push_str(&table("case", "frames", &lines, |line| {
        (line.case.clone(), line.frames.to_string())
    })?);
    Ok(text)
}

struct Bench {
    folder: TempDir,
    program: PathBuf,
    rounds: u32,
}

fn measure(rounds: u32) -> Result<String, String> {
    if !peers::libunwind() {
        return Err("libunwind is missing".to_owned());
    }
    let bench = Bench::new(rounds)?;
    let mut text = HEAD.replace("ROUNDS", &rounds.to_string());
    let walks = bench.run(&["walk"], &[])?;
    text.push_str(&table("case", "frames", &walks, |line| {
        (line.case.clone(), line.frames.to_string())
    })?);
    text.push_str("\n## Growth\n\nStacks of about 50 frames, a different one each time. For threads, each thread's own time, without the calls that make the stack.\n\n");
    let mut growth = Vec::new();
    for count in MODULES {
        let library = bench.shared_library("module.c", "int module_of_bench(int x) { return x + 1; }\n")?;
        growth.extend(bench.run(&["modules"], &bench.copies(&library, count)?)?);
    }
    for count in THREADS {
        growth.extend(bench.run(&["threads"], &[PathBuf::from(count.to_string())])?);
    }
    for count in FUNCTIONS {
        let library = bench.shared_library("functions.S", &functions(count)?)?;
        growth.extend(bench.run(&["functions"], &[library])?);
    }
    let split = |line: &Line| {
        let (count, of) = line.case.split_once('-').unwrap_or((&line.case, ""));
        (of.to_owned(), count.to_owned())
    };
    text.push_str(&table("of", "how many", &growth, split)?);
    Ok(text)
}

impl Bench {
    fn new(rounds: u32) -> Result<Bench, String> {
        let library = place::release("backtrail-capi", "libbacktrail.so")?;
        let folder = scratch();
        let io = |error: std::io::Error| error.to_string();
        let program = folder.path().join("backtrace");
        std::fs::copy(library, folder.path().join("libbacktrail.so.0")).map_err(io)?;
        std::fs::copy(framehop(false)?, folder.path().join("libbench_framehop.so")).map_err(io)?;
        let mut compile = Bench::compile("cc", folder.path(), &program);
        compile.args(["-lunwind", "-ldl"]);
        done(compile)?;
        Ok(Bench {
            folder,
            program,
            rounds,
        })
    }

    /// Compiles the program, but for libunwind.
    fn compile(compiler: &str, folder: &Path, program: &Path) -> Command {
        let mut compile = Command::new(compiler);
        compile.args([
            "-O2",
            "-pthread",
            "-fno-omit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-o",
        ]);
        compile.arg(program);
        compile.arg(place::workspace().join("bench/programs/backtrace.c"));
        compile.arg("-I").arg(place::workspace().join("crates/capi/include"));
        compile.args(["libbacktrail.so.0", "libbench_framehop.so"].map(|name| folder.join(name)));
        compile.arg(format!("-Wl,-rpath,{}", folder.display()));
        compile
    }

    fn run(&self, how: &[&str], arguments: &[PathBuf]) -> Result<Vec<Line>, String> {
        let mut run = Command::new(&self.program);
        run.args(how).arg(self.rounds.to_string()).args(arguments);
        done(run)?.lines().map(Line::parse).collect()
    }

    fn shared_library(&self, name: &str, source: &str) -> Result<PathBuf, String> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, source).map_err(|error| error.to_string())?;
        let library = path.with_extension("so");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&path);
        done(compile)?;
        Ok(library)
    }

    fn copies(&self, library: &Path, count: usize) -> Result<Vec<PathBuf>, String> {
        let copy = |index: usize| {
            let path = self.folder.path().join(format!("module{index}.so"));
            std::fs::copy(library, &path).map_err(|error| error.to_string())?;
            Ok(path)
        };
        (0..count).map(copy).collect()
    }
}

/// Functions with frames of eight sizes, each of which calls its first argument with its second.
fn functions(count: usize) -> Result<String, String> {
    let mut text = ".text\n".to_owned();
    for index in 0..count {
        let bytes = 16 * (index % 8) + 16;
        let body = match std::env::consts::ARCH {
            "x86_64" => format!(
                "sub ${0}, %rsp\n.cfi_adjust_cfa_offset {0}\nmov %rdi, %rax\nmov %esi, %edi\ncall *%rax\nadd ${0}, %rsp\n.cfi_adjust_cfa_offset -{0}\nret",
                bytes - 8
            ),
            "aarch64" => format!(
                "stp x29, x30, [sp, #-{bytes}]!\n.cfi_def_cfa_offset {bytes}\n.cfi_offset x29, -{bytes}\n.cfi_offset x30, -{}\n\
                 mov x9, x0\nmov w0, w1\nblr x9\nldp x29, x30, [sp], #{bytes}\n.cfi_restore x29\n.cfi_restore x30\n\
                 .cfi_def_cfa_offset 0\nret",
                bytes - 8
            ),
            other => return Err(format!("no such functions for {other}")),
        };
        let _ = writeln!(
            text,
            "f{index}:\n.cfi_startproc\n{body}\n.cfi_endproc\n.type f{index}, %function\n.size f{index}, . - f{index}"
        );
    }
    text.push_str(".data\n.globl backtrace_functions, backtrace_function_count\n.p2align 3\nbacktrace_functions:\n");
    (0..count).for_each(|index| text.push_str(&format!(".quad f{index}\n")));
    text.push_str(&format!(
        "backtrace_function_count: .long {count}\n.section .note.GNU-stack,\"\",%progbits\n"
    ));
    Ok(text)
}

/// One line of the program.
struct Line {
    walker: String,
    case: String,
    size: String,
    frames: u32,
    nanoseconds: f64,
}

impl Line {
    fn parse(line: &str) -> Result<Line, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let [walker, case, size, frames, time] = words[..] else {
            return Err(format!("not a line of figures: {line}"));
        };
        Ok(Line {
            walker: walker.to_owned(),
            case: case.to_owned(),
            size: size.to_owned(),
            frames: frames.parse().map_err(|_| format!("frames: {line}"))?,
            nanoseconds: time.parse().map_err(|_| format!("nanoseconds: {line}"))?,
        })
    }

    fn of_a_frame(&self) -> f64 {
        self.nanoseconds / f64::from(self.frames)
    }
}

/// Nanoseconds or instructions per frame, for each walker, and ours as a ratio to the floor.
fn table(first: &str, second: &str, lines: &[Line], of: impl Fn(&Line) -> (String, String)) -> Result<String, String> {
    let names: Vec<&str> = WALKERS.iter().map(|(_, name)| *name).collect();
    let mut text = format!(
        "| {first} | {second} | {} | backtrail / frame pointers |\n|{}\n",
        names.join(" | "),
        "---|".repeat(WALKERS.len() + 3)
    );
    let mut rows: Vec<(String, String)> = Vec::new();
    for line in lines {
        let row = (line.case.clone(), line.size.clone());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    for (case, size) in rows {
        let found = |name: &str| {
            let fits = |line: &&Line| (&line.walker[..], &line.case, &line.size) == (name, &case, &size);
            lines.iter().find(fits)
        };
        let ours = found("backtrail").ok_or("a case without ours")?;
        let (first, second) = of(ours);
        let cells =
            WALKERS.map(|(name, _)| found(name).map_or(String::new(), |line| format!("{:.2}", line.of_a_frame())));
        let ratio = found("frame-pointers").map_or(String::new(), |floor| {
            format!("{:.2}", ours.of_a_frame() / floor.of_a_frame())
        });
        let _ = writeln!(text, "| {first} | {second} | {} | {ratio} |", cells.join(" | "));
    }
    Ok(text)
}

const HEAD: &str = "# The speed of backtraces

Made by `cargo run --release --bin backtrace` in `bench/`: the median of ROUNDS rounds, in which all libraries take their turn in one process. Nanoseconds per frame.

| case | what is walked |
|---|---|
| same | the same stack again |
| leaf | the innermost frames change, their callers stay |
| other | a different stack each time: every call is one of eight, at random |
| other-lean | the same, in code without frame pointers |
| cold | the same stack, but 64 MiB are written before each walk, so that neither stack nor code nor tables are in the CPU's caches; a chain of frame pointers then takes longer than any warm walk |

Goals: *same* at most twice the chain of frame pointers, *leaf* at most 4 ns, *other* at most 6, *cold* at most 25.

";

const COUNTED: &str = "
Made by `cargo run --release --bin backtrace aarch64` in `bench/`: the same walks on AArch64, under qemu's user emulation, on DATE. A plugin counts the instructions from the call of a library to its return, without the kernel's. Instructions per frame; libunwind 1.6.2 and glibc 2.36 are Debian 12's, framehop is 0.16.
";
