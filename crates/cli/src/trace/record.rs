//! `backtrail trace record`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_tracer::collect::{CollectOptions, Collector, FOLDER_VARIABLE, Unwritten, default_folder};
use clap::{Args, ValueHint};

use crate::counted::Counted;
use crate::error::{Failure, Status, say};
use crate::output::directory;
use crate::times::seconds;

/// Record the events of programs that use the tracer, each process into a trace of its own.
///
/// Runs COMMAND, or attaches to every program of this user that waits for it (Options::attachable,
/// backtrail_tracer_start(NULL)). The exit status is that of the command.
#[derive(Args)]
pub(crate) struct Record {
    /// Write the traces below this directory.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = directory())]
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

/// The time between two looks at the rings.
const ROUND: Duration = Duration::from_millis(5);
/// Events are on disk after this time at the latest.
const FLUSH: Duration = Duration::from_millis(100);

/// Time before a full disk is tried again.
const PATIENCE: Duration = Duration::from_millis(100);

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
    let child = start(arguments, &folder, &signals)?;
    let status = collect(arguments, &mut collector, child, &signals)?;
    if let Err(error) = collector.stop() {
        let Unwritten { bytes, discarded, .. } = collector.unwritten();
        if !may_pass(&error) || bytes > 0 || discarded > 0 {
            let lost = bytes.div_ceil(1024);
            return Err(Failure::of(
                output,
                format_args!(
                    "{error}: {lost} KiB of events are lost, and {} that no longer fit into memory",
                    Counted(discarded, "event")
                ),
            ));
        }
        of_output(error).warn("no event is lost, but times are less precise");
    }
    // Stopping may have met the first: a command that ended before the first look.
    if collector.processes() == 0 {
        eprintln!("backtrail: warning: no program used the tracer");
    }
    Ok(match status {
        Some(status) => Status::Passed(exit_code(status)),
        None => Status::Done,
    })
}

/// Collects until the command ends, the time is over, or the user does not want to wait. While the
/// disk is full, the rings keep what fits into them.
fn collect(
    arguments: &Record,
    collector: &mut Collector,
    mut child: Option<Child>,
    signals: &SignalSource,
) -> Result<Option<ExitStatus>, Failure> {
    let of_output = |error| Failure::of(&arguments.output, error);
    let begin = Instant::now();
    let (mut flushed, mut rotated) = (begin, begin);
    let mut is_full = false;
    loop {
        let ended = match &mut child {
            Some(child) => child.try_wait().map_err(Failure::new)?,
            None => None,
        };
        let is_over = arguments.duration.is_some_and(|limit| begin.elapsed() >= limit);
        // A child's end is seen above; signals from the terminal reach the command as well.
        let interrupted = std::iter::from_fn(|| signals.next()).any(|signal| signal.number != SIGCHLD);
        if ended.is_some() || is_over || interrupted {
            return Ok(ended);
        }
        let flush = flushed.elapsed() >= FLUSH;
        if flush {
            flushed = Instant::now();
        }
        let mut done = collector.round(flush);
        if done.is_ok() && arguments.rotate_every.is_some_and(|time| rotated.elapsed() >= time) {
            rotated = Instant::now();
            done = collector.rotate().and(done);
        }
        match done {
            Ok(0) => sleep(ROUND),
            Ok(_) => is_full = false,
            Err(error) if may_pass(&error) => {
                if !std::mem::replace(&mut is_full, true) {
                    let output = arguments.output.display();
                    say!("backtrail: warning: {output}: {error}; events wait in memory until there is space");
                }
                sleep(PATIENCE);
            }
            Err(error) => return Err(of_output(error)),
        }
    }
}

/// Whether a disk is full, which may change.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}
