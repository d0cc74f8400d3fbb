//! `backtrail record`.

mod entry;
mod storage;

pub(crate) use storage::keep;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backtrail_record::{
    CountedEvent, DEFAULT_ENTRY_STACK_BYTES, DEFAULT_EVENT_STACK_BYTES, DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES,
    Dialect, MAX_STACK_BYTES, Machine, Options, Outcome, Progress, SampledEvent, Stop, Storage, Target, Trigger, Walk,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde_json::{Map, Value, json};

use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::file_problems;
use crate::limits::Limits;
use crate::output;
use crate::pack::pack;
use crate::times::seconds;

/// Sample a command, or running processes, and write their stacks as a trace.
///
/// The exit status is that of the command.
#[derive(Args)]
pub(crate) struct Record {
    /// Write the trace to this directory, which must not exist [default: NAME.trace, or
    /// NAME.2.trace if that exists; NAME.traces for several recordings].
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = output::directory())]
    output: Option<PathBuf>,
    /// Take this many samples per second of CPU time.
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = DEFAULT_FREQUENCY, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    frequency: u64,
    /// Sample every call to FUNCTION, with its arguments, instead of sampling on a timer.
    /// Repeatable. Requires root. FILE is the program or library that contains it, by its path or
    /// its name [default: the program that is recorded].
    #[arg(long, value_name = "[FILE:]FUNCTION", conflicts_with = "frequency")]
    entry: Vec<OsString>,
    /// With --entry: record only calls that take at least TIME, with their duration: 1ms, 250us, 0s
    /// for all.
    #[arg(long, value_name = "TIME", requires = "entry", value_parser = storage::min_duration)]
    min_duration: Option<Duration>,
    /// Record how long threads are blocked, where, and what wakes them, instead of samples.
    #[arg(long, conflicts_with_all = ["frequency", "entry", "walk"])]
    off_cpu: bool,
    /// Record both: samples of time on the CPU, and all time off it.
    #[arg(long, conflicts_with_all = ["off_cpu", "entry", "walk"])]
    wall: bool,
    /// Sample at EVENT instead of on a timer: page-faults, minor-faults, major-faults,
    /// context-switches, cpu-migrations, cycles, instructions, cache-misses, branch-misses or
    /// others, or a tracepoint of the kernel as SUBSYSTEM:NAME. Repeatable; cpu-clock among them is
    /// the timer.
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["entry", "off_cpu", "wall", "walk"])]
    event: Vec<String>,
    /// With --event: take one sample in N events of each [default: 1; 10 for page faults; more for
    /// counters of the CPU].
    #[arg(long, value_name = "N", requires = "event", value_parser = clap::value_parser!(u64).range(1..=1 << 62))]
    count: Option<u64>,
    /// Sample this process, with all its threads and everything it starts. Repeatable.
    #[arg(short, long, value_name = "PID", conflicts_with = "command", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Sample all processes, until COMMAND ends if one is given. Requires root, CAP_PERFMON or
    /// kernel.perf_event_paranoid=0.
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,
    /// Sample the processes in this cgroup and those below it: a directory of cgroupfs, or a name
    /// as in /proc/PID/cgroup. Repeatable. Requires the same rights as --all.
    #[arg(long, value_name = "PATH", conflicts_with = "pid", value_hint = ValueHint::DirPath)]
    cgroup: Vec<PathBuf>,
    /// Stop after SECS seconds; a command runs on.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Write this version of the Common Trace Format.
    #[arg(long, value_name = "VERSION", default_value = "1.8", value_parser = dialect())]
    format: Dialect,
    /// Copy up to BYTES of stack with each sample [default: 61440; 8192 with
    /// --entry; 16384 with --off-cpu, --wall and --event].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(256..=i64::from(MAX_STACK_BYTES)))]
    stack_copy: Option<u32>,
    /// Walk stacks in the kernel at the moment of the sample, where its tables suffice, or from
    /// copies. `auto` does so for processes with stacks that are deeper than their copies. Walks in
    /// the kernel require root, or CAP_BPF and CAP_PERFMON.
    #[arg(long, value_name = "WHERE", default_value = "auto", value_parser = walk())]
    walk: Walk,
    /// Leave the names of functions, their lines and inlined calls out of the trace: a report then
    /// needs the programs' files. `backtrail pack` adds them later.
    #[arg(long)]
    no_symbols: bool,
    /// Write a summary as JSON to FILE; '-' is standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    division: storage::Division,
    #[command(flatten)]
    limits: Limits,
    /// The command to run and its arguments.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present_any = ["pid", "all", "cgroup"], value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

fn dialect() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(["1.8", "2"]).map(|version| match version.as_str() {
        "2" => Dialect::V2,
        _ => Dialect::V1_8,
    })
}

fn walk() -> impl TypedValueParser<Value = Walk> {
    PossibleValuesParser::new(["auto", "kernel", "copy"]).map(|place| match place.as_str() {
        "kernel" => Walk::Kernel,
        "copy" => Walk::Copy,
        _ => Walk::Auto,
    })
}

pub(crate) fn run(arguments: Record) -> Result<Status, Failure> {
    arguments.limits.set();
    let storage = arguments.division.storage()?;
    let name = || name(&arguments.command, &arguments.pid, &arguments.cgroup);
    let output = arguments.output.unwrap_or_else(|| match storage {
        Storage::Whole => free_name(&name()),
        Storage::Rotation { .. } | Storage::Snapshots { .. } => PathBuf::from(format!("{}.traces", name())),
    });
    let target = if !arguments.pid.is_empty() {
        Target::Processes(arguments.pid)
    } else if arguments.all || !arguments.cgroup.is_empty() {
        Target::Machine(Machine {
            groups: arguments.cgroup,
            command: arguments.command,
        })
    } else {
        Target::Command(arguments.command)
    };
    let trigger = match arguments.entry.is_empty() {
        true if !arguments.event.is_empty() => events(&arguments.event, arguments.frequency, arguments.count)?,
        true if arguments.off_cpu => Trigger::Waits(None),
        true if arguments.wall => Trigger::Waits(Some(arguments.frequency)),
        true => Trigger::Clock(arguments.frequency),
        false => match arguments.min_duration {
            Some(at_least) => Trigger::Calls(entry::functions(&arguments.entry, &target)?, at_least),
            None => Trigger::Entries(entry::entries(&arguments.entry, &target)?),
        },
    };
    let stack_copy = arguments.stack_copy.unwrap_or(match trigger {
        Trigger::Clock(_) => DEFAULT_STACK_BYTES,
        Trigger::Waits(_) | Trigger::Counted(_) => DEFAULT_EVENT_STACK_BYTES,
        Trigger::Entries(_) | Trigger::Calls(..) => DEFAULT_ENTRY_STACK_BYTES,
    });
    let options = Options {
        target,
        output,
        storage,
        trigger,
        // The kernel requires a multiple of 8.
        stack_bytes: stack_copy.next_multiple_of(8),
        walk: arguments.walk,
        dialect: arguments.format,
        duration: arguments.duration,
        cache: None,
        hold_files: !arguments.no_symbols,
    };
    let mut finishing = arguments.division.finishing(!arguments.no_symbols);
    let mut progress = |progress: Progress<'_>| match progress {
        Progress::Written { recording, names } => {
            finishing.add(recording, names);
            if matches!(options.storage, Storage::Snapshots { .. }) && !arguments.quiet {
                crate::error::say!("backtrail: snapshot: {}", shown(recording));
            }
        }
        Progress::Waiting if !arguments.quiet => {
            crate::error::say!("backtrail: the recording is over, the command still runs");
        }
        _ => {}
    };
    let outcome = backtrail_record::record_each(&options, &mut progress);
    finishing.finish();
    let mut outcome = outcome.map_err(|error| {
        let help = error.help();
        let failure = Failure::new(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    })?;
    let is_whole = options.storage == Storage::Whole;
    if is_whole && !arguments.no_symbols && outcome.samples > 0 && outcome.incomplete.is_none() {
        // The recording is complete without them.
        let sources = std::mem::take(&mut outcome.names);
        if let Err(error) = pack(&options.output, sources) {
            crate::error::say!(
                "backtrail: warning: {}: no symbols were added: {error}",
                shown(&options.output)
            );
            crate::error::say!("help: run `backtrail pack {}`", shown(&options.output));
        }
    }
    if let Some(path) = &arguments.json {
        output::to(path, |out| writeln!(out, "{}", summary_json(&outcome)))?;
    }
    file_problems::report(&outcome);
    if !arguments.quiet && outcome.incomplete.is_none() {
        crate::error::say!("backtrail: {}", summary(&outcome, &options.output, is_whole));
        for warning in outcome.warnings() {
            crate::error::say!("backtrail: warning: {warning}");
            if let Some(help) = warning.help() {
                crate::error::say!("help: {help}");
            }
        }
    }
    match outcome.incomplete {
        // Our own failure must not replace the command's exit status, so it is only reported.
        Some(incomplete) if outcome.exit_status != 0 => {
            Failure::new(incomplete).report();
            Ok(Status::Passed(outcome.exit_status))
        }
        Some(incomplete) => Err(Failure::new(incomplete)),
        None => Ok(Status::Passed(outcome.exit_status)),
    }
}

/// Samples at events.
fn events(names: &[String], frequency: u64, count: Option<u64>) -> Result<Trigger, Failure> {
    let mut events: Vec<SampledEvent> = Vec::new();
    for name in names {
        let event = match CLOCKS.contains(&name.as_str()) {
            true => SampledEvent::Clock(frequency),
            false => counted(name, count)?,
        };
        if !events.contains(&event) {
            events.push(event);
        }
    }
    if events.len() > MOST_EVENTS {
        return Err(Failure::new(format_args!("more than {MOST_EVENTS} events")));
    }
    let is_clock = |event: &SampledEvent| matches!(event, SampledEvent::Clock(_));
    if !events.iter().any(is_clock) && frequency != DEFAULT_FREQUENCY {
        let name = events.first().map_or("", SampledEvent::name);
        return Err(Failure::new(format_args!("-F is for clocks, not for the event {name}"))
            .help("use --count N: one sample in N events"));
    }
    match events.as_slice() {
        &[SampledEvent::Clock(frequency)] if count.is_none() => Ok(Trigger::Clock(frequency)),
        [SampledEvent::Clock(_)] => {
            Err(Failure::new("--count is for events, not for clocks").help("use -F HZ: samples per second"))
        }
        _ => Ok(Trigger::Counted(events)),
    }
}

/// Names of the timer.
const CLOCKS: [&str; 2] = ["cpu-clock", "task-clock"];
/// The most events of a recording: each takes a descriptor on each CPU, of each thread with -p.
const MOST_EVENTS: usize = 64;

fn counted(name: &str, count: Option<u64>) -> Result<SampledEvent, Failure> {
    let event = CountedEvent::named(name).map_err(|error| {
        let help = error.help();
        let failure = Failure::new(error);
        help.into_iter().fold(failure, Failure::help)
    })?;
    let count = count.unwrap_or_else(|| event.usual_count());
    Ok(SampledEvent::Counted(event, count))
}

/// What a recording is called after, unless its name is given.
fn name(command: &[OsString], pids: &[i32], groups: &[PathBuf]) -> String {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    match (command, pids, groups) {
        ([program, ..], ..) => last(Path::new(program)).unwrap_or_else(|| program.to_string_lossy().into_owned()),
        (_, [pid, ..], _) => pid.to_string(),
        (.., [group, ..]) => last(group).unwrap_or_else(|| "cgroup".to_owned()),
        _ => "all".to_owned(),
    }
}

/// The first of NAME.trace, NAME.2.trace, … that does not exist.
fn free_name(name: &str) -> PathBuf {
    let numbered = |number: u32| match number {
        1 => PathBuf::from(format!("{name}.trace")),
        _ => PathBuf::from(format!("{name}.{number}.trace")),
    };
    (1..)
        .map(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| numbered(1))
}

fn complete(outcome: &Outcome) -> f64 {
    match outcome.samples {
        0 => 0.0,
        samples => outcome.stops[Stop::EndOfStack as usize] as f64 / samples as f64,
    }
}

fn summary(outcome: &Outcome, path: &Path, is_whole: bool) -> String {
    let complete = match outcome.samples {
        0 => String::new(),
        _ => format!("{:.1} % of the stacks complete, ", 100.0 * complete(outcome)),
    };
    let mut text = format!(
        "{}, {} lost, {complete}{} KiB in {}",
        Counted(outcome.samples, "sample"),
        outcome.lost,
        outcome.trace_bytes.div_ceil(1024),
        shown(path)
    );
    if !is_whole {
        text.push_str(&format!(": {}", Counted(outcome.recordings, "recording")));
        if outcome.forgotten > 0 {
            text.push_str(&format!(", {} old ones deleted", outcome.forgotten));
        }
    }
    if outcome.read_apart > 0 {
        let share = 100.0 * outcome.read_apart as f64 / outcome.samples as f64;
        text.push_str(&format!(" ({share:.1} % with outer frames read late and proved)"));
    }
    if !outcome.kernel {
        text.push_str(" (without time in the kernel: not permitted)");
    }
    if let Some(calls) = outcome.calls {
        let parts = [
            (calls.short, "took less time"),
            (calls.left, "were left without a return"),
            (calls.unfinished, "had not returned at the end"),
            (calls.unknown, "are unknown"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        if !parts.is_empty() {
            text.push_str(&format!(" (of the other calls, {})", parts.join(", ")));
        }
    }
    if outcome.missed > 0 {
        text.push_str(&format!(
            " ({} left out, because walking deep stacks took longer than the time between them)",
            outcome.missed
        ));
    }
    if outcome.throttled > 0 {
        text.push_str(&format!(" (the kernel paused sampling {} times)", outcome.throttled));
    }
    text
}

fn summary_json(outcome: &Outcome) -> Value {
    let stops: Map<String, Value> = Stop::ALL
        .iter()
        .zip(outcome.stops)
        .filter(|&(_, count)| count > 0)
        .map(|(stop, count)| (stop.name().to_owned(), count.into()))
        .collect();
    json!({
        "samples": outcome.samples,
        "lost": outcome.lost,
        "complete": complete(outcome),
        "live": outcome.read_apart,
        "stops": stops,
        "frames": outcome.frames,
        "trace_bytes": outcome.trace_bytes,
        "calls": outcome.calls.map(|calls| json!({
            "short": calls.short,
            "left": calls.left,
            "unfinished": calls.unfinished,
            "unknown": calls.unknown,
        })),
        "waits": outcome.waits,
        "wakers": outcome.wakers,
        "recordings": outcome.recordings,
        "deleted": outcome.forgotten,
        "walked_in_kernel": outcome.walked_in_kernel,
        "kernel_rows": outcome.kernel_rows,
        "kernel_table_bytes": outcome.kernel_table_bytes,
        "functions": [],
        "missed": outcome.missed,
        "throttled": outcome.throttled,
        "kernel": outcome.kernel,
        "recorder_cpu_us": outcome.cpu_time.as_micros() as u64,
    })
}
