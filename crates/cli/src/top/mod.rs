//! `backtrail top`: shows what runs now.

mod screen;
mod show;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use backtrail_cfi::announced::AnnouncedAt;
use backtrail_elf::HeldFile;
use backtrail_process::sys::SignalSource;
use backtrail_profile::{Live, LiveBy, Options as ProfileOptions};
use backtrail_record::{
    DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, Dialect, Error, Item, Machine, Options, Outcome, Storage, Target, Trigger,
    Walk, Warning, observe,
};
use backtrail_recording::{Detail, Frame, Sample};
use clap::{Args, ValueEnum, ValueHint};

use crate::error::{Failure, Status};
use crate::limits::Limits;
use crate::times;
use show::Show;

/// Items that may wait to be counted; then the recorder waits, and samples that the kernel has no
/// room for are counted as lost.
const WAITING: usize = 1 << 14;

/// Show the functions that run now, in a command, in running processes or on the whole machine.
///
/// On a terminal, a screen shows them, refreshed each second; elsewhere, a table is printed each
/// second. The command's output is discarded.
#[derive(Args)]
pub(crate) struct Top {
    /// Show this process, with all its threads and everything it starts. Repeatable.
    #[arg(short, long, value_name = "PID", conflicts_with = "command", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Show all processes. Requires root, CAP_PERFMON or kernel.perf_event_paranoid=0.
    #[arg(short, long, conflicts_with_all = ["pid", "command"])]
    all: bool,
    /// Show the processes in this cgroup and those below it: a directory of cgroupfs, or a name as
    /// in /proc/PID/cgroup. Repeatable. Requires the same rights as --all.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "command"], value_hint = ValueHint::DirPath)]
    cgroup: Vec<PathBuf>,
    /// Take this many samples per second of CPU time.
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = DEFAULT_FREQUENCY, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    frequency: u64,
    /// Refresh after this many seconds.
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Count samples of the last SECS seconds; a key switches to all samples.
    #[arg(long, value_name = "SECS", default_value = "5", value_parser = seconds)]
    window: Duration,
    /// Show functions, processes or threads first; keys switch between them.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Function)]
    by: By,
    /// Print one table after the first interval, and end.
    #[arg(long)]
    once: bool,
    /// Print at most N rows of a table; a screen has as many as fit.
    #[arg(long, value_name = "N", default_value_t = 40)]
    limit: usize,
    #[command(flatten)]
    limits: Limits,
    /// The command to run and its arguments.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present_any = ["pid", "all", "cgroup"], value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    Function,
    Process,
    Thread,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = times::seconds(text)?;
    match (0.05..=3600.0).contains(&time.as_secs_f64()) {
        true => Ok(time),
        false => Err("not between 0.05 and 3600 seconds".to_owned()),
    }
}

impl Top {
    /// What is shown, in words.
    fn subject(&self) -> String {
        let listed = |parts: Vec<String>| parts.join(", ");
        match self.command.first() {
            Some(program) => program.to_string_lossy().into_owned(),
            None if !self.pid.is_empty() => listed(self.pid.iter().map(i32::to_string).collect()),
            None if self.all => "all processes".to_owned(),
            None => listed(self.cgroup.iter().map(|path| path.display().to_string()).collect()),
        }
    }

    fn target(&self) -> Target {
        if !self.pid.is_empty() {
            Target::Processes(self.pid.clone())
        } else if self.all || !self.cgroup.is_empty() {
            Target::Machine(Machine {
                groups: self.cgroup.clone(),
                ..Machine::default()
            })
        } else {
            Target::Command(self.command.clone())
        }
    }
}

pub(crate) fn run(arguments: Top) -> Result<Status, Failure> {
    arguments.limits.set();
    let what = arguments.subject();
    let how = match arguments.once {
        true => Show::once,
        false if io::stdout().is_terminal() && !screen::is_dumb() => Show::on_screen,
        false => Show::print_tables,
    };
    let show = Show {
        what,
        live: Arc::new(Mutex::new(Live::new(ProfileOptions::default()))),
        interval: arguments.interval,
        window: arguments.window,
        by: match arguments.by {
            By::Function => LiveBy::Function,
            By::Process => LiveBy::Process,
            By::Thread => LiveBy::Thread,
        },
        limit: arguments.limit,
        is_whole: false,
        paused: None,
    };
    let options = Options {
        target: arguments.target(),
        output: PathBuf::new(),
        storage: Storage::Whole,
        trigger: Trigger::Clock(arguments.frequency),
        stack_bytes: DEFAULT_STACK_BYTES,
        dialect: Dialect::V1_8,
        duration: arguments.once.then_some(arguments.interval),
        cache: None,
        hold_files: true,
        walk: Walk::default(),
    };
    let (outcome, shown) = watch(&options, show, how).map_err(Failure::new)?;
    let outcome = outcome.map_err(|error| {
        let failure = Failure::new(&error);
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })?;
    shown.map_err(Failure::of_stdout)?;
    for warning in outcome.warnings() {
        crate::error::say!("backtrail: warning: {warning}");
        if let Some(help) = help(warning) {
            crate::error::say!("help: {help}");
        }
    }
    Ok(Status::Done)
}

/// What can be done, with the options of this subcommand.
fn help(warning: Warning) -> Option<&'static str> {
    match warning {
        Warning::Lost(..) => {
            Some("sample less often with -F, or let it raise its priority (as root, or with ulimit -e)")
        }
        warning => warning.help(),
    }
}

/// A way to show the counts until the recording is over.
type How = fn(Show, &Receiver<bool>) -> io::Result<()>;

/// Records in this thread, counts in a second one and shows the counts in a third: neither names
/// that take long to find nor a slow terminal keep the recorder from its samples.
fn watch(options: &Options, show: Show, how: How) -> io::Result<(Result<Outcome, Error>, io::Result<()>)> {
    let (sender, receiver) = sync_channel(WAITING);
    let (ended, end) = sync_channel(1);
    // Signals are for the recorder, so the other threads must start with them blocked. Keys send
    // them, too: before it starts and after its end, they must not kill this process.
    let signals = SignalSource::new()?;
    let live = Arc::clone(&show.live);
    let counting = thread::Builder::new().spawn(move || count(&live, &receiver))?;
    let showing = thread::Builder::new().spawn(move || how(show, &end))?;
    let (files, functions) = (sender.clone(), sender.clone());
    let outcome = observe(
        options,
        &signals,
        move |item| pass(&sender, item),
        // Whoever counts ends only after this.
        move |file| drop(files.send(Passed::File(file))),
        move |function| drop(functions.send(Passed::Function(function))),
    );
    // The observers are gone, and with them the channel's senders.
    let _ = counting.join();
    let _ = ended.send(outcome.is_ok());
    let shown = showing.join().unwrap_or(Ok(()));
    // What came too late has no meaning any more.
    while signals.next().is_some() {}
    Ok((outcome, shown))
}

/// What can be passed to another thread.
enum Passed {
    /// An item; a sample's frames are apart.
    Item(Item<'static>, Vec<Frame>),
    /// A file that the next items name.
    File(HeldFile),
    /// A function that the next samples are in.
    Function(AnnouncedAt),
}

fn pass(sender: &SyncSender<Passed>, item: &Item<'_>) {
    let frames = match item {
        Item::Sample(sample) => sample.frames.to_vec(),
        _ => Vec::new(),
    };
    let item = match item {
        Item::Sample(sample) => Item::Sample(Sample {
            frames: &[],
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
            ..*sample
        }),
        Item::Module(module) => Item::Module(module.clone()),
        Item::ProcessLabels(labels) => Item::ProcessLabels(labels.clone()),
        Item::ThreadName(name) => Item::ThreadName(name.clone()),
        &Item::Exec { time, pid } => Item::Exec { time, pid },
        &Item::Fork { time, pid, tid, parent } => Item::Fork { time, pid, tid, parent },
        &Item::Exit { time, pid, tid } => Item::Exit { time, pid, tid },
        &Item::Lost { time, count } => Item::Lost { time, count },
    };
    // Whoever counts ends only after this.
    let _ = sender.send(Passed::Item(item, frames));
}

fn count(live: &Mutex<Live>, receiver: &Receiver<Passed>) {
    for passed in receiver {
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        match passed {
            Passed::Item(Item::Sample(sample), frames) => live.add(&Item::Sample(Sample {
                frames: &frames,
                ..sample
            })),
            Passed::Item(item, _) => live.add(&item),
            Passed::File(file) => live.hold(file),
            Passed::Function(function) => live.announce(&function),
        }
    }
}

#[cfg(test)]
mod tests {
    use backtrail_record::Occasion;

    use super::*;

    #[test]
    fn help_names_only_options_of_this_subcommand() {
        let help = help(Warning::Lost(30, Occasion::Clock)).expect("something can be done");
        assert!(help.contains("-F") && !help.contains("--"), "{help}");
    }
}
