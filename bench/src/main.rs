//! Measures the cost of recording for the recorded program: the same fixed work, alone and under
//! each recorder, in turn, in one run.
//!
//! `cargo run --release [-- --rounds N] [-- --millions N]`; writes `docs/overhead.md` if there are
//! at least nine rounds.

mod statistics;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::{TempDir, command, perf, place, program, scratch};
use statistics::Spread;

const FREQUENCY: u32 = 997;
/// Fewer are not conclusive: the spread of a median of nine is about a third of that of one value.
const LEAST_ROUNDS: usize = 9;
/// The rounds of the written page. Many short rounds beat few long ones: on a shared machine,
/// disturbances last seconds.
const ROUNDS: usize = 21;
/// About a second of work, on most machines.
const WORK: u32 = 1000;
const LIMIT: Duration = Duration::from_secs(120);

/// Who records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorder {
    Nobody,
    Backtrail,
    PerfDwarf,
    PerfPlain,
}

const RECORDERS: [Recorder; 3] = [Recorder::Backtrail, Recorder::PerfDwarf, Recorder::PerfPlain];

impl Recorder {
    fn name(self) -> &'static str {
        match self {
            Recorder::Nobody => "alone",
            Recorder::Backtrail => "backtrail record",
            Recorder::PerfDwarf => "perf record --call-graph dwarf,8192",
            Recorder::PerfPlain => "perf record",
        }
    }
}

/// The CPUs of program and recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// The program has the last CPU, the recorder the first.
    Apart,
    /// The kernel decides.
    Free,
}

/// The program's own times, in seconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    wall: f64,
    cpu: f64,
}

struct Bench {
    backtrail: Backtrail,
    work: PathBuf,
    millions: u32,
    folder: TempDir,
}

/// The ratios to the adjacent runs alone.
#[derive(Default)]
struct Ratios {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (rounds, millions) = arguments()?;
    perf::sampling_permitted().map_err(|missing| missing.to_string())?;
    let binary = place::release("backtrail", "backtrail")?;
    let work = program::WORK.build().map_err(|missing| missing.to_string())?;
    let bench = Bench {
        backtrail: Backtrail::new(&binary),
        work,
        millions,
        folder: scratch(),
    };
    let mut page = head(rounds);
    for placement in [Placement::Apart, Placement::Free] {
        if placement == Placement::Apart && cpus() < 2 {
            eprintln!("only one CPU: nothing to keep apart");
            continue;
        }
        let ratios = bench.measure(placement, rounds)?;
        page.push_str(&table(placement, &ratios));
    }
    print!("{page}");
    if rounds >= LEAST_ROUNDS {
        let path = place::workspace().join("docs/overhead.md");
        fs::create_dir_all(place::workspace().join("docs"))
            .and_then(|()| fs::write(path, &page))
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn arguments() -> Result<(usize, u32), String> {
    let (mut rounds, mut millions) = (ROUNDS, WORK);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().unwrap_or_default();
        match (name.as_str(), value.parse::<u32>()) {
            ("--rounds", Ok(number @ 1..)) => rounds = number as usize,
            ("--millions", Ok(number @ 1..)) => millions = number,
            _ => return Err(format!("{name} {value}: --rounds N or --millions N was expected")),
        }
    }
    Ok((rounds, millions))
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Bench {
    /// Rounds of A B A C A D A: each recorded run is between two runs alone, and is compared with
    /// their mean. Slow changes (heat, neighbours) affect both.
    fn measure(&self, placement: Placement, rounds: usize) -> Result<Vec<(Recorder, Ratios)>, String> {
        let mut ratios: Vec<_> = RECORDERS
            .iter()
            .map(|recorder| (*recorder, Ratios::default()))
            .collect();
        // The first recording makes tables and fills caches.
        for recorder in RECORDERS {
            self.once(recorder, placement)?;
        }
        let mut before = self.once(Recorder::Nobody, placement)?;
        for round in 0..rounds {
            eprintln!("round {} of {rounds}, {placement:?}", round + 1);
            // Another order every round, so that none is always the first after a pause.
            for turn in 0..RECORDERS.len() {
                let (recorder, of_it) = &mut ratios[(turn + round) % RECORDERS.len()];
                let recorded = self.once(*recorder, placement)?;
                let after = self.once(Recorder::Nobody, placement)?;
                of_it.wall.push(recorded.wall * 2.0 / (before.wall + after.wall));
                of_it.cpu.push(recorded.cpu * 2.0 / (before.cpu + after.cpu));
                before = after;
            }
        }
        Ok(ratios)
    }

    fn once(&self, recorder: Recorder, placement: Placement) -> Result<Times, String> {
        let (for_recorder, for_program) = match placement {
            Placement::Apart => (Some(0), Some(cpus() - 1)),
            Placement::Free => (None, None),
        };
        let on = |cpu: Option<usize>| cpu.map(|cpu| ["taskset".to_owned(), "-c".to_owned(), cpu.to_string()]);
        let mut program: Vec<String> = on(for_program).into_iter().flatten().collect();
        program.extend([text(&self.work).to_owned(), self.millions.to_string()]);
        let mut whole: Vec<String> = on(for_recorder)
            .filter(|_| recorder != Recorder::Nobody)
            .into_iter()
            .flatten()
            .collect();
        whole.extend(self.recording(recorder, &program));
        let mut run = Command::new(&whole[0]);
        run.args(&whole[1..]);
        self.backtrail.surroundings(&mut run);
        let finished = command::run(&mut run, LIMIT).map_err(|missing| missing.to_string())?;
        self.clear();
        if !finished.status.success() {
            return Err(format!("{}: {}", recorder.name(), finished.describe()));
        }
        times(&finished.stdout).ok_or_else(|| format!("{}: no times: {}", recorder.name(), finished.describe()))
    }

    /// The command line that records the program.
    fn recording(&self, recorder: Recorder, program: &[String]) -> Vec<String> {
        let trace = self.folder.path().join("recording");
        let made = match recorder {
            Recorder::Nobody => return program.to_vec(),
            Recorder::PerfDwarf => perf::record(&trace, FREQUENCY, Some("dwarf,8192"), program),
            Recorder::PerfPlain => perf::record(&trace, FREQUENCY, None, program),
            Recorder::Backtrail => self.backtrail.record(&trace, &["-F", &FREQUENCY.to_string()], program),
        };
        [made.get_program()]
            .into_iter()
            .chain(made.get_args())
            .map(|part| part.to_string_lossy().into_owned())
            .collect()
    }

    /// Removes the recording, so that the next one is not refused and the disk does not fill up.
    fn clear(&self) {
        let recording = self.folder.path().join("recording");
        // It is a file of perf's, a directory of ours, or was never made.
        let _ = fs::remove_file(&recording).or_else(|_| fs::remove_dir_all(&recording));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of test programs are text")
}

fn times(told: &str) -> Option<Times> {
    let line = told.lines().find(|line| line.starts_with("{\"wall\""))?;
    let json: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(Times {
        wall: json["wall"].as_f64()?,
        cpu: json["user"].as_f64()? + json["system"].as_f64()?,
    })
}

fn head(rounds: usize) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.trim().split('.').take(2).collect();
    format!(
        "# What recording costs the program\n\n\
         Made by `cargo run --release` in `bench/`: a fixed amount of work on a stack of thirty to fifty frames,\n\
         alone and recorded at {FREQUENCY} Hz, on {} CPUs, Linux {}. Each recorded run is between two\n\
         runs alone and is compared with their mean. Figures are medians of {rounds} such ratios for each\n\
         recorder, with the middle half\n\
         of them in brackets. Promised: at most 3 % where `perf record` takes 2 %.\n",
        cpus(),
        kernel.join("."),
    )
}

fn table(placement: Placement, ratios: &[(Recorder, Ratios)]) -> String {
    let title = match placement {
        Placement::Apart => "Program and recorder on CPUs of their own",
        Placement::Free => "Placed by the kernel",
    };
    let mut table = format!("\n## {title}\n\n| recorder | wall time | the program's processor time |\n|---|---|---|\n");
    for (recorder, of_it) in ratios {
        let _ = writeln!(
            table,
            "| `{}` | {} | {} |",
            recorder.name(),
            Spread::of(&of_it.wall),
            Spread::of(&of_it.cpu)
        );
    }
    table
}
