//! `cargo evidence recording`: measures recordings of real programs beside those of perf, in one
//! run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use backtrail_testkit::recorder::{Backtrail, bytes_in};
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{Missing, TempDir, command, perf, place, program, scratch, skip};

const SECONDS: u32 = 20;
/// The length of the first recording, which makes the tables of all modules.
const FIRST_SECONDS: u32 = 2;
const FREQUENCY: u32 = 997;

/// The promised numbers; see the head of the table.
const COMPLETE: f64 = 0.995;
const BYTES: f64 = 36.0;
const MICROSECONDS: f64 = 15.0;

/// The program whose profile has a promised size.
const COMPILER: &str = "g++";

struct Row {
    name: &'static str,
    promised: bool,
    samples: u64,
    lost: u64,
    complete: f64,
    incomplete: String,
    bytes: f64,
    microseconds: f64,
    first_milliseconds: u128,
    perf: Result<PerfRow, Missing>,
}

struct PerfRow {
    samples: u64,
    complete: f64,
    bytes: f64,
}

/// Records everything, prints the table, and writes the page if the recordings had their full
/// length.
pub(crate) fn run(seconds: Option<u32>) -> Result<(), String> {
    perf::sampling_permitted().map_err(|missing| missing.to_string())?;
    let binary = place::release("backtrail", "backtrail")?;
    let folder = scratch();
    let mut rows = Vec::new();
    for (name, workload, first) in programs(seconds.unwrap_or(SECONDS), folder.path()) {
        eprintln!("recording {name}");
        match (workload, first) {
            (Ok(workload), Ok(first)) => rows.push(measure(name, &binary, &workload, &first)?),
            (Err(missing), _) | (_, Err(missing)) => skip(format!("{name}: {missing}")),
        }
    }
    let table = table(&rows, seconds.unwrap_or(SECONDS));
    print!("{table}");
    if seconds.is_none() {
        let page = place::workspace().join("docs/recording.md");
        fs::create_dir_all(page.parent().expect("it has one"))
            .and_then(|()| fs::write(&page, &table))
            .map_err(|e| e.to_string())?;
    }
    match broken_promises(&rows) {
        broken if broken.is_empty() => Ok(()),
        broken => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

/// Completeness is promised for the first programs, size and time for a compiler's profile; the
/// other rows are only informative.
fn broken_promises(rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows.iter().filter(|row| row.promised) {
        if row.complete < COMPLETE {
            broken.push(format!("{}: {:.2} % complete", row.name, row.complete * 100.0));
        }
        if row.name == COMPILER && row.bytes > BYTES {
            broken.push(format!("{}: {:.1} bytes a sample", row.name, row.bytes));
        }
        if row.name == COMPILER && row.microseconds > MICROSECONDS {
            broken.push(format!("{}: {:.1} µs a sample", row.name, row.microseconds));
        }
    }
    broken
}

type Made = Result<Workload, Missing>;

/// Each program for its full time, and for a moment.
fn programs(seconds: u32, folder: &Path) -> Vec<(&'static str, Made, Made)> {
    let both = |make: &dyn Fn(u32) -> Made| (make(seconds), make(FIRST_SECONDS));
    let mut all: Vec<_> = workload::promised(seconds, folder)
        .into_iter()
        .zip(workload::promised(FIRST_SECONDS, folder))
        .map(|((name, long), (_, short))| (name, long, short))
        .collect();
    let mut more = |name, (long, short): (Made, Made)| all.push((name, long, short));
    more(
        "deep, three functions",
        both(&|seconds| workload::deep(seconds, "three")),
    );
    // Fifty times as fast up and down: the stack changes while it is read.
    let quick = |seconds: u32| workload::built("quick", &program::DEEP, &["5000", &seconds.to_string(), "one", "10"]);
    more("deep, 10 ms a round", both(&quick));
    more(
        "short-lived children",
        both(&|seconds| workload::built("forker", &program::FORKER, &[&seconds.to_string(), "10"])),
    );
    all
}

fn measure(name: &'static str, binary: &Path, workload: &Workload, first: &Workload) -> Result<Row, String> {
    // With a cache of its own: each program's first recording makes the tables of all that it uses.
    let backtrail = Backtrail::new(binary);
    let folder = scratch();
    let (first_trace, trace) = (folder.path().join("first"), folder.path().join("trace"));
    let first_cpu = record(&backtrail, &first_trace, first)?;
    let cpu = record(&backtrail, &trace, workload)?;
    let summary = backtrail.summary(&trace);
    let per_sample = |amount: f64| amount / summary.samples.max(1) as f64;
    Ok(Row {
        name,
        promised: workload::PROMISED.contains(&name),
        samples: summary.samples,
        lost: summary.lost,
        complete: summary.completeness(),
        incomplete: summary.incomplete(),
        bytes: per_sample(bytes_in(&trace) as f64),
        microseconds: per_sample(cpu.as_secs_f64() * 1e6),
        first_milliseconds: first_cpu.as_millis(),
        perf: perf_row(&folder, workload),
    })
}

/// The recorder's own processor time.
fn record(backtrail: &Backtrail, trace: &Path, workload: &Workload) -> Result<Duration, String> {
    let mut record = backtrail.record(trace, &["-F", &FREQUENCY.to_string()], &workload.arguments);
    let finished = command::run(&mut record, Duration::from_secs(300)).map_err(|missing| missing.to_string())?;
    if !finished.status.success() {
        return Err(format!("{}: {}", workload.name, finished.describe()));
    }
    Ok(finished.own_cpu)
}

fn perf_row(folder: &TempDir, workload: &Workload) -> Result<PerfRow, Missing> {
    let data = folder.path().join("perf.data");
    let mut record = perf::record(&data, FREQUENCY, Some("dwarf,8192"), &workload.arguments);
    workload::plain_surroundings(&mut record);
    let finished = command::run(&mut record, Duration::from_secs(300))?;
    let bytes = fs::metadata(&data)
        .map_err(|_| Missing(format!("perf recorded nothing: {}", finished.stderr.trim())))?
        .len();
    let stacks = perf::stacks(&data)?;
    let of_all = |amount: u64| amount as f64 / stacks.samples.max(1) as f64;
    Ok(PerfRow {
        samples: stacks.samples,
        complete: of_all(stacks.complete),
        bytes: of_all(bytes),
    })
}

fn table(rows: &[Row], seconds: u32) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.trim().split('.').take(2).collect();
    let mut page = format!(
        "# Recordings of real programs\n\n\
         Made by `cargo evidence recording`: each program for {seconds} seconds at {FREQUENCY} Hz, by `backtrail record`\n\
         and then by `perf record --call-graph dwarf,8192`, in one run, on {cpus} CPUs, Linux {}. Promised: at least\n\
         {:.1} % complete stacks; for a compiler at most {BYTES} bytes and {MICROSECONDS} µs per sample.\n\n\
         *Complete* is a stack that reaches the program's or the thread's start. *Bytes* is the size of the whole\n\
         recording, with mappings and metadata, per sample. *µs* is the recorder's own processor time (user and\n\
         system, without the program's) per sample; *first* is this time in a first recording of {FIRST_SECONDS} seconds,\n\
         which makes the tables of all modules. perf's stacks are judged by the output of `perf script`; its\n\
         processor time is not compared, because it unwinds later.\n\n\
         | program | samples | lost | complete | incomplete | bytes | µs | first, ms | perf: samples | complete | bytes |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        kernel.join("."),
        COMPLETE * 100.0,
    );
    for row in rows {
        let perf = match &row.perf {
            Ok(perf) => format!("{} | {:.1} % | {:.0}", perf.samples, perf.complete * 100.0, perf.bytes),
            Err(missing) => format!("{missing} | | "),
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {:.2} % | {} | {:.1} | {:.1} | {} | {perf} |",
            row.name,
            row.samples,
            row.lost,
            // Never rounded up: 99.5 must mean it.
            (row.complete * 10_000.0).floor() / 100.0,
            row.incomplete,
            row.bytes,
            row.microseconds,
            row.first_milliseconds
        );
    }
    page
}
