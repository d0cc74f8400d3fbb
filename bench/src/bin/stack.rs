//! Measures the cost of looking at the stacks of a process: Backtrail's beside gdb's and
//! eu-stack's, in turn, on the same process.
//!
//! `cargo run --release --bin stack [ROUNDS]`; needs a C compiler, gdb and eu-stack, and an
//! otherwise idle machine.
//!
//! Each look is taken twice: once to measure how long the process is stopped, and once, with
//! real-time priority if permitted (`chrt -f`, so that other work on the machine disturbs less), to
//! measure the time of the command. A first look has no tables and names from earlier ones. The
//! last rows are for node as a distribution has it, a hundred megabytes, stripped.
//!
//! The program has a table of its functions' arguments, for `--args`; node has none. Most of its
//! threads wait alike; in the rows that say they differ, each is a recursion of which every call
//! has other arguments than all other ones, including texts.
//!
//! Each figure is the least of all rounds, since other work on the machine only adds to it.
//!
//! A thread of the process that reads the clock without end measures how long the process is
//! stopped; the longest gap of a round without a look shows how much of that the machine itself
//! causes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::{command, place, scratch};

const LIMIT: Duration = Duration::from_secs(120);
/// The numbers of threads and how they wait, and the program's arguments for that: threads besides
/// the first one and the one that reads the clock.
const PROCESSES: [(&str, &[&str]); 4] = [
    ("2", &["0"]),
    ("65", &["63"]),
    ("1000", &["998"]),
    ("65, differing", &["63", "differing"]),
];
/// The name of a first look: its cache folder is emptied before it.
const FIRST: &str = "backtrail, first look";

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(11);
    match measure(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The process under observation.
struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, arguments: &[&str]) -> Result<Target, String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err("no pipes".to_owned());
        };
        sleep(Duration::from_millis(500));
        Ok(Target {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn ask(&mut self, what: &str) -> Result<f64, String> {
        let mut line = String::new();
        writeln!(self.input, "{what}").map_err(|error| error.to_string())?;
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        let nanoseconds: f64 = line.trim().parse().map_err(|error| format!("{line:?}: {error}"))?;
        Ok(nanoseconds / 1e6)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A kind of look, and its cost: milliseconds that the process was stopped, and in total.
struct Look {
    name: &'static str,
    command: Option<(String, Vec<String>)>,
    stops: Vec<f64>,
    walls: Vec<f64>,
}

fn looks(backtrail: &Path, pid: u32) -> Vec<Look> {
    let look = |name, command: &[&str]| Look {
        name,
        command: command.split_first().map(|(program, arguments)| {
            let arguments = arguments.iter().map(|&argument| argument.to_owned());
            (program.to_string(), arguments.collect())
        }),
        stops: Vec::new(),
        walls: Vec::new(),
    };
    let (backtrail, pid) = (backtrail.to_string_lossy(), pid.to_string());
    let gdb = [
        "-batch",
        "-nx",
        "-iex",
        "set debuginfod enabled off",
        "-p",
        &pid,
        "-ex",
        "thread apply all bt",
    ];
    vec![
        look(FIRST, &[&backtrail, "stack", &pid]),
        look("backtrail", &[&backtrail, "stack", &pid]),
        look("backtrail --args", &[&backtrail, "stack", "--args", &pid]),
        look("gdb", &[&["gdb"], &gdb[..]].concat()),
        look("eu-stack", &["eu-stack", "-p", &pid]),
        look("nobody", &[]),
    ]
}

/// Gives this program and everything it starts real-time priority until it is dropped, if
/// permitted.
struct Priority;

impl Priority {
    fn raise() -> Priority {
        Priority::set(&["-f", "-p", "50"]);
        Priority
    }

    fn set(arguments: &[&str]) {
        let pid = std::process::id().to_string();
        let mut command = Command::new("chrt");
        let _ = command.args(arguments).arg(pid).stderr(Stdio::null()).status();
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        Priority::set(&["-o", "-p", "0"]);
    }
}

fn measure(rounds: usize) -> Result<(), String> {
    let backtrail = place::release("backtrail", "backtrail")?;
    let folder = scratch();
    let program = folder.path().join("gaps");
    let mut compile = Command::new("cc");
    compile
        .args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-I"])
        .arg(place::programs())
        .arg("-o");
    compile
        .arg(&program)
        .arg(place::workspace().join("bench/programs/gaps.c"));
    let compiled = command::run(&mut compile, LIMIT).map_err(|missing| missing.to_string())?;
    if !compiled.status.success() {
        return Err(compiled.describe());
    }
    let mut add = Command::new(&backtrail);
    add.args(["sframe", "add", "--args"]).arg(&program);
    let added = command::run(&mut add, LIMIT).map_err(|missing| missing.to_string())?;
    if !added.status.success() {
        return Err(added.describe());
    }
    println!(
        "| threads | by | stopped, ms | gdb's / this | whole command, ms | gdb's / this |\n|---|---|---|---|---|---|"
    );
    for (threads, arguments) in PROCESSES {
        let mut target = Target::start(&program, arguments)?;
        let mut looks = looks(&backtrail, target.child.id());
        for _ in 0..rounds {
            for look in &mut looks {
                take(&mut target, look, folder.path())?;
            }
        }
        print_rows(threads, &looks);
    }
    large(rounds, &backtrail, folder.path())
}

fn print_rows(threads: &str, looks: &[Look]) {
    let gdb = looks.iter().find(|look| look.name == "gdb");
    let of_gdb = gdb.map_or((0.0, 0.0), |gdb| (least(&gdb.stops), least(&gdb.walls)));
    for look in looks {
        let (stop, wall) = (least(&look.stops), least(&look.walls));
        println!(
            "| {threads} | {} | {} | {} | {wall:.1} | {:.1} |",
            look.name,
            if look.stops.is_empty() {
                String::new()
            } else {
                format!("{stop:.2}")
            },
            if look.stops.is_empty() {
                String::new()
            } else {
                format!("{:.1}", of_gdb.0 / stop)
            },
            of_gdb.1 / wall
        );
    }
}

/// A stripped program of a hundred megabytes, which reads no clock.
fn large(rounds: usize, backtrail: &Path, folder: &Path) -> Result<(), String> {
    let Some(node) = ["/usr/bin/node", "/usr/bin/nodejs"]
        .iter()
        .find(|node| Path::new(node).is_file())
    else {
        println!("no node on this machine");
        return Ok(());
    };
    let stripped = folder.join("node");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(node);
    let done = command::run(&mut strip, LIMIT).map_err(|missing| missing.to_string())?;
    if !done.status.success() {
        return Err(done.describe());
    }
    let mut command = Command::new(&stripped);
    command
        .args(["-e", "setTimeout(() => {}, 100000000)"])
        .stdin(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    sleep(Duration::from_secs(3));
    let mut looks = looks(backtrail, child.id());
    looks.retain(|look| look.command.is_some());
    let mut outcome = Ok(());
    'rounds: for _ in 0..rounds {
        for look in &mut looks {
            outcome = run(look, folder);
            if outcome.is_err() {
                break 'rounds;
            }
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    outcome?;
    print_rows("node", &looks);
    Ok(())
}

/// The time of the command.
fn run(look: &mut Look, folder: &Path) -> Result<(), String> {
    let took = match &look.command {
        Some((program, arguments)) => {
            let _priority = Priority::raise();
            run_once(Command::new(program).args(arguments), look.name, folder)?
        }
        None => wait(),
    };
    look.walls.push(took.as_secs_f64() * 1e3);
    Ok(())
}

fn wait() -> Duration {
    let begin = Instant::now();
    sleep(Duration::from_millis(300));
    begin.elapsed()
}

fn run_once(command: &mut Command, name: &str, folder: &Path) -> Result<Duration, String> {
    let (first, kept) = (folder.join("first"), folder.join("kept"));
    let _ = std::fs::remove_dir_all(&first);
    command.env("XDG_CACHE_HOME", if name == FIRST { first } else { kept });
    let begin = Instant::now();
    let finished = command::run(command, LIMIT).map_err(|missing| missing.to_string())?;
    let took = begin.elapsed();
    // eu-stack exits with 1 if a thread's stack is longer than it shows.
    if finished.timed_out || finished.stdout.is_empty() {
        return Err(finished.describe());
    }
    Ok(took)
}

fn take(target: &mut Target, look: &mut Look, folder: &Path) -> Result<(), String> {
    target.ask("r")?;
    match &look.command {
        Some((program, arguments)) => {
            run_once(Command::new(program).args(arguments), look.name, folder)?;
        }
        None => {
            wait();
        }
    }
    look.stops.push(target.ask("g")?);
    run(look, folder)
}

/// The least value: other work on the machine only adds time.
fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}
