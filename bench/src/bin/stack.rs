//! What looking at the stacks of a process costs: Backtrail's beside gdb's and eu-stack's, in turns, on the same process.
//!
//! `cargo run --release --bin stack [ROUNDS]`; needs a C compiler, gdb and eu-stack, and a machine that does nothing else.
//!
//! How long the process stands still is measured in it, by a thread that reads the clock without end; the longest gap of a
//! round in which nobody looks says how much of that is the machine's own doing.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::{command, place, scratch};

const LIMIT: Duration = Duration::from_secs(120);
/// Threads beside the first one and the one that reads the clock.
const THREADS: [u32; 3] = [0, 63, 998];

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

/// The process that is looked at.
struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, threads: u32) -> Result<Target, String> {
        let mut command = Command::new(program);
        command
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
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

/// A way to look, and what it took: milliseconds that the process stood still, and in all.
struct Look {
    name: &'static str,
    command: Option<(String, Vec<String>)>,
    stops: Vec<f64>,
    walls: Vec<f64>,
}

fn looks(backtrail: &Path, pid: u32) -> Vec<Look> {
    let look = |name, program: &str, arguments: &[&str]| Look {
        name,
        command: Some((
            program.to_owned(),
            arguments.iter().map(|&argument| argument.to_owned()).collect(),
        )),
        stops: Vec::new(),
        walls: Vec::new(),
    };
    let pid = pid.to_string();
    vec![
        look("backtrail", &backtrail.to_string_lossy(), &["stack", &pid]),
        look(
            "gdb",
            "gdb",
            &[
                "-batch",
                "-nx",
                "-iex",
                "set debuginfod enabled off",
                "-p",
                &pid,
                "-ex",
                "thread apply all bt",
            ],
        ),
        look("eu-stack", "eu-stack", &["-p", &pid]),
        Look {
            name: "nobody",
            command: None,
            stops: Vec::new(),
            walls: Vec::new(),
        },
    ]
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
    println!(
        "| threads | by | stands still, ms | gdb's / this | whole command, ms | gdb's / this |\n|---|---|---|---|---|---|"
    );
    for threads in THREADS {
        let mut target = Target::start(&program, threads)?;
        let mut looks = looks(&backtrail, target.child.id());
        for _ in 0..rounds {
            for look in &mut looks {
                take(&mut target, look)?;
            }
        }
        let of_gdb = (median(&looks[1].stops), median(&looks[1].walls));
        for look in &looks {
            let (stop, wall) = (median(&look.stops), median(&look.walls));
            println!(
                "| {} | {} | {stop:.2} | {:.1} | {wall:.1} | {:.1} |",
                threads + 2,
                look.name,
                of_gdb.0 / stop,
                of_gdb.1 / wall
            );
        }
    }
    Ok(())
}

fn take(target: &mut Target, look: &mut Look) -> Result<(), String> {
    target.ask("r")?;
    let begin = Instant::now();
    match &look.command {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            let finished = command::run(command.args(arguments), LIMIT).map_err(|missing| missing.to_string())?;
            // eu-stack ends with 1 where a thread's stack is longer than it shows.
            if finished.timed_out || finished.stdout.is_empty() {
                return Err(finished.describe());
            }
            look.walls.push(finished.wall.as_secs_f64() * 1e3);
        }
        None => {
            sleep(Duration::from_millis(300));
            look.walls.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    look.stops.push(target.ask("g")?);
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
