//! `backtrail trace record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_tracer::collect::{CollectOptions, Collector, FOLDER_VARIABLE, default_folder};
use clap::{Args, ValueHint};

use crate::error::{Failure, Status};

/// Record the events of programs that use the tracer, each process into a trace of its own.
///
/// Runs COMMAND, or attaches to every program of this user that waits for it (Options::attachable,
/// backtrail_tracer_start(NULL)). The exit status is that of the command.
#[derive(Args)]
pub(crate) struct Record {
    /// Write the traces below this directory.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: PathBuf,
    /// Record the events that these rules switch on. A rule is [-]PATTERN[@LEVEL][+stack|+sampled];
    /// the last one that applies decides.
    #[arg(long, value_name = "RULES", default_value = "*")]
    events: String,
    /// Attach to running programs.
    #[arg(long, conflicts_with = "command")]
    attach: bool,
    /// Look for programs in this folder [default: one for each user, in memory].
    #[arg(long, value_name = "DIR", requires = "attach", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,
    /// Stop after SECS seconds [default: until interrupted, or the command ends].
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Begin new traces every SECS seconds.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    rotate_every: Option<Duration>,
    /// Begin a new trace when a process's trace has this many bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    rotate_size: Option<u64>,
    /// Write this version of the Common Trace Format.
    #[arg(long, value_name = "VERSION", default_value = "1.8", value_parser = ["1.8", "2"])]
    format: String,
    /// The command to run and its arguments.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "attach", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("not a time that can be waited for".to_owned()),
    }
}

/// The time between two looks at the rings.
const ROUND: Duration = Duration::from_millis(5);
/// Events are on disk after this time at the latest.
const FLUSH: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Record) -> Result<Status, Failure> {
    let output = &arguments.output;
    let of_output = |error| Failure::of(output, error);
    // The rings of a command are its own; they are in memory if possible.
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let scratch = match arguments.attach {
        true => None,
        false => {
            let made = tempfile::Builder::new().prefix("backtrail-").tempdir_in(&parent);
            Some(made.map_err(|error| Failure::of(&parent, error))?)
        }
    };
    let folder = match (&scratch, &arguments.folder) {
        (Some(scratch), _) => scratch.path().to_owned(),
        (None, Some(folder)) => folder.clone(),
        (None, None) => default_folder(),
    };
    let mut options = CollectOptions::default();
    options.rules = Some(arguments.events.clone());
    options.rotate_bytes = arguments.rotate_size;
    options.ctf2 = arguments.format == "2";
    let mut collector = Collector::new(&folder, output, options).map_err(of_output)?;
    let signals = SignalSource::new().map_err(Failure::new)?;
    let mut child = start(arguments, &folder, &signals)?;
    let begin = Instant::now();
    let (mut flushed, mut rotated) = (begin, begin);
    let status = loop {
        let ended = match &mut child {
            Some(child) => child.try_wait().map_err(Failure::new)?,
            None => None,
        };
        let is_over = arguments.duration.is_some_and(|limit| begin.elapsed() >= limit);
        // A child's end is seen above; signals from the terminal reach the command as well.
        let interrupted = std::iter::from_fn(|| signals.next()).any(|signal| signal.number != SIGCHLD);
        if ended.is_some() || is_over || interrupted {
            break ended;
        }
        let flush = flushed.elapsed() >= FLUSH;
        if flush {
            flushed = Instant::now();
        }
        let written = collector.round(flush).map_err(of_output)?;
        if arguments.rotate_every.is_some_and(|time| rotated.elapsed() >= time) {
            rotated = Instant::now();
            collector.rotate().map_err(of_output)?;
        }
        if written == 0 {
            sleep(ROUND);
        }
    };
    collector.round(true).map_err(of_output)?;
    let processes = collector.processes();
    collector.stop().map_err(of_output)?;
    if processes == 0 {
        eprintln!("backtrail: warning: no program used the tracer");
    }
    Ok(match status {
        Some(status) => Status::Passed(exit_code(status)),
        None => Status::Done,
    })
}

const SIGCHLD: i32 = rustix::process::Signal::CHILD.as_raw();

fn start(arguments: &Record, folder: &Path, signals: &SignalSource) -> Result<Option<Child>, Failure> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.args(rest).env(FOLDER_VARIABLE, folder);
    let child = signals.unblocked(|| command.spawn());
    child.map(Some).map_err(|error| Failure::of(Path::new(program), error))
}

/// As a shell reports it.
fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}
