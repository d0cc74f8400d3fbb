//! `backtrail stack`: prints the stacks of a process or a core.

mod json;
mod text;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_elf::core::Core;
use backtrail_elf::{ErrorKind, FileBytes};
use backtrail_process::{Snapshot, core, live};
use backtrail_stacks::shown::{Amount, Shown};
use backtrail_stacks::{Looker, Options, Process, fold, input, record};
use clap::{Args, ValueEnum};

use crate::error::{Failure, Status, one_line};
use crate::limits::Limits;
use crate::output;
use crate::times;

/// Show the stacks of a running process or of a core.
///
/// Backtrail stops all threads of a process, copies their registers and stacks, and lets the
/// process continue; the rest is done on the copy. A core may be compressed with gzip, zstd or lz4.
/// A record written with --cbf can be shown later, also on another machine.
#[derive(Args)]
pub(crate) struct Stack {
    /// A process number, or the file name of a core or of a record written with --cbf; '-' reads a
    /// file from standard input.
    #[arg(value_name = "PID | CORE | RECORD")]
    target: PathBuf,
    /// Use this file as the executable.
    #[arg(long, value_name = "FILE")]
    exe: Option<PathBuf>,
    /// Look for the files of a core below DIR first, for example for a core of another machine.
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Show what functions were called with, from the tables of arguments that `backtrail sframe
    /// add --args` has added to their files. A lost argument is shown as `...`; `name@entry` is the
    /// value at the call, which may have changed since.
    #[arg(
        long,
        conflicts_with = "cbf",
        value_enum,
        value_name = "WHAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all"
    )]
    args: Option<What>,
    /// Show at most N bytes of each text in arguments.
    #[arg(long, value_name = "N", default_value_t = 200, requires = "args")]
    max_string: usize,
    /// Do not show the values of arguments and members whose names match, such as '*password*'.
    /// Repeatable.
    #[arg(long, value_name = "PATTERN", requires = "args")]
    hide: Vec<String>,
    /// Look for separate debug files in DIR too.
    #[arg(long, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print a record: compact backtraces and the list of modules with their build IDs, without
    /// names.
    #[arg(long, conflicts_with = "json")]
    cbf: bool,
    /// Print function names in full, instead of shortening those of more than 200 characters in the
    /// middle.
    #[arg(long)]
    full_names: bool,
    /// Show each thread separately, even if stacks are equal.
    #[arg(long)]
    all: bool,
    /// Hold the process until everything is printed.
    #[arg(long)]
    freeze: bool,
    /// Repeat every SECS seconds, and show what has changed.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    every: Option<Duration>,
    /// Stop after N snapshots [default: until interrupted].
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    limits: Limits,
}

/// What is shown of arguments.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// Their types, and no values.
    Types,
    /// Numbers and addresses, but no text.
    Numbers,
    /// All values.
    All,
}

impl What {
    pub(crate) fn amount(self) -> Amount {
        match self {
            What::Types => Amount::Types,
            What::Numbers => Amount::Numbers,
            What::All => Amount::All,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => times::seconds(text),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Stack) -> Result<Status, Failure> {
    arguments.limits.set();
    let looker = Looker::new(Options {
        executable: arguments.exe.clone(),
        sysroot: arguments.sysroot.clone(),
        debug_dirs: arguments.debug_dir.clone(),
        arguments: arguments.args.is_some(),
        shown: Shown {
            amount: arguments.args.map_or(Amount::All, What::amount),
            longest_text: arguments.max_string,
            hidden: arguments.hide.clone(),
        },
        registers: false,
    });
    if let Some(exe) = &arguments.exe {
        std::fs::metadata(exe).map_err(|error| Failure::of(exe, error))?;
    }
    let pid = arguments.target.to_str().and_then(|target| target.parse::<u32>().ok());
    match pid {
        Some(pid) => run_live(arguments, pid, looker),
        None => run_core(arguments, looker),
    }
}

fn run_live(arguments: &Stack, pid: u32, mut looker: Looker) -> Result<Status, Failure> {
    let count = arguments
        .count
        .unwrap_or(if arguments.every.is_some() { u64::MAX } else { 1 });
    let mut before: Option<Process> = None;
    let mut next = Instant::now();
    for look in 0..count {
        let (process, hold) = match looker.look(pid, arguments.freeze) {
            Ok(looked) => looked,
            // A process that ended between two looks is not an error.
            Err(live::Error::Gone | live::Error::Zombie) if look > 0 => {
                crate::error::say!("backtrail: {pid}: has ended");
                return Ok(Status::Done);
            }
            Err(error) => return Err(not_captured(pid, error)),
        };
        show(arguments, &mut looker, &process, before.as_ref())?;
        drop(hold);
        before = Some(process);
        if let Some(every) = arguments.every.filter(|_| look + 1 < count) {
            next += every;
            sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    tell_troubles(&looker, before.as_ref());
    Ok(Status::Done)
}

fn not_captured(pid: u32, error: live::Error) -> Failure {
    let failure = Failure::of(pid.to_string(), error);
    match error {
        live::Error::NotPermitted(live::Reason::Traced(_)) => failure.help("end the debugger that traces it"),
        live::Error::NotPermitted(live::Reason::PtraceScope(_)) => {
            failure.help("run this as root, or let root set kernel.yama.ptrace_scope to 0")
        }
        live::Error::NotPermitted(_) => failure.help("run this as that user or as root (CAP_SYS_PTRACE)"),
        live::Error::Gone => failure.help("to read a core file whose name is a number, write ./NUMBER"),
        _ => failure,
    }
}

fn run_core(arguments: &Stack, mut looker: Looker) -> Result<Status, Failure> {
    if arguments.freeze || arguments.every.is_some() {
        return Err(Failure::new("--freeze and --every are for processes"));
    }
    let path = arguments.target.as_path();
    let input = if path == Path::new("-") {
        input::read(std::io::stdin().lock())
    } else {
        input::open(path)
    };
    let name = if path == Path::new("-") {
        Path::new("standard input")
    } else {
        path
    };
    let input = input.map_err(|error| Failure::of(name, error))?;
    let file = &input.file;
    if let Some(cut) = &input.cut {
        let failure = Failure::of(name, format_args!("can't be decompressed to its end: {cut}"));
        if file.is_empty() {
            return Err(failure);
        }
        failure.warn("what came before is used");
    }
    let start = file.slice(0, file.len().min(SPACE)).unwrap_or_default();
    let process = if start.trim_ascii_start().starts_with(b"{") {
        record::parse(file.bytes()).map_err(|error| Failure::of(name, error))?
    } else {
        looker.stacks(&read_core(name, file)?)
    };
    show(arguments, &mut looker, &process, None)?;
    tell_troubles(&looker, Some(&process));
    Ok(Status::Done)
}

/// The most space before a record that is not a core.
const SPACE: usize = 4096;

fn read_core<'a>(name: &Path, file: &'a FileBytes) -> Result<Snapshot<'a>, Failure> {
    let core = Core::of(file).map_err(|error| not_a_core(name, error))?;
    if let Some(damage) = core.damage {
        Failure::of(name, damage).warn("the notes before it are used");
    }
    if core.missing > 0 {
        let cut_off = format_args!("is cut off: {} bytes are missing", core.missing);
        Failure::of(name, cut_off).warn("what is there is used");
    }
    Ok(core::snapshot(&core))
}

fn not_a_core(name: &Path, error: backtrail_elf::Error) -> Failure {
    let failure = Failure::of(name, error);
    match error.kind {
        ErrorKind::NotElf | ErrorKind::NotCore => {
            failure.help("stack shows processes, by their number, cores, and records of --cbf")
        }
        _ => failure,
    }
}

fn show(arguments: &Stack, looker: &mut Looker, process: &Process, before: Option<&Process>) -> Result<(), Failure> {
    if arguments.cbf {
        return output::to_stdout(|out| writeln!(out, "{}", record::to_json(process)));
    }
    let named = looker.names(process);
    output::to_stdout(|out| {
        if arguments.json {
            return json::write(out, process, &named, arguments.args.is_some());
        }
        let changes = before.map(|before| fold::changes(before, process));
        let options = text::Options {
            all: arguments.all,
            full_names: arguments.full_names,
        };
        text::write(out, process, &named, changes.as_ref(), options)
    })
}

/// Reports once why frames and names are missing.
fn tell_troubles(looker: &Looker, process: Option<&Process>) {
    for problem in looker.problems() {
        Failure::new(problem).warn("its stacks and names may be missing");
    }
    let unnamed = looker.notes();
    for note in unnamed {
        crate::error::say!("backtrail: note: {}", one_line(&note.to_string()));
    }
    let lacking = process.map_or(0, |process| {
        process.threads.iter().filter(|thread| thread.lacked_memory).count()
    });
    if lacking > 0 {
        crate::error::say!(
            "backtrail: note: outer frames of {lacking} stacks may be missing: the process ended before they were read"
        );
    }
}
